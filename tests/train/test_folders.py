"""Run folders that others change: moved, deleted, edited, of other versions; and
finished runs that go on."""

import asyncio
import contextlib
import functools
import json
import shutil
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from tests.errors import one_line
from tests.train.commands import files_of, quiet, read, status_of
from tests.train.own import linear
from unroll_jax.train import load
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.run import OptimizerConfig, PrimalConfig
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.core.evaluate import evaluate_run
from unroll_jax.train.core.folder import READS, VERSION
from unroll_jax.train.core.metrics import Callbacks, read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.images.options import ImageFeedForwardConfig

pytestmark = [
    pytest.mark.xdist_group("own-runs"),
    pytest.mark.usefixtures("without_a_report"),
]
steady = functools.cache(linear)  # one compiled step for all runs


@pytest.fixture
def run(own_both, tmp_path):
    return shutil.copytree(own_both / "constrained", tmp_path / "run")


def evaluate_again(folder, *, task, log):
    evaluate_run(task, make_plan(task), folder, experiment="own", log=log)


def fit_again(folder, *, task, log):
    fit(task, out=folder, log=log)


class Does(Callbacks):
    def __init__(self, event, step, act):
        setattr(self, event, lambda row: act() if row["step"] == step else None)


def moved(folder):
    folder.rename(folder.with_name("moved"))


def replaced(folder):
    moved(folder)
    folder.mkdir(exist_ok=True)  # a save under way may make it first
    (folder / "thesis.tex").touch()


# On a busy machine, threads of TensorStore end after a save that failed has closed
# their event loop, or before its other writes have begun.
given_up = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)


@given_up
@pytest.mark.parametrize(
    ("away", "event", "step"),
    [(moved, "on_step", 3), (replaced, "on_step", 6), (moved, "on_validation", 4)],
)
def test_a_run_that_is_moved_goes_on_from_its_place(away, event, step, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(
        UserError,
        match=(
            r"^(?!.*no checkpoint).*moved or deleted .* a save under way is lost; .*$"
        ),
    ):
        fit(
            steady(),
            out=folder,
            callbacks=[Does(event, step, lambda: away(folder))],
            log=quiet,
        )
    left = [] if away is moved else [folder / "thesis.tex"]
    assert [path for path in folder.rglob("*") if path.is_file()] == left
    assert folder.exists() == bool(left)
    fit(steady(), out=tmp_path / "moved", log=quiet)
    rows = read_metrics(tmp_path / "moved" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 7)]


@given_up
def test_late_writes_of_a_failed_save_leave_no_files(tmp_path, monkeypatch):
    """Orbax gives a save up at the first write that fails, while others continue."""

    async def refuse(*_):
        raise OSError(28, "no space left")

    async def write_late(path, text):
        await asyncio.sleep(0.3)
        path.parent.mkdir(parents=True, exist_ok=True)  # as TensorStore makes it
        path.write_text(text)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "_save_fn", refuse)
    place = "orbax.checkpoint._src.path.async_path.write_text"
    monkeypatch.setattr(place, write_late)
    with Checkpoints(tmp_path / "checkpoints", log=quiet) as saves:
        saves.save(2, {"w": jnp.ones(3)}, {}, score=0.0)
        assert saves.kept() is None
    time.sleep(1.0)  # longer than any late write
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_writes_that_never_end_hold_up_no_error(tmp_path, monkeypatch):
    """As on a disk of a network."""
    monkeypatch.setattr("unroll_jax.train.core.checkpoint.PATIENCE", 0.5)
    ended = threading.Event()
    kind = type("Write", (threading.Thread,), {"__module__": "orbax.writes"})
    for _ in range(100):
        kind(target=ended.wait, daemon=True).start()
    began = time.monotonic()
    with Checkpoints(tmp_path / "checkpoints", log=quiet) as saves:
        kept = saves.kept()
    seconds = time.monotonic() - began
    ended.set()
    assert kept is None
    assert seconds < 25.0  # 0.5 s for all, not for each


def test_the_error_of_a_callback_names_the_checkpoint(tmp_path):
    def fail():
        raise mine

    for number, mine in enumerate((KeyError("mine"), OSError(28, "mine"))):
        folder = tmp_path / str(number)
        with pytest.raises(type(mine)) as caught:
            fit(steady(), out=folder, callbacks=[Does("on_step", 5, fail)], log=quiet)
        assert caught.value is mine
        assert mine.__notes__ == ["the checkpoint of step 4 is kept"]
        assert status_of(folder)["state"] == "failed"


def test_seconds_of_training_add_up_over_a_resume(tmp_path, monkeypatch):
    clock = [0.0]

    class Ticks(Callbacks):
        def on_step(self, row):
            clock[0] += 10.0

    def fail():
        raise KeyError

    folder, ticks = tmp_path / "run", Ticks()
    frozen = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("unroll_jax.train.core.loop.time", frozen)
    with pytest.raises(KeyError):
        fit(
            steady(), out=folder, callbacks=[ticks, Does("on_step", 5, fail)], log=quiet
        )
    assert status_of(folder)["train_seconds"] == 40.0, "those of the checkpoint"
    clock[0] += 500.0  # between the processes
    fit(steady(), out=folder, callbacks=[ticks], log=quiet)
    assert status_of(folder)["train_seconds"] == 60.0
    evaluation = read(folder / "evaluation.json")
    assert evaluation["train_seconds"] == 10.0 * evaluation["best_step"]


def test_figures_that_are_no_json_leave_no_folder(tmp_path):
    """Those of data and, before any training, those of an evaluation."""
    for name, wrong, words in (
        ("fingerprint", {"size": jnp.inf}, "must be finite numbers"),
        ("fingerprint", {1: 2}, "must be texts"),
        ("fingerprint", [1], "must be a dict"),
        ("baselines", {"key": object()}, "evaluate.*'key'.* must be finite numbers"),
    ):
        task = steady()._replace(**{name: lambda *_, wrong=wrong: wrong})
        with one_line(words):
            fit(task, out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_during_training_is_replaced_at_the_end(tmp_path):
    folder, steps = tmp_path / "run", []
    task = linear(init=lambda key: {"w": jnp.full((8, 8), -0.05)})

    def evaluate():
        evaluate_again(folder, task=task, log=quiet)
        steps.append(read(folder / "evaluation.json")["best_step"])

    fit(task, out=folder, callbacks=[Does("on_validation", 4, evaluate)], log=quiet)
    last = read(folder / "evaluation.json")
    assert steps[0] < last["best_step"]
    # one that ends after the run writes nothing either
    (folder / "evaluation.json").write_text(json.dumps(last | {"best_step": 2}))
    fit(task, out=folder, log=quiet)
    assert read(folder / "evaluation.json") == last


MISFITS = {
    "dtype": (
        contextlib.nullcontext,
        "bfloat16",
        "params/w is float32 there, bfloat16 here; pass the task",
    ),
    "JAX_ENABLE_X64": (
        jax.enable_x64,
        "float32",
        "is float32 there, float64 here; run with JAX_ENABLE_X64",
    ),
    "JAX_DEFAULT_PRNG_IMPL": (
        lambda: jax.default_prng_impl("rbg"),
        "float32",
        r"key is \(2,\) there, \(4,\) here; run with JAX_DEFAULT_PRNG_IMPL",
    ),
}


@pytest.mark.parametrize(("context", "dtype", "words"), MISFITS.values(), ids=MISFITS)
def test_a_run_whose_checkpoint_does_not_fit_stays(run, context, dtype, words):
    def init(key):
        return {"w": jnp.full((8, 8), 0.1, dtype)}

    before = files_of(run)
    with context(), one_line(words):
        fit(linear(init=init, steps=8), out=run, log=quiet)
    assert files_of(run) == before


def test_runs_of_other_versions_are_named_by_every_command(run):
    values = read(run / "config.json")
    del values["version"]  # as 0.1 wrote it
    for version, older in (("0.1", values), ("0.2", values | {"version": "0.2"})):
        (run / "config.json").write_text(json.dumps(older))
        for call in (fit_again, load, evaluate_again, export):
            with one_line(
                f"was written by version {version} of unroll_jax, this is {VERSION}"
            ):
                call(run, task=steady(), log=quiet)


def test_a_run_of_a_readable_older_version_goes_on(run, monkeypatch):
    values = read(run / "config.json") | {"version": "0.0"}
    (run / "config.json").write_text(json.dumps(values))
    monkeypatch.setitem(READS, VERSION, ("0.0",))
    task = steady()
    assert (
        load(run, task=task, log=quiet).card["step"]
        == read(run / "evaluation.json")["best_step"]
    )
    fit(task, out=run, log=quiet)


def test_schedules_that_depend_on_the_end_are_known():
    steady_rates = {"schedule": "constant", "warmup_share": 0.0}
    for rates in ({"schedule": "cosine"}, {"warmup_share": 0.1}):
        primal = PrimalConfig(**steady_rates | rates)
        assert linear(primal=primal).options.tied_to_end
    for schedule in ("cosine", "poly", "staircase"):
        rates = OptimizerConfig(schedule=schedule)
        tied = ImageFeedForwardConfig(optimizer=rates).tied_to_end
        assert tied == (schedule != "staircase")
    assert not linear().options.tied_to_end
    constraints = ConstraintConfig(alpha=(0.1,), warmup_steps=0.5)
    assert linear(constraints=constraints).options.tied_to_end
    assert [constraints.warmup(steps) for steps in (6, 100)] == [3, 50]


def test_a_finished_run_goes_on_as_a_longer_one(run, tmp_path):
    task, log = linear(steps=10), []
    fit(steady(), out=run, log=log.append)
    assert "finished already after 6 steps; for more steps, raise --steps" in log[0]
    fit(task, out=run, log=log.append)
    assert "going on from the checkpoint of step 6" in log
    assert read(run / "config.json")["steps"] == 10
    fit(task, out=tmp_path / "whole", log=quiet)
    assert read_metrics(run / "metrics.jsonl") == read_metrics(
        tmp_path / "whole" / "metrics.jsonl"
    )
    for other, words in (
        ({}, "steps was 10, is now 6"),
        ({"steps": 12, "seed": 1}, "seed was 0, is now 1"),
    ):
        with one_line(words):
            fit(steady(**other), out=run, log=quiet)
