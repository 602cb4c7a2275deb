"""Averaged parameters, early stops, more steps, trackers, and models that print."""

import dataclasses
import shutil
import struct

import jax
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import files_of, read
from tests.train.own import STEADY, VALIDATION, linear
from unroll_jax.train import load
from unroll_jax.train.config.run import PrimalConfig
from unroll_jax.train.core.metrics import read_metrics, scalars
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import evaluated_params, init_state, jit_step
from unroll_jax.train.main import fit

pytestmark = [
    pytest.mark.xdist_group("own-runs"),
    pytest.mark.usefixtures("without_a_report"),
]
QUICK = dataclasses.replace(STEADY, learning_rate=0.05)
# of float32, which no step of this rate changes
STILL = dataclasses.replace(STEADY, learning_rate=1e-15)
DECAY = 0.6


def trained(folder, **options):
    log = []
    (run,) = fit(linear(**options), out=folder, log=log.append)
    return run, log


def test_the_average_is_the_weighted_mean_of_all_parameters_so_far():
    task = linear(ema=DECAY, primal=QUICK)
    plan = make_plan(task)
    state = init_state(task, plan, 0)
    step = jit_step(task, plan)
    batches = task.batches(0, 0, None)
    total = np.zeros((8, 8))
    weights = 0.0
    for _ in range(4):
        state, _ = step(state, next(batches))
        total = DECAY * total + np.asarray(state.params["w"], np.float64)
        weights = DECAY * weights + 1.0
    averaged = np.asarray(evaluated_params(plan, state)["w"])
    np.testing.assert_allclose(averaged, total / weights, rtol=1e-5)
    assert not np.allclose(averaged, state.params["w"], rtol=1e-3)


def test_frozen_parameters_have_no_average_and_stay():
    frozen = {"trained": lambda params: {"w": True, "fixed": False}}
    task = linear(
        init=lambda key: {"w": np.full((8, 8), 0.1, "f4"), "fixed": np.ones(3, "f4")},
        ema=DECAY,
        primal=QUICK,
    )._replace(**frozen)
    plan = make_plan(task)
    state, _ = jit_step(task, plan)(
        init_state(task, plan, 0), next(task.batches(0, 0, None))
    )
    assert len(jax.tree.leaves(state.average)) == 2, "a count, and the average of w"
    averaged = evaluated_params(plan, state)
    np.testing.assert_array_equal(averaged["fixed"], np.ones(3))
    np.testing.assert_allclose(averaged["w"], state.params["w"], rtol=1e-6)


def test_a_run_with_an_average_resumes_bit_for_bit_and_loads_it(tmp_path):
    options = {"ema": DECAY, "primal": QUICK, "steps": 8}
    whole, _ = trained(tmp_path / "whole", **options)
    again = tmp_path / "again"
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "8")
    (again / "status.json").unlink()
    _, log = trained(again, **options)
    assert "going on from the checkpoint of step 6" in log
    digests = [
        read(one / "checkpoints/8/notes/metadata")["digest"][0]
        for one in (whole, again)
    ]
    assert digests[0] == digests[1]

    task = linear(**options)
    model = load(whole, task=task)
    losses = np.mean(model.predict(VALIDATION), axis=0)
    row = model.card["validation"]
    np.testing.assert_allclose(losses, row["layer_losses"], rtol=1e-5)


def test_a_run_stops_after_validations_without_a_better_one_and_may_go_on(tmp_path):
    options = {"steps": 12, "primal": STILL}
    run, log = trained(tmp_path / "run", early_stop=2, **options)
    # the first is the best
    rows = read_metrics(run / "metrics.jsonl")
    steps = [row["step"] for row in rows if row["kind"] == "validation"]
    assert steps == [2, 4, 6]
    assert any("stopped at step 6 of 12" in line for line in log)
    assert "of 6, stopped early," in str(load(run, task=linear(**options)))
    assert read(run / "status.json")["state"] == "finished"
    before = files_of(run / "checkpoints")
    _, log = trained(run, early_stop=2, **options)
    assert any("finished already after 6 steps" in line for line in log)
    assert files_of(run / "checkpoints") == before
    trained(run, early_stop=3, **options)
    assert read(run / "status.json")["steps"] == 8
    trained(run, **options)
    assert read(run / "status.json")["steps"] == 12


def test_an_early_stop_counts_on_over_an_interruption(tmp_path):
    options = {"steps": 12, "primal": STILL, "early_stop": 3}
    run, _ = trained(tmp_path / "run", **options)
    assert read(run / "status.json")["steps"] == 8
    shutil.rmtree(run / "checkpoints" / "8")
    (run / "status.json").unlink()
    trained(run, **options)
    assert read(run / "status.json")["steps"] == 8


def test_a_finished_run_has_a_line_on_more_steps(tmp_path):
    run, _ = trained(tmp_path / "steady")
    _, log = trained(run)
    assert any("for more steps, raise --steps; to train anew" in line for line in log)
    trained(run, steps=8)
    assert read(run / "status.json")["steps"] == 8
    falling = {"primal": PrimalConfig(schedule="cosine")}
    run, _ = trained(tmp_path / "falling", **falling)
    _, log = trained(run, **falling)
    assert any("no more steps can follow, as its schedule" in line for line in log)
    with one_line("schedule or warm-up depend on the end of a run"):
        trained(run, steps=8, **falling)


def test_a_model_prints_task_steps_score_and_feasibility(tmp_path):
    run, _ = trained(tmp_path / "run", primal=QUICK)
    model = load(run, task=linear(primal=QUICK))
    shown = str(model)
    row = model.card["validation"]
    assert "task own" in shown
    assert f"step {model.card['step']} of 6, 64 parameters" in shown
    assert f"validation loss: {row['layer_losses'][-1]:.4g}" in shown
    assert ("NOT feasible" in shown) is not row["feasible"]
    assert f"{abs(row['worst_excess']):.1%}" in shown


def events(folder):
    """The scalars of the event files of a folder, by tag and step, read as the format
    of TFRecord says."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_tensorboard_has_the_rows_of_metrics_once_and_after_a_resume(tmp_path):
    pytest.importorskip("tensorboardX")
    options = {"log": ("tensorboard",), "primal": QUICK}
    run, _ = trained(tmp_path / "run", **options)
    shutil.rmtree(run / "checkpoints" / "6")
    (run / "status.json").unlink()
    trained(run, **options)
    expected = {}
    for row in read_metrics(run / "metrics.jsonl"):
        kind, step = row.pop("kind"), row["step"]
        for tag, one in scalars(kind, row).items():
            expected[tag.replace(" ", "_"), step] = one
    written = events(run / "tensorboard")
    assert written.keys() == expected.keys()
    for name, value in written.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)


@pytest.mark.slow
def test_weights_and_biases_takes_rows_offline_under_one_number(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    options = {"log": ("wandb",), "primal": QUICK}
    run, _ = trained(tmp_path / "run", **options)
    trained(run, steps=8, **options)
    number = (run / "wandb" / "id").read_text()
    files = list((run / "wandb").glob(f"offline-run-*/run-{number}.wandb"))
    assert len(files) == 2
    assert all(b"train/loss" in path.read_bytes() for path in files)


def test_a_tracker_that_is_not_installed_is_named_before_a_folder_is_made(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb"):
        with one_line(rf"pip install 'unroll_jax\[{name}\]'"):
            trained(tmp_path / "run", log=(name,))
    assert not list(tmp_path.iterdir())
