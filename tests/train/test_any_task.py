"""Users' tasks, by hand or `own_task`: trained, evaluated, reported, loaded
and exported; their errors."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.own import TRAIN, VALIDATION, layer_losses, linear
from unroll_jax.train import load
from unroll_jax.train.config.options import options
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.core.evaluate import evaluate_run
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.task import Plan, Task
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.sharding import make_mesh
from unroll_jax.train.tasks.own.options import OwnConfig

pytestmark = pytest.mark.xdist_group("own-runs")


@options
class MeanConfig(RunConfig):
    """The number that batches hold."""

    task: ClassVar[str] = "mean"
    metric: ClassVar[str] = "squared error"
    target: float = 1.0

    def label(self):
        return f"seed{self.seed}"

    def describe(self):
        return "a mean"


FIGURE = {
    "a": np.float32(0.5),
    "b": [np.int64(3), jnp.ones(2)],
    "c": (np.bool_(True), None),
}


USUAL = MeanConfig()


def mean(options=USUAL, figure=FIGURE):
    """One parameter, with figures as NumPy and JAX give them."""

    def batches(seed, start_step, rows):
        while True:
            yield np.full(64, options.target, np.float32)

    def baselines(params, readings):
        return {
            "mean": float(params),
            "halves": [0.5, float(params) / 2],
            "figure": figure,
        }

    return Task(
        options=options,
        num_layers=0,
        init=lambda key: jnp.zeros(()),
        batches=batches,
        examples=lambda split, trial: [np.full(1, options.target, np.float32)],
        losses=lambda params, batch, trial: ((params - batch)[:, None] ** 2, {}),
        make=mean,
        predict=lambda params, inputs: inputs * float(params),
        summary=lambda evaluation: f"the mean is {evaluation['mean']:.1f}",
        row=lambda params, reading: {"measured": np.float32(0.25)},
        baselines=baselines,
        plan=lambda task: Plan(
            optimizer=optax.sgd(0.1),
            num_steps=20,
            validate_every=10,
            mesh=make_mesh(None, batch_size=64),
            weights=np.ones(1),
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    log = []
    with contextlib.chdir(tmp_path_factory.mktemp("mean")):
        (folder,) = fit(mean(), log=log.append)
        assert folder == Path("runs/mean/seed0")
        return folder.absolute(), log


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def test_a_task_of_any_make_is_trained_evaluated_and_reported_with_figures_of_numpy_and_jax(
    trained,
):
    folder, log = trained
    evaluation = read(folder / "evaluation.json")
    assert (evaluation["mean"], evaluation["best_step"]) == (
        pytest.approx(1.0 - 0.8**20),
        20,
    )
    assert evaluation["figure"] == {"a": 0.5, "b": [3, [1.0, 1.0]], "c": [True, None]}
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["loss"] for row in rows][:2] == pytest.approx([1.0, 0.64])
    assert [row["measured"] for row in rows if row["kind"] == "validation"] == [
        0.25
    ] * 2
    assert any(
        line.startswith("mean ") and line.endswith(" 0.9885")
        for text in log
        for line in text.splitlines()
    )
    assert any("\nbest step " in text and "\nfigure a " in text for text in log)
    (row,) = read(folder / "report" / "summary.json")["runs"]
    status = {
        key: read(folder / "status.json").get(key)
        for key in ("state", "steps", "compile_seconds", "messages")
    }
    assert row == {"run": "seed0", **status, **evaluation}
    assert "0.5, 0.4942" in (folder / "report" / "index.html").read_text()


def test_it_is_exported_loaded_and_evaluated_again_with_the_task(run, tmp_path):
    out = export(run, tmp_path / "model", task=mean(), log=quiet)
    assert load(out, task=mean(), log=quiet).predict(10.0) == pytest.approx(
        10.0 * (1.0 - 0.8**20)
    )
    with one_line(
        "field 'task' is unknown or missing, got 'mean'; if it is your own, pass"
    ):
        load(out, log=quiet)
    before = (run / "evaluation.json").read_bytes()
    (run / "evaluation.json").unlink()
    evaluate_run(mean(), make_plan(mean()), run, experiment="mean", log=quiet)
    assert (run / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (float("nan"), r"figures of evaluate\['figure'\] must be finite .* got nan"),
        ({"a": object()}, r"\['figure'\]\['a'\] must be .* got object"),
    ],
)
def test_a_figure_that_is_no_finite_number_is_refused_in_a_line(run, figure, words):
    task = mean(figure=figure)
    (run / "evaluation.json").unlink()
    with one_line(words):
        evaluate_run(task, make_plan(task), run, experiment="mean", log=quiet)


@pytest.mark.parametrize(
    ("change", "task", "words"),
    [
        (
            {},
            None,
            (
                "field 'task' is unknown or missing, got 'mean'; if it is your own,"
                " pass the task itself"
            ),
        ),
        (
            {},
            linear(),
            "is of the task 'mean', got one of 'own'; pass the task that was trained",
        ),
        ({}, "mean", "task must be the task that was trained"),
        ({"target": "far"}, mean(), "target must be a valid number, got 'far'"),
        ({"momentum": 0.9}, mean(), "there is no option momentum"),
    ],
)
def test_a_folder_and_a_task_that_do_not_fit_are_refused_in_a_line(
    run, change, task, words
):
    if change:
        config = {**read(run / "config.json"), **change}
        (run / "config.json").write_text(json.dumps(config))
    for call in (load, export):
        with one_line(words):
            call(run, task=task, log=quiet)
    assert not (run / "export").exists()


@pytest.mark.parametrize("method", ["plain", "constrained"])
def test_the_options_of_a_model_are_those_of_its_run_but_for_the_mesh(
    own_both, tmp_path, method
):
    run, task = (
        own_both / method,
        linear(steps=33, seed=9, method="plain", mesh="data=1"),
    )
    out = export(str(run), str(tmp_path / "model"), task=task, log=quiet)
    card, evaluation = read(out / "config.json"), read(run / "evaluation.json")
    assert (
        card["config"]["method"],
        card["config"]["steps"],
        card["config"]["seed"],
    ) == (method, 6, 0)
    assert (
        card["feasible"] is None
        if method == "plain"
        else card["multipliers"] is not None
    )
    for folder in (run, out):
        model = load(folder, task=task, log=quiet)
        assert isinstance(model.config, OwnConfig)
        options = (
            model.config.method,
            model.config.steps,
            model.config.seed,
            model.config.mesh,
        )
        assert options == (method, 6, 0, "data=1")
        assert model.card["step"] == evaluation["best_step"]
        np.testing.assert_allclose(
            model.predict(VALIDATION).mean(axis=0),
            evaluation["layer_losses"],
            rtol=1e-6,
        )


def test_both_methods_are_compared_and_other_arrays_are_other_data(own_both):
    summary = read(own_both / "report" / "summary.json")
    assert {run["method"] for run in summary["runs"]} == {"plain", "constrained"}
    other = linear(method="both", train={**TRAIN, "noisy": TRAIN["noisy"] + 1})
    with one_line(r"found\.train was \d+, is now \d+; pass "):
        export(own_both / "constrained", task=other, log=quiet)
    with one_line(r"found\.train was \d+, is now \d+; pass "):
        fit(other, out=own_both, log=quiet)


def test_functions_of_ones_own_stay_where_options_change(tmp_path):
    def losses(params, batch, trial):
        return 7.0 * layer_losses(params, batch), {}

    given = {"losses": losses, "read": None, "row": lambda params, reading: {"mine": 1}}
    task = linear(method="both", functions=given)
    runs = fit(task, out=tmp_path / "run", log=quiet)
    for run in runs:
        rows = read_metrics(run / "metrics.jsonl")
        validations = [row for row in rows if row["kind"] == "validation"]
        assert all(row["mine"] == 1 for row in validations)
        expected = 7.0 * np.mean((VALIDATION["noisy"] - VALIDATION["clean"]) ** 2)
        assert validations[0]["layer_losses"][0] == pytest.approx(expected, rel=1e-5)


def test_figures_that_are_no_json_are_named_before_training(tmp_path):
    given = {"baselines": lambda params, readings: {"key": object()}}
    with one_line("evaluate.*'key'.* must be finite numbers"):
        fit(linear(functions=given), out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()
