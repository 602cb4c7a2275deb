"""Users' tasks, by hand or `own_task`: trained, evaluated, reported, loaded
and exported; their errors."""

import contextlib
import shutil
from pathlib import Path
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from tests.errors import one_line
from tests.tasks import drawn
from tests.train.commands import quiet, read
from tests.train.own import TRAIN, VALIDATION, layer_losses, linear
from unroll_jax.train import load
from unroll_jax.train.config.options import options
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.core.evaluate import evaluate_run
from unroll_jax.train.core.evaluate import read as read_split
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.task import Plan, Task, Trial
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.sharding import make_mesh

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
    "b": [np.int64(3), jax.device_put(np.ones(2))],
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
    with contextlib.chdir(tmp_path_factory.mktemp("mean")):
        (folder,) = fit(mean(), log=quiet)
        assert folder == Path("runs/mean/seed0")
        return folder.absolute()


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_task_of_any_make_is_trained_evaluated_and_reported(trained):
    folder = trained
    evaluation = read(folder / "evaluation.json")
    assert evaluation["mean"] == pytest.approx(1.0 - 0.8**20)
    assert evaluation["best_step"] == 20
    assert evaluation["figure"] == {"a": 0.5, "b": [3, [1.0, 1.0]], "c": [True, None]}
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["loss"] for row in rows][:2] == pytest.approx([1.0, 0.64])
    measured = [row["measured"] for row in rows if row["kind"] == "validation"]
    assert measured == [0.25] * 2
    (row,) = read(folder / "report" / "summary.json")["runs"]
    assert evaluation.items() <= row.items()
    page = (folder / "report" / "index.html").read_text()
    assert "0.5, 0.4942" in page
    assert "figure a" in page, "names in words"


def test_it_is_exported_loaded_and_evaluated_again_with_the_task(run, tmp_path):
    out = export(run, tmp_path / "model", task=mean(), log=quiet)
    assert load(out, task=mean(), log=quiet).predict(10.0) == pytest.approx(
        10.0 * (1.0 - 0.8**20)
    )
    before = (run / "evaluation.json").read_bytes()
    (run / "evaluation.json").unlink()
    evaluate_run(mean(), make_plan(mean()), run, experiment="mean", log=quiet)
    assert (run / "evaluation.json").read_bytes() == before


def test_a_figure_that_is_not_finite_is_refused(run):
    task = mean(figure=float("nan"))
    (run / "evaluation.json").unlink()
    with one_line(r"figures of evaluate\['figure'\] must be finite .* got nan"):
        evaluate_run(task, make_plan(task), run, experiment="mean", log=quiet)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (None, "'task' is unknown or missing, got 'mean'; if it is your own, pass"),
        (linear(), "is of the task 'mean', got one of 'own'; pass the task"),
        ("mean", "task must be the task that was trained"),
    ],
)
def test_a_folder_and_another_task_are_refused(run, task, words):
    for call in (load, export):
        with one_line(words):
            call(run, task=task, log=quiet)
    assert not (run / "export").exists()


def test_the_options_of_a_model_are_those_of_its_run(own_both, tmp_path):
    """But for the mesh."""
    run = own_both / "constrained"
    task = linear(steps=33, seed=9, method="plain", mesh="data=1")
    out = export(str(run), str(tmp_path / "model"), task=task, log=quiet)
    evaluation = read(run / "evaluation.json")
    assert read(out / "config.json")["config"]["steps"] == 6
    for folder in (run, out):
        model = load(folder, task=task, log=quiet)
        config = model.config
        options = (config.method, config.steps, config.seed, config.mesh)
        assert options == ("constrained", 6, 0, "data=1")
        assert model.card["step"] == evaluation["best_step"]
        losses = model.predict(VALIDATION).mean(axis=0)
        assert_allclose(losses, evaluation["layer_losses"], rtol=1e-6)


@pytest.mark.usefixtures("without_a_report")
def test_parameters_may_be_scalars_tuples_and_empty_nodes(tmp_path):
    def init(key):
        pair = (jnp.full((8, 8), 0.1), {})
        return {"pair": pair, "scale": 1.0, "bias": [np.zeros(())], "none": None}

    def losses(params, batch):
        w = params["scale"] * params["pair"][0] + params["bias"][0]
        return layer_losses({"w": w}, batch)

    task = linear(init=init, losses=losses, steps=2)
    (run,) = fit(task, out=tmp_path / "run", log=quiet)
    exported = export(run, tmp_path / "model", task=task, log=quiet)
    params, again = (
        load(folder, task=task, log=quiet).params for folder in (run, exported)
    )
    assert jax.tree.structure(params) == jax.tree.structure(init(None))
    chex.assert_trees_all_equal(params, again)
    assert params["scale"] != 1.0, "a number is trained, too"


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


def test_rows_that_fill_the_last_batch_do_not_count():
    """Batches of eight, of eleven rows of another byte order. Losses see their size."""
    few = {name: array[:11].astype(">f4") for name, array in VALIDATION.items()}
    losses = lambda params, batch: len(batch["clean"]) * layer_losses(params, batch)
    task = linear(losses=losses, test=few)
    params = drawn(task)
    found = read_split(task, params, "test", Trial())["losses"]
    expected = 8 * np.asarray(jax.jit(layer_losses)(params, VALIDATION))[:11]
    assert_allclose(found, expected, rtol=1e-4)
