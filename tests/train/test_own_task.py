"""A task of one's own on the way back: loaded and exported by the options of its run, and refused in one line."""

from types import SimpleNamespace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read, refused
from tests.train.test_any_task import Mean
from tests.train.test_fit import TRAIN, VALIDATION, linear
from unroll_jax.train import load
from unroll_jax.train.config.constrained import OwnConfig
from unroll_jax.train.exporting import export
from unroll_jax.train.loop import Callbacks
from unroll_jax.train.main import fit
from unroll_jax.train.metrics import read_metrics


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folder of the runs of a task with both methods."""
    folder = tmp_path_factory.mktemp("own") / "run"
    fit(linear(method="both", steps=2), out=folder, log=quiet)
    return folder


@pytest.mark.parametrize("passed", [{"method": "both", "steps": 2}, {"steps": 33, "seed": 9, "method": "plain"}])
@pytest.mark.parametrize("method", ["plain", "constrained"])
def test_the_options_of_a_model_are_those_of_its_run_whatever_the_task_has(both, tmp_path, method, passed):
    run, task = both / method, linear(**passed)
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
    """A task whose figures are numbers of NumPy and JAX, or what it is given."""

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
def test_a_figure_that_is_no_finite_number_is_refused_in_a_line(tmp_path, monkeypatch, figure, words):
    monkeypatch.setattr(Measured, "figure", figure)
    with one_line(words):
        fit(Measured(), out=tmp_path / "run", log=quiet)
