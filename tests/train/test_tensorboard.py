"""Curves for TensorBoard beside metrics.jsonl."""

import json

import pytest

from tests.hostile import runs
from tests.train.board import events
from unroll_jax.train.__main__ import main
from unroll_jax.train.metrics import MetricsWriter, read_metrics

RUN = runs.RUN.split()
ROW = {"kind": "train", "loss": 0.5, "violations": [None, 0.25], "violation/layer 1": 0.25, "norm (L2)": None}


def write(folder, steps, *, after_step=0):
    """Writes a row for each step to metrics.jsonl and to the curves."""
    with MetricsWriter(folder, after_step=after_step, tensorboard=True) as writer:
        for step in steps:
            writer.write({**ROW, "step": step})
        writer.flush()


def curves(folder):
    """What TensorBoard reads of each of a folder's files, in the order of their first steps: session, and points."""
    files = sorted((folder / "tensorboard").glob("events.*"), key=lambda path: int(path.suffix[1:]))
    return [
        (
            [event.step for event in events(path) if event.HasField("session_log")],
            [(event.step, value.tag, value.simple_value) for event in events(path) for value in event.summary.value],
        )
        for path in files
    ]


def test_tensorboard_has_every_number_once_by_name(tmp_path):
    write(tmp_path, [1, 2])
    ((_, points),) = curves(tmp_path)
    shown = (("train/loss", 0.5), ("train/violation/layer_1", 0.25))
    assert points == [(step, tag, number) for step in (1, 2) for tag, number in shown]


def test_tensorboard_forgets_the_points_after_the_step_that_a_run_goes_on_from(tmp_path):
    write(tmp_path, range(1, 9))
    write(tmp_path, range(6, 9), after_step=5)
    (first, points), (second, _) = curves(tmp_path)
    assert (first, second) == ([1], [6])
    assert sorted({step for step, _, _ in points}) == [*range(1, 9)]


@pytest.mark.usefixtures("in_memory")
def test_a_run_has_curves_unless_it_is_told_to_have_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert main([*RUN]) == 0
    losses = [row["loss"] for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    ((_, points),) = curves(run)
    assert [value for _, tag, value in points if tag == "train/loss"] == pytest.approx(losses, rel=1e-6)
    assert main([*RUN, "--overwrite", "--track"]) == 0
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert len(read_metrics(run / "metrics.jsonl")) == 9
    assert not (run / "tensorboard").exists()
