"""The moving average of parameters: what it is, and that it is what a run is judged by and exports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.average import first_average, next_average
from train.checkpoint import Checkpoints
from train.export import export, load_exported
from train.metrics import read_metrics
from train.video.evaluate import make_split_losses
from train.video.state import init_state
from train.video.task import video_task


@pytest.mark.parametrize("decay", [0.3, 0.999, 0.99999])
def test_the_average_is_the_weighted_mean_written_out(decay):
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    average = first_average({"w": jnp.full(3, 7.0)}, decay)
    move = jax.jit(lambda average, w, step: next_average(average, {"w": w}, step, decay))
    for step, value in enumerate(values):
        average = move(average, value, step)
        weights = decay ** np.arange(step, -1, -1, dtype=np.float64)
        expected = weights @ values[: step + 1].astype(np.float64) / weights.sum()
        np.testing.assert_allclose(average["w"], expected, rtol=1e-4, atol=1e-5)


def test_without_a_decay_there_is_none():
    assert first_average({"w": jnp.ones(2)}, None) is None
    assert next_average(None, {"w": jnp.ones(2)}, jnp.zeros((), jnp.int32), None) is None


def test_validation_evaluation_and_export_use_the_average(start, changed, clips, tmp_path):
    config = changed(average=0.8, **{"primal.learning_rate": 0.05})
    start(config)
    folder, task = tmp_path / "run", video_task(config, clips)
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        step, state, _ = checkpoints.best(jax.eval_shape(lambda: init_state(config, task)))
    losses = {
        name: make_split_losses(task, clips)(params, "validation", config.train_gamma).sample_losses.mean(axis=0)
        for name, params in (("average", state.average), ("last", state.params))
    }
    rows = read_metrics(folder / "metrics.jsonl")
    (row,) = (row for row in rows if row["kind"] == "validation" and row["step"] == step)
    np.testing.assert_allclose(row["layer_losses"], losses["average"], rtol=1e-6)
    assert not np.allclose(losses["average"], losses["last"], rtol=1e-3), "the case tells the two apart"

    exported = load_exported(export(folder, log=lambda _: None))
    for found, expected in zip(jax.tree.leaves(exported.params), jax.tree.leaves(state.average), strict=True):
        np.testing.assert_array_equal(found, expected)
