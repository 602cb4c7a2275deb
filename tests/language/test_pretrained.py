"""Decoders that are given: low-rank changes of a folder's weights, and options that
do not fit model or data."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import stats

from tests.errors import one_line
from tests.train.commands import quiet, read
from unroll_jax.train import load
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, state_like
from unroll_jax.train.data.pretrained.decoders import load_decoder
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.language.options import DecoderOptions, DescentOptions
from unroll_jax.train.tasks.language.task import open_task

pytestmark = pytest.mark.xdist_group("language")


@pytest.mark.slow
def test_changes_of_given_weights_are_trained_and_exported(run_of, tmp_path):
    run, folder = run_of("changes merged")
    export(run, tmp_path / "model", log=quiet)
    original = load_decoder(str(folder), log=quiet).params
    models = [load(place) for place in (run, tmp_path / "model")]
    for model in models:
        chex.assert_trees_all_equal(model.params["decoder"], original)
        assert any(np.any(part["expand"]) for part in model.params["changes"].values())
    one, other = (model.predict("7?", answers="ab")[0].losses for model in models)
    assert_array_equal(one, other)
    evaluation = read(run / "evaluation.json")
    changes = jax.tree.leaves(models[0].params["changes"])
    assert evaluation["trained_parameters"] == sum(leaf.size for leaf in changes)
    assert evaluation["trained_parameters"] < evaluation["parameters"]


def test_a_plan_needs_no_weights_and_a_run_does(given, tmp_path):
    make, folder = given
    (folder / "model.safetensors").unlink()
    task = open_task(make(model=DecoderOptions(pretrained=str(folder))), quiet)
    like = state_like(task, make_plan(task))
    assert jax.tree.leaves(like.params), "shapes are all that a plan compiles with"
    train = task.inner.data.packed.whole("train")
    entropy = stats.entropy(np.bincount(train.labels[train.weights > 0.0]))
    reference = 4.5 / 3.463 * entropy
    assert task.options.constraints.reference == pytest.approx(reference, rel=1e-3)
    with one_line(r"has no model\.safetensors or"):
        fit(make(), out=tmp_path / "run", experiment="sft-tiny", log=quiet)
    assert not (tmp_path / "run").exists()


def test_what_is_not_trained_has_the_dtype_of_layers(given):
    make, folder = given
    model = DecoderOptions(pretrained=str(folder), lora_rank=2, dtype="bfloat16")
    task = open_task(make(model=model), quiet)
    plan = make_plan(task)
    read = task.pretrained()
    state = init_state(task._replace(pretrained=lambda: read), plan, 0)
    deleted = [leaf.is_deleted() for leaf in jax.tree.leaves(read)]
    assert all(deleted), "the state has their memory"
    whole = load_decoder(str(folder), log=quiet).params
    narrow = lambda leaf: np.asarray(leaf).astype(jnp.bfloat16)
    original = jax.tree.map(narrow, whole)
    chex.assert_trees_all_equal(state.params["decoder"], original)
    train = task.inner.data.packed.whole("train")
    used = np.float64(original["embedding"])[train.tokens[train.segments > 0]]
    # the unit of noise
    assert task.inner.data.embedding_std == pytest.approx(used.std(), rel=1e-2)
    changes = jax.tree.leaves(state.params["changes"])
    assert {leaf.dtype for leaf in changes} == {np.dtype("float32")}


def test_what_does_not_fit_the_data_or_model_is_refused(small):
    with one_line("descent.every must be at most the 3 layers there are, got 4"):
        open_task(small(descent=DescentOptions(every=4)), quiet)
    with one_line("--max-length 10 leaves none of 40 train prompts room"):
        open_task(small(max_length=10), quiet)
