"""A task of one's own on the way back: loaded and exported by the options of its run, and refused in one line."""

import json

import numpy as np
import pytest

from tests.train.test_fit import VALIDATION, linear
from train.config.constraints import ConstraintConfig
from train.config.errors import UserError
from train.config.own import OwnConfig
from train.config.video import VideoConfig
from train.constraints import DescentConstraints
from train.experiments import EXPERIMENTS
from train.export import export
from train.main import fit
from train.predict import load
from train.tasks.own import OwnTask


def quiet(line):
    pass


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folder of the runs of a task with both methods."""
    folder = tmp_path_factory.mktemp("own") / "run"
    fit(linear(method="both", steps=2), out=folder, log=quiet)
    return folder


@pytest.mark.parametrize("passed", [{"method": "both", "steps": 2}, {"steps": 33, "seed": 9, "method": "erm"}])
@pytest.mark.parametrize("method", ["erm", "constrained"])
def test_the_options_of_a_model_are_those_of_its_run_whatever_the_task_has(both, tmp_path, method, passed):
    run, task = both / method, linear(**passed)
    out = export(str(run), str(tmp_path / "model"), task=task, log=quiet)
    found = read(out / "config.json")
    assert (found["config"]["method"], found["config"]["steps"], found["config"]["seed"]) == (method, 2, 0)
    assert found["feasible"] is None if method == "erm" else found["multipliers"] is not None
    losses = read(run / "evaluation.json")["layer_losses"]
    for folder in (run, out):
        model = load(folder, task=task, log=quiet)
        assert isinstance(model.config, OwnConfig)
        assert (model.config.method, model.config.steps, model.config.seed) == (method, 2, 0)
        np.testing.assert_allclose(model.predict(VALIDATION).mean(axis=0), losses, rtol=1e-6)


def test_only_a_reference_that_is_given_binds_the_input():
    counts = [
        DescentConstraints(OwnConfig(constraints=given), num_layers=3, steps_an_epoch=1).number
        for given in (ConstraintConfig(alpha=(0.1,)), ConstraintConfig(alpha=(0.1,), reference=2.0))
    ]
    assert counts == [3, 4]
    assert EXPERIMENTS["video-ut"].config == VideoConfig(constraints=ConstraintConfig(reference=8.0))


def test_options_of_another_type_are_refused_where_the_task_is_made():
    with pytest.raises(UserError, match=r"--method must be 'erm' or 'constrained' or 'both', got 'x'"):
        linear(method="x")
    with pytest.raises(
        UserError, match=r"--constraints\.alpha must be a tuple \(x, \.\.\.\), where x is a number, got 0\.1"
    ):
        linear(constraints=ConstraintConfig(alpha=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["constrained", "export"])
def test_a_task_is_read_onto_its_own_mesh(both, tmp_path, folder):
    run = both / "constrained"
    where = run if folder == "constrained" else export(run, tmp_path / "model", task=linear(), log=quiet)
    assert load(where, task=linear(mesh="data=1"), log=quiet).config.mesh == "data=1"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("own", "got 'own' of type str"),
        (OwnConfig(), "got OwnConfig("),
        (OwnTask, "got the class OwnTask"),
        (0, "got 0 of type int"),
    ],
)
@pytest.mark.parametrize("call", [load, export])
def test_what_is_no_task_is_refused_in_a_line(both, call, task, words):
    run = both / "constrained"
    with pytest.raises(UserError, match="task must be the task that was trained") as caught:
        call(run, task=task, log=quiet)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (run / "export").exists()
