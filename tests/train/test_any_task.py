"""Users' tasks, by the protocol or `OwnTask`: trained, evaluated, reported, loaded and exported; their errors."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read, refused
from tests.train.test_fit import TRAIN, VALIDATION, linear
from unroll_jax.train import load
from unroll_jax.train.config.constrained import OwnConfig
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.evaluate import evaluate
from unroll_jax.train.exporting import export
from unroll_jax.train.loop import Callbacks
from unroll_jax.train.main import fit
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.runs import read_config
from unroll_jax.train.sharding.mesh import make_mesh
from unroll_jax.train.system.files import SEAL
from unroll_jax.train.task import PlainRisk, Row, Task, Training, Validation


@dataclasses.dataclass(frozen=True)
class MeanConfig(RunConfig):
    task: ClassVar[str] = "mean"
    metric: ClassVar[str] = "squared error"
    target: float = 1.0

    def label(self):
        return f"seed{self.seed}"

    def describe(self):
        return "a mean"


class Mean(Task):
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
    log = []
    with contextlib.chdir(tmp_path_factory.mktemp("mean")):
        (folder,) = fit(Mean(), log=log.append)
        assert folder == Path("runs/mean/seed0")
        return folder.absolute(), log


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def test_a_task_of_any_make_is_trained_evaluated_and_reported(trained):
    folder, log = trained
    evaluation = read(folder / "evaluation.json")
    assert (evaluation["mean"], evaluation["best_step"]) == (pytest.approx(1.0 - 0.8**20), 20)
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


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    fit(linear(method="both", steps=2), out=folder, log=quiet)
    return folder


@pytest.mark.parametrize("method", ["plain", "constrained"])
def test_the_options_of_a_model_are_those_of_its_run_whatever_the_task_has(both, tmp_path, method):
    run, task = both / method, linear(steps=33, seed=9, method="plain")
    out = export(str(run), str(tmp_path / "model"), task=task, log=quiet)
    card = read(out / "config.json")
    assert (card["config"]["method"], card["config"]["steps"], card["config"]["seed"]) == (method, 2, 0)
    assert card["feasible"] is None if method == "plain" else card["multipliers"] is not None
    losses = read(run / "evaluation.json")["layer_losses"]
    for folder in (run, out):
        model = load(folder, task=task, log=quiet)
        assert isinstance(model.config, OwnConfig)
        assert (model.config.method, model.config.steps, model.config.seed) == (method, 2, 0)
        np.testing.assert_allclose(model.predict(VALIDATION).mean(axis=0), losses, rtol=1e-6)


@pytest.mark.parametrize("folder", ["constrained", "export"])
def test_a_task_is_read_onto_its_own_mesh(both, tmp_path, folder):
    run = both / "constrained"
    where = run if folder == "constrained" else export(run, tmp_path / "model", task=linear(), log=quiet)
    assert load(where, task=linear(mesh="data=1"), log=quiet).config.mesh == "data=1"


@pytest.mark.parametrize("task", ["own", OwnConfig()])
@pytest.mark.parametrize("call", [load, export])
def test_a_task_that_is_none_is_refused_in_a_line(both, call, task):
    run = both / "constrained"
    with one_line("task must be the task that was trained"):
        call(run, task=task, log=quiet)
    assert not (run / "export").exists()


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_the_command_line_says_how_python_goes_on_with_a_task_of_ones_own(both, tmp_path, capsys, command):
    assert "from Python: fit(task, out=FOLDER), load(FOLDER" in refused(capsys, command, str(both / "constrained"))


def test_both_methods_are_compared_and_other_arrays_are_other_data(both):
    assert set(read(both / "report" / "summary.json")["methods"]) == {"plain", "constrained"}
    for method in ("plain", "constrained"):
        assert read(both / method / "config.json")["method"] == method
    other = linear(method="both", steps=2, train={**TRAIN, "noisy": TRAIN["noisy"] + 1})
    for call in (lambda: export(both / "constrained", task=other, log=quiet), lambda: fit(other, out=both, log=quiet)):
        with one_line(r"found\.train was \d+, is now \d+; pass "):
            call()


class Deaf(Callbacks):
    """Hears nothing."""


@pytest.mark.parametrize("callbacks", [Deaf(), [SimpleNamespace(on_step=print)]])
def test_other_callbacks_are_refused_before_a_folder_is_made(tmp_path, callbacks):
    with one_line(r"callbacks must be a list of objects with on_step, .* got .*(Deaf|namespace)"):
        fit(linear(), out=tmp_path / "run", callbacks=callbacks, log=quiet)
    assert not (tmp_path / "run").exists()


class Measured(Mean):
    figure: ClassVar[Any] = {"a": np.float32(0.5), "b": [np.int64(3), jnp.ones(2)], "c": (np.bool_(True), None)}

    def validate(self, params, multipliers):
        return super().validate(params, multipliers)._replace(row={"measured": np.float32(0.25)}, score=np.float32(1))

    def evaluate(self, params, folder):
        return {"mean": float(params), "figure": self.figure}, None


def test_figures_of_numpy_and_jax_are_written_as_numbers(tmp_path):
    (run,) = fit(Measured(), out=tmp_path / "run", log=quiet)
    assert read(run / "evaluation.json")["figure"] == {"a": 0.5, "b": [3, [1.0, 1.0]], "c": [True, None]}
    assert [row["measured"] for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "validation"] == [0.25] * 2


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (float("nan"), r"figures of evaluate\['figure'\] must be finite .* got nan"),
        ([0.5, np.float32("inf")], r"\['figure'\]\[1\] must be finite .* got inf"),
        ({"a": object()}, r"\['figure'\]\['a'\] must be .* got object"),
    ],
)
def test_a_figure_that_is_no_finite_number_is_refused_in_a_line(run, monkeypatch, figure, words):
    monkeypatch.setattr(Measured, "figure", figure)
    (run / "evaluation.json").unlink()
    with one_line(words):
        evaluate(Measured(), run, experiment="mean", log=quiet)
