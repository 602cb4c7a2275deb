"""Trackers beside metrics.jsonl; Weights & Biases and MLflow are stand-ins, which keep what they are told."""

import functools
import json
import re
import sys
import types

import pytest

from tests.hostile import runs
from tests.train.board import events
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.metrics import TRACKERS, MetricsWriter, read_metrics

RUN = runs.RUN.split()
ROW = {"kind": "train", "loss": 0.5, "violations": [None, 0.25], "violation/layer 1": 0.25, "norm (L2)": None}


class WeightsAndBiases(types.ModuleType):
    """Stands in for wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.begun, self.points, self.finished = [], [], 0

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, numbers, *, step):
        self.points.append((step, numbers))

    def finish(self):
        self.finished += 1


class MLflow(types.ModuleType):
    """Stands in for mlflow, with a server of one experiment."""

    def __init__(self):
        super().__init__("mlflow")
        self.begun, self.points, self.ended, self.tagged = [], [], 0, []

    def search_runs(self, *, filter_string, output_format, max_results):
        assert (output_format, max_results) == ("list", 1)
        wanted = re.fullmatch(r"tags\.unroll_jax = '(\w+)'", filter_string)[1]
        place = [number for number, tag in enumerate(self.tagged) if tag == wanted]
        return [types.SimpleNamespace(info=types.SimpleNamespace(run_id=number)) for number in place]

    def start_run(self, *, tags, **options):
        self.begun.append(options)
        if "run_id" not in options:
            self.tagged.append(tags["unroll_jax"])

    def log_metrics(self, numbers, *, step):
        assert all(re.fullmatch(r"[\w./ :-]+", name) for name in numbers), "names that a server takes"
        self.points.append((step, numbers))

    def end_run(self):
        self.ended += 1


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", WeightsAndBiases())
    return sys.modules["wandb"]


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", MLflow())
    return sys.modules["mlflow"]


def write(folder, name, steps, *, after_step=0):
    """Writes a row for each step to metrics.jsonl and to one tracker."""
    opened = functools.partial(TRACKERS[name], folder, after_step + 1)
    with MetricsWriter(folder, after_step=after_step, trackers=[opened]) as writer:
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
    write(tmp_path, "tensorboard", [1, 2])
    ((_, points),) = curves(tmp_path)
    shown = (("train/loss", 0.5), ("train/violation/layer_1", 0.25))
    assert points == [(step, tag, number) for step in (1, 2) for tag, number in shown]


def test_tensorboard_forgets_the_points_after_the_step_that_a_run_goes_on_from(tmp_path):
    write(tmp_path, "tensorboard", range(1, 9))
    write(tmp_path, "tensorboard", range(6, 9), after_step=5)
    (first, points), (second, _) = curves(tmp_path)
    assert (first, second) == ([1], [6])
    assert sorted({step for step, _, _ in points}) == [*range(1, 9)]


def test_weights_and_biases_has_one_run_a_folder_that_is_gone_on_with(tmp_path, wandb, monkeypatch):
    (tmp_path / "other").mkdir()
    write(tmp_path, "wandb", [1, 2])
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    write(tmp_path, "wandb", [3], after_step=2)
    write(tmp_path / "other", "wandb", [1])
    first, again, other = wandb.begun
    assert (first["project"], again["project"]) == ("unroll_jax", "mine")
    assert first["id"] == again["id"] != other["id"]
    assert {one["resume"] for one in wandb.begun} == {"allow"}
    assert first["name"] == "/".join(tmp_path.parts[-3:])
    shown = {"train/loss": 0.5, "train/violation/layer 1": 0.25}
    assert wandb.points == [(step, shown) for step in (1, 2, 3, 1)]
    assert wandb.finished == 3


def test_mlflow_has_one_run_a_folder_that_is_gone_on_with(tmp_path, mlflow):
    (tmp_path / "other").mkdir()
    write(tmp_path, "mlflow", [1])
    write(tmp_path / "other", "mlflow", [1])
    write(tmp_path, "mlflow", [2], after_step=1)
    assert mlflow.begun[0] == {"run_name": "/".join(tmp_path.parts[-3:])}
    assert mlflow.begun[2] == {"run_id": 0}
    assert len(mlflow.tagged) == len(set(mlflow.tagged)) == 2
    assert mlflow.points[-1] == (2, {"train/loss": 0.5, "train/violation/layer 1": 0.25})
    assert mlflow.ended == 3


@pytest.fixture
def at(in_memory, tmp_path, monkeypatch):
    """The folder of the run that `RUN` trains."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_a_run_shows_its_rows_wherever_it_is_asked_to(at, wandb, mlflow):
    assert main([*RUN, "--track", "wandb", "tensorboard", "mlflow"]) == 0
    rows = read_metrics(at / "metrics.jsonl")
    assert [step for step, _ in wandb.points] == [row["step"] for row in rows]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert [numbers["train/loss"] for _, numbers in wandb.points if "train/loss" in numbers] == losses
    assert mlflow.points == wandb.points
    assert (wandb.finished, mlflow.ended) == (1, 1)
    ((_, points),) = curves(at)
    assert [value for _, tag, value in points if tag == "train/loss"] == pytest.approx(losses, rel=1e-6)


def refuse(*_, **__):
    raise RuntimeError("api_key not configured\n(no-tty)")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_cannot_be_reached_is_refused_in_one_line_and_the_run_goes_on_without(name, at, request, capsys):
    module = request.getfixturevalue(name)
    for call in ("init", "start_run"):
        setattr(module, call, refuse)
    assert main([*RUN, "--track", "tensorboard", name]) == 2
    errors = capsys.readouterr().err
    assert f"error: --track {name}: api_key not configured (no-tty); set {name} up, or leave it out" in errors
    assert errors.count("\n") == 1
    assert main([*RUN, "--track"]) == 0
    assert json.loads((at / "status.json").read_text())["state"] == "finished"
    assert len(read_metrics(at / "metrics.jsonl")) == 9, "without trackers there is metrics.jsonl alone"


def failing(call, times):
    """A call that fails from the third time on."""

    def counted(*arguments, **options):
        times.append(arguments)
        return refuse() if len(times) >= 3 else call(*arguments, **options)

    return counted


@pytest.mark.parametrize(("name", "call"), [("wandb", "log"), ("mlflow", "log_metrics"), ("wandb", "finish")])
def test_a_tracker_that_fails_is_dropped_with_one_line(name, call, at, request, capsys):
    module, times = request.getfixturevalue(name), []
    setattr(module, call, refuse if call == "finish" else failing(getattr(module, call), times))
    assert main([*RUN, "--track", name, "tensorboard"]) == 0
    line = f"--track {name} failed (RuntimeError: api_key not configured (no-tty)); training continues without it"
    assert capsys.readouterr().out.count(line) == 1
    assert len(read_metrics(at / "metrics.jsonl")) == 9
    assert json.loads((at / "status.json").read_text())["state"] == "finished"
    ((_, points),) = curves(at)
    assert {step for step, _, _ in points} == set(range(1, 7)), "the others go on"
    if call != "finish":
        assert (len(times), len(module.points)) == (3, 2)
        assert (module.finished if name == "wandb" else module.ended) == 1, "its curves are closed"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_begun(name, at, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    for command in ("run", "plan"):
        assert name in refused(capsys, command, *RUN[1:], "--track", "tensorboard", name)
    assert not at.exists()
