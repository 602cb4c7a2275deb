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
from unroll_jax.train import load
from unroll_jax.train.config.constrained import ConstrainedConfig
from unroll_jax.train.config.constraints import ConstraintConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.constraints import constrained_training
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


@dataclasses.dataclass(frozen=True)
class StepsConfig(ConstrainedConfig):
    """Options of constrained training."""

    task: ClassVar[str] = "steps"
    metric: ClassVar[str] = "squared error"

    steps: int = 4
    validate_every: int = 2
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(alpha=(0.1,), reference=None)
    )

    def label(self):
        return f"{self.method}-seed{self.seed}"


class Steps(Mean):
    """Two layers under descent constraints, whose evaluation says nothing of noise and method."""

    num_layers = 2

    def __init__(self, config=StepsConfig()):
        self._config = config
        self.training = constrained_training(config, num_layers=2, num_examples=None)

    def init(self, key):
        return jnp.zeros(2)

    def batches(self, start_step, rows):
        while True:
            yield np.ones(self.config.batch_size, np.float32)

    def losses(self, params, batch, probe):
        places = jnp.concatenate([jnp.zeros(1), jnp.cumsum(params)])
        return (places - batch[:, None]) ** 2, {}

    def _read(self, params):
        return np.asarray(self.losses(params, jnp.ones(4), None)[0])

    def validate(self, params, multipliers):
        return Validation(self._read(params), {})

    def evaluate(self, params, folder):
        return {"mean": float(params.sum())}, self._read(params)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The finished run of a `Mean`."""
    return fit(Mean(), out=tmp_path_factory.mktemp("mean") / "run", log=quiet)[0]


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
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
    assert read(folder / "report" / "summary.json")["runs"] == [
        {"run": "seed0", **{key: read(folder / "status.json").get(key) for key in
                            ("state", "steps", "compile_seconds", "messages")}, **evaluation}
    ]  # fmt: skip
    assert "0.5, 0.4942" in (folder / "report" / "index.html").read_text()


def test_it_is_loaded_with_the_task(run):
    task = Mean(MeanConfig(target=1.0))
    model = load(run, task=task, log=quiet)
    assert model.predict(10.0) == pytest.approx(10.0 * (1.0 - 0.8**20))
    assert model.card["step"] == 20
    assert read_config(run, MeanConfig) == ("mean", MeanConfig())


def test_its_export_is_loaded_with_the_task(run, tmp_path):
    out = export(run, tmp_path / "model", task=Mean(), log=quiet)
    card = (out / "README.md").read_text()
    assert 'model = load("FOLDER", task=task)' in card
    assert load(out, task=Mean(), log=quiet).predict(1.0) == pytest.approx(1.0 - 0.8**20)
    with pytest.raises(UserError, match="field 'task' is unknown or missing, got 'mean'; if it is your own, pass"):
        load(out, log=quiet)


def test_it_is_evaluated_again(run):
    before = (run / "evaluation.json").read_bytes()
    (run / "evaluation.json").unlink()
    evaluate(Mean(), run, experiment="mean", log=quiet)
    assert (run / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "task", "words"),
    [
        ({}, None, "field 'task' is unknown or missing, got 'mean'; if it is your own, pass the task itself"),
        ({}, Steps(), "is of the task 'mean', got one of 'steps'; pass the task that was trained"),
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

    with pytest.raises(UserError, match=r"Ours\.task must not be 'video'"):
        fit(Mean(Ours()), out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()
