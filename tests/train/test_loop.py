"""The training loop: its records, its ends, and the checkpoints that it leaves."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.commands import status_of
from tests.train.conftest import traced_task
from unroll_jax.train.config.errors import Interrupted, UserError, one_line
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.core.loop import UNJUDGED, train
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import state_like
from unroll_jax.train.tasks.common import to_unit

pytestmark = pytest.mark.xdist_group("video-runs")


@functools.cache
def _poisoned(config, clips):
    """The loss of layer 1 is NaN on a batch of 0. The slope of all losses is not
    finite on a batch of 2."""
    task = traced_task(config, clips)

    def losses(params, batch, trial):
        poison = jnp.stack(
            [0.0, jnp.where(jnp.all(batch.clean == 0.0), jnp.nan, 0.0), 0.0]
        )
        away = jnp.mean((batch.clean - to_unit(jnp.uint8(2))) ** 2)
        root = jnp.sqrt(1e-12 * away * jnp.sum(params["params"]["layers"].U ** 2))
        samples, figures = task.losses(params, batch, trial)
        return samples + poison + root, figures

    return task._replace(losses=losses)


@pytest.fixture
def loop(in_memory, clips, tmp_path):
    def go(config, poisoned=False):
        log = []
        task = (_poisoned if poisoned else traced_task)(config, clips)
        train(task, make_plan(task), tmp_path, programs={}, log=log.append)
        return log

    return go


def _like(config, clips):
    task = traced_task(config, clips)
    return state_like(task, make_plan(task))


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        (5, 0, "loss is not finite at step 5.*layer 1"),
        (6, 2, "gradient is not finite at step 6"),
    ],
)
def test_what_is_not_finite_ends_at_the_last_good_checkpoint(
    loop, config, at_batch, tmp_path, number, value, words
):
    at_batch(number, lambda batch: np.full_like(batch, value))
    with pytest.raises(UserError, match=words) as caught:
        loop(config, poisoned=True)
    line = one_line(caught.value)
    assert "; the checkpoint of step 4 is kept; lower --primal" in line
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["2", "4"]
    status = status_of(tmp_path)
    assert (status["state"], status["steps"]) == ("failed", 4)
    assert status["messages"] == [line]
    # once mended, it has every step once
    assert loop(config) == ["going on from the checkpoint of step 4"]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    kinds = [row["kind"] for row in rows if row["step"] in (2, 4, 6)]
    assert kinds == ["train", "validation"] * 3
    status = status_of(tmp_path)
    assert (status["state"], status["messages"]) == ("finished", [])


def test_a_save_in_a_hurry_keeps_what_is_finite(
    loop, config, clips, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "unroll_jax.train.system.distributed.Stop.at", lambda self, step: step == 1
    )
    save, written = Checkpoints.save, []

    def saved(*arguments, **options):
        written.append(
            [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")]
        )
        return save(*arguments, **options)

    monkeypatch.setattr(Checkpoints, "save", saved)
    with pytest.raises(Interrupted, match="asked to end"):
        loop(config)
    assert written == [[1]], (
        "metrics are on disk before the checkpoint that they belong to"
    )
    assert status_of(tmp_path)["state"] == "interrupted"
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        step, _, notes = checkpoints.newest(_like(config, clips))
    assert (step, notes["score"]) == (1, UNJUDGED)
