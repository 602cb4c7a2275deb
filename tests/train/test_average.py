"""The moving average of parameters: what it is, and that it is what a run is judged by and exports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.conftest import MANY, traced_task
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.exporting import export
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import next_average, state_like
from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.weights import named_arrays, read_export


@pytest.mark.parametrize("decay", [0.3, 0.999, 0.99999])
def test_the_average_is_the_weighted_mean_written_out(decay):
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)

    @jax.jit
    def averages(values):
        def move(average, step):
            average = next_average(average, {"w": values[step]}, step, decay)
            return average, average["w"]

        return jax.lax.scan(move, {"w": jnp.full(3, 7.0)}, jnp.arange(40))[1]

    for step, actual in enumerate(np.asarray(averages(values))):
        weights = decay ** np.arange(step, -1, -1, dtype=np.float64)
        expected = weights @ values[: step + 1].astype(np.float64) / weights.sum()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=f"step {step}")


@pytest.mark.usefixtures("in_memory")
@pytest.mark.xdist_group("video-runs")
def test_validation_evaluation_and_export_use_the_average(many, changed, clips, tmp_path):
    config = changed(**MANY)
    task = traced_task(config, clips)
    with Checkpoints(many / "checkpoints", read_only=True) as checkpoints:
        step, state, _ = checkpoints.best(state_like(task))
    losses = {
        name: task.reading(params, "validation", Trial(config.train_gamma)).losses.mean(axis=0)
        for name, params in (("average", state.average), ("last", state.params))
    }
    rows = read_metrics(many / "metrics.jsonl")
    (row,) = (row for row in rows if row["kind"] == "validation" and row["step"] == step)
    np.testing.assert_allclose(row["layer_losses"], losses["average"], rtol=1e-6)
    assert not np.allclose(losses["average"], losses["last"], rtol=1e-3), "the case tells the two apart"

    exported = read_export(export(many, tmp_path / "export", log=lambda _: None)).arrays
    average = named_arrays(jax.device_get(state.average))
    assert exported.keys() == average.keys()
    for name, array in exported.items():
        np.testing.assert_array_equal(array, average[name])
