"""Tasks of any make, by the protocol alone: trained, evaluated, reported, loaded and exported as ours are."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.test_fit import linear
from unroll_jax.train import load
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.evaluate import evaluate
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.runs import read_config
from unroll_jax.train.sharding.mesh import make_mesh
from unroll_jax.train.system.files import SEAL
from unroll_jax.train.task import PlainRisk, Row, Task, Training, Validation


@dataclasses.dataclass(frozen=True)
class MeanConfig(RunConfig):
    """Options of every run, and one of its own."""

    task: ClassVar[str] = "mean"
    metric: ClassVar[str] = "squared error"

    target: float = 1.0

    def label(self):
        return f"seed{self.seed}"

    def describe(self):
        return "a mean"


class Mean(Task):
    """A number that descends to a target; without layers and constraints."""

    num_layers = 0

    def __init__(self, config=MeanConfig()):
        self._config = config
        self.training = Training(PlainRisk(), optax.sgd(0.1), 20, 10, make_mesh(None, batch_size=64, accumulate=1))

    @property
    def config(self):
        return self._config

    def with_config(self, config):
        return type(self)(config)

    def init(self, key):
        return jnp.zeros(())

    def batches(self, start_step, rows):
        while True:
            yield np.full(64, self.config.target, np.float32)

    def losses(self, params, batch, probe):
        return (params - batch)[:, None] ** 2, {}

    def validate(self, params, multipliers):
        return Validation(np.asarray((params - np.full((1, 1), self.config.target)) ** 2), {})

    def evaluate(self, params, folder) -> tuple[Row, Any]:
        return {"mean": float(params), "halves": [0.5, float(params) / 2]}, None

    def data_fingerprint(self):
        return {}

    def model_spec(self):
        return {}

    def predict(self, params, inputs):
        return inputs * float(params)

    def summary_line(self, evaluation):
        return f"the mean is {evaluation['mean']:.1f}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The finished run of a `Mean`."""
    return fit(Mean(), out=tmp_path_factory.mktemp("mean") / "run", log=quiet)[0]


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_task_of_any_make_is_trained_evaluated_and_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = []
    (folder,) = fit(Mean(), log=log.append)
    assert folder == Path("runs/mean/seed0")
    evaluation = read(folder / "evaluation.json")
    assert evaluation["mean"] == pytest.approx(1.0 - 0.8**20)
    assert evaluation["best_step"] == 20
    assert [row["loss"] for row in read_metrics(folder / "metrics.jsonl")][:2] == pytest.approx([1.0, 0.64])
    assert any(line.startswith("mean ") and line.endswith(" 0.9885") for text in log for line in text.splitlines())
    (row,) = read(folder / "report" / "summary.json")["runs"]
    status = {key: read(folder / "status.json").get(key) for key in ("state", "steps", "compile_seconds", "messages")}
    assert row == {"run": "seed0", **status, **evaluation}
    assert "0.5, 0.4942" in (folder / "report" / "index.html").read_text()


def test_it_is_loaded_exported_and_evaluated_again_with_the_task(run, tmp_path):
    model, reached = load(run, task=Mean(MeanConfig(target=1.0)), log=quiet), 1.0 - 0.8**20
    assert (model.predict(10.0), model.card["step"]) == (pytest.approx(10.0 * reached), 20)
    assert read_config(run, MeanConfig) == ("mean", MeanConfig())
    out = export(run, tmp_path / "model", task=Mean(), log=quiet)
    assert 'model = load("FOLDER", task=task)' in (out / "README.md").read_text()
    assert load(out, task=Mean(), log=quiet).predict(1.0) == pytest.approx(reached)
    with one_line("field 'task' is unknown or missing, got 'mean'; if it is your own, pass"):
        load(out, log=quiet)
    before = (run / "evaluation.json").read_bytes()
    (run / "evaluation.json").unlink()
    evaluate(Mean(), run, experiment="mean", log=quiet)
    assert (run / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "task", "words"),
    [
        ({}, None, "field 'task' is unknown or missing, got 'mean'; if it is your own, pass the task itself"),
        ({}, linear(), "is of the task 'mean', got one of 'own'; pass the task that was trained"),
        ({"target": "far"}, Mean(), "target is 'far', which is of the wrong type"),
        ({"momentum": 0.9}, Mean(), "field 'momentum' is unknown or missing"),
        ({"seed": -1}, Mean(), "changed: seed must be"),
    ],
)
def test_a_folder_that_does_not_fit_the_task_is_refused_in_a_line(run, change, task, words):
    config = {**read(run / "config.json"), **change}
    del config[SEAL]
    (run / "config.json").write_text(json.dumps(config))
    with one_line(words, str(run)):
        load(run, task=task, log=quiet)


def test_a_name_of_ours_is_refused_before_anything_is_written(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Ours(MeanConfig):
        task: ClassVar[str] = "video"

    with one_line(r"Ours\.task must not be 'video'"):
        fit(Mean(Ours()), out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()
