"""Decoders that are given: low-rank changes of a folder's weights, and options that
do not fit model or data."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from tests.data.decoders.conftest import llama_tensors
from tests.errors import one_line
from tests.train.commands import quiet, read
from unroll_jax.train import load
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, state_like
from unroll_jax.train.data.pretrained.decoders import load_decoder
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.language.options import DecoderOptions, DescentOptions
from unroll_jax.train.tasks.language.task import open_task

pytestmark = pytest.mark.xdist_group("language")


@pytest.mark.slow
def test_changes_of_given_weights_are_trained_kept_and_exported_and_the_weights_stay(
    run_of, tmp_path
):
    run, folder = run_of("changes merged")
    export(run, tmp_path / "model", log=quiet)
    original = jax.device_get(load_decoder(str(folder), log=quiet).params)
    models = [load(place) for place in (run, tmp_path / "model")]
    for model in models:
        assert all(
            jax.tree.leaves(
                jax.tree.map(
                    np.array_equal, jax.device_get(model.params["decoder"]), original
                )
            )
        )
        assert any(np.any(part["expand"]) for part in model.params["changes"].values())
    one, other = (
        [prediction.losses for prediction in model.predict("7?", answers="ab")]
        for model in models
    )
    np.testing.assert_array_equal(one, other)
    evaluation = read(run / "evaluation.json")
    assert evaluation["trained_parameters"] == sum(
        leaf.size for leaf in jax.tree.leaves(models[0].params["changes"])
    )
    assert evaluation["trained_parameters"] < evaluation["parameters"]


def test_a_plan_needs_a_shape_and_a_tokenizer_and_a_run_the_weights(given, tmp_path):
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


def test_what_is_not_trained_is_kept_in_what_layers_compute_in_and_once_on_the_device(
    given,
):
    make, folder = given
    task = open_task(
        make(
            model=DecoderOptions(pretrained=str(folder), lora_rank=2, dtype="bfloat16")
        ),
        quiet,
    )
    plan = make_plan(task)
    like = state_like(task, plan).params
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(like["decoder"])} == {
        "bfloat16"
    }
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(like["changes"])} == {"float32"}
    read = task.pretrained()
    state = init_state(task._replace(pretrained=lambda: read), plan, 0)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(read)), (
        "the state has their memory"
    )
    original = load_decoder(str(folder), dtype=np.dtype("bfloat16"), log=quiet).params
    assert all(
        jax.tree.leaves(
            jax.tree.map(
                np.array_equal,
                *map(jax.device_get, (state.params["decoder"], original)),
            )
        )
    )


def test_the_size_of_given_embeddings_is_that_of_train_tokens(given):
    make, folder = given
    tensors = llama_tensors()
    table = 2.0 + 3.0 * tensors["model.embed_tokens.weight"]
    save_file(
        tensors | {"model.embed_tokens.weight": table}, folder / "model.safetensors"
    )
    data = open_task(make(), quiet).inner.data
    train = data.packed.whole("train")
    used = table[train.tokens[train.segments > 0]]
    assert data.embedding_std == pytest.approx(used.std(dtype=np.float64), rel=1e-4)


def test_what_does_not_fit_the_data_or_the_model_is_refused(small):
    with one_line("descent.every must be at most the 3 layers there are, got 4"):
        open_task(small(descent=DescentOptions(every=4)), quiet)
    with one_line("--max-length 10 leaves none of 40 train prompts room"):
        open_task(small(max_length=10), quiet)


def test_what_a_given_decoder_cannot_do_is_refused(given):
    make, _ = given
    with one_line(r"max_length=64 is longer than .* reads, 32 tokens; lower it"):
        open_task(make(max_length=64), quiet)
    bounds = ConstraintConfig(alpha=(0.1,), reference=3.0, margin=0.0, first_margin=0.0)
    config = make(method="constrained", constraints=bounds)
    assert config.resolved().constraints.reference is None
