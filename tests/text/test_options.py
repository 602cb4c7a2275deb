"""Options of every run and of its constraints, for text as for video."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.text.conftest import MANY, newest_state
from tests.text.test_task import first_batch, jnp_batch
from unroll_jax.train import load
from unroll_jax.train.config.constraints import DualConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.text import EncoderOptions
from unroll_jax.train.evaluate import best_checkpoint
from unroll_jax.train.exporting import export
from unroll_jax.train.loading import open_run
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import describe_step, init_state, jit_step
from unroll_jax.train.tasks.text import Perturbed

pytestmark = pytest.mark.xdist_group("text-runs")


def quiet(line):
    pass


def close(actual, expected, tolerance):
    for (path, one), other in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        scale = np.max(np.abs(other), initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-6), err_msg=str(path))


def figures(row):
    """What a row says of a step, but for the multipliers and violations by name."""
    values = {name: row[name] for name in ("lagrangian", "layer_losses", "violations", "multipliers", "grad_norm")}
    return values | {kind: [row[name] for name in row if name.startswith(kind)] for kind in ("slack/", "size/")}


@pytest.mark.slow
def test_a_run_in_parts_takes_the_steps_of_whole_batches(finished, task_of, experiment):
    folder = finished(experiment).runs["constrained"]
    task = task_of(experiment, **MANY | {"remat": "none"})
    state, step, rows = init_state(task), jit_step(task), []
    for number, batch in zip(range(task.config.steps), task.batches(0, None), strict=False):
        state, metrics = step(state, batch)
        rows.append(describe_step(task, number + 1, jax.device_get(metrics))[0])
    train_rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
    close([figures(row) for row in train_rows], [figures(row) for row in rows], 1e-4)
    close(newest_state(folder, task).moving.dual.multipliers, state.moving.dual.multipliers, 1e-4)
    assert np.max(state.moving.multipliers) > 0.01, "no multiplier moved"
    assert np.max(figures(rows[-1])["slack/"]) > 0.0, "no slack moved"


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "remat"), [("text-encoder", "dots_without_batch"), ("text-ut", "everything")])
def test_recomputing_changes_no_gradient(built, task_of, experiment, remat):
    kept, params = built(experiment)
    recomputed = task_of(experiment, remat=remat)
    noise = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    drawn = Perturbed(first_batch(kept), jnp.asarray(noise))
    total = lambda params, task: jnp.sum(task.losses(params, drawn, None)[0] ** 2)  # noqa: E731
    slopes = [lambda params, task=task: jax.value_and_grad(total)(params, task) for task in (kept, recomputed)]
    one, other = jax.jit(lambda params: [slope(params) for slope in slopes])(params)
    close(other, one, 1e-5)
    counts = [str(jax.make_jaxpr(slope)(params)).count("remat2[") for slope in slopes]
    assert counts[1] > counts[0], "nothing is recomputed"


@pytest.mark.slow
def test_violations_are_those_of_the_worst_texts(finished, task_of):
    rows = read_metrics(finished("text-ut").runs["constrained"] / "metrics.jsonl")
    task = task_of("text-ut", **MANY)
    batch = jnp_batch(next(task.batches(0, None)))

    @jax.jit
    def sample_losses(state):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), 0)
        return task.losses(state.params, task.sample_noise(batch, key), None)[0]

    losses = np.asarray(sample_losses(init_state(task)), np.float64)
    each = np.column_stack([losses[:, 0] - 0.7, losses[:, 1:] - 0.9 * losses[:, :-1]])
    expected = np.sort(each, axis=0)[4:].mean(axis=0)
    np.testing.assert_allclose(rows[0]["violations"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_average_is_what_is_judged_and_exported(finished, tmp_path):
    folder = finished("text-ut").runs["erm"]
    experiment, task = open_run(folder, log=quiet)
    state = best_checkpoint(task, folder, experiment=experiment, log=quiet).state
    out = export(folder, tmp_path / "export", log=quiet)
    card = (out / "README.md").read_text()
    assert "Without a model: accuracy 50.0%, of a class of 2 drawn at random." in card
    assert "Early exit on the test split" in card
    assert '(prediction,) = model.predict(["a text"])' in card
    exported = load(out, log=quiet).params
    for one, averaged, plain in zip(*map(jax.tree.leaves, (exported, state.average, state.params)), strict=True):
        np.testing.assert_array_equal(one, averaged)
        assert not np.array_equal(averaged, plain) or not np.any(plain)


def test_an_epoch_that_never_ends_is_refused(task_of):
    message = r"dual.every=epoch moves no multiplier: an epoch has 6 steps, multipliers may move in 4"
    with pytest.raises(UserError, match=message):
        task_of("text-ut", dual=DualConfig(every="epoch"))
    task = task_of("text-ut", dual=DualConfig(every="epoch"), steps=6)
    assert task.data.tokens.steps_an_epoch("train", batch_size=8) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unroll": 2, "remat": "dots"}, "unroll must be 1 or None with remat, got 2"),
        ({"dual": DualConfig(start=(0.1, 0.2))}, "dual.start must be one number, or one for each of 3 constraints"),
        ({"model": EncoderOptions(pretrained="x", num_layers=2)}, "model.num_layers=2 has no effect without an enc"),
        ({"model": EncoderOptions(pretrained="x"), "min_count": 5}, "min_count=5 has no effect without an encoder"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_option_that_cannot_be_is_named(task_of, fields, message):
    with pytest.raises(UserError, match=message):
        task_of("text-encoder" if isinstance(fields.get("model"), EncoderOptions) else "text-ut", **fields)
