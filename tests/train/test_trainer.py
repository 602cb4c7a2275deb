"""Averaged parameters, early stops, more steps and trackers."""

import dataclasses
import shutil
import struct

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.errors import one_line
from tests.tasks import assert_resumes
from tests.train.commands import files_of, quiet, read
from tests.train.own import STEADY, VALIDATION, linear
from unroll_jax.train import load
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


def test_the_average_is_the_weighted_mean_of_what_is_trained():
    start = {"w": np.full((8, 8), 0.1, "f4"), "fixed": np.ones(3, "f4")}
    task = linear(init=lambda key: start, ema=DECAY, primal=QUICK)
    task = task._replace(trained=lambda params: {"w": True, "fixed": False})
    plan = make_plan(task)
    state, step = init_state(task, plan, 0), jit_step(task, plan)
    seen = []
    for _, batch in zip(range(4), task.batches(0, 0, None), strict=False):
        state, _ = step(state, batch)
        seen.append(np.asarray(state.params["w"], np.float64))
    weights = DECAY ** np.arange(3, -1, -1)
    averaged = evaluated_params(plan, state)
    expected = np.average(seen, axis=0, weights=weights)
    assert_allclose(averaged["w"], expected, rtol=1e-5)
    assert not np.allclose(averaged["w"], state.params["w"], rtol=1e-3)
    assert_array_equal(averaged["fixed"], np.ones(3))
    assert len(jax.tree.leaves(state.average)) == 2, "a count, and the average of w"


def test_a_run_with_an_average_resumes_bit_for_bit(tmp_path):
    task = linear(ema=DECAY, primal=QUICK)
    (whole,) = fit(task, out=tmp_path / "whole", log=quiet)
    again = tmp_path / "again"
    assert_resumes(task, whole, again, experiment="own", steps=(4, 6))
    model = load(whole, task=task)
    losses = np.mean(model.predict(VALIDATION), axis=0)
    row = model.card["validation"]
    assert_allclose(losses, row["layer_losses"], rtol=1e-5)
    score = f"validation loss: {row['layer_losses'][-1]:.4g}"
    for words in ("task own", f"step {model.card['step']} of 6, 64 parameters", score):
        assert words in str(model)
    assert ("NOT feasible" in str(model)) is not row["feasible"]


def test_a_run_stops_early_and_may_go_on(tmp_path):
    options = {"steps": 12, "primal": STILL}
    steps_of = lambda run: read(run / "status.json")["steps"]
    run, log = trained(tmp_path / "run", early_stop=2, **options)
    # the first validation, of step 2, is the best
    assert any("stopped at step 6 of 12" in line for line in log)
    assert "of 6 (12 planned)," in str(load(run, task=linear(**options)))
    assert (read(run / "status.json")["state"], steps_of(run)) == ("finished", 6)
    before = files_of(run / "checkpoints")
    _, log = trained(run, early_stop=2, **options)
    assert any("finished already after 6 steps" in line for line in log)
    assert files_of(run / "checkpoints") == before
    trained(run, early_stop=3, **options)
    assert steps_of(run) == 8
    trained(run, **options)
    assert steps_of(run) == 12


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


def test_tensorboard_has_the_rows_of_metrics_once(tmp_path):
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
        assert_allclose(value, expected[name], rtol=1e-6)


@pytest.mark.nightly
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


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb"):
        with one_line(rf"pip install 'unroll_jax\[{name}\]'"):
            trained(tmp_path / "run", log=(name,))
    assert not list(tmp_path.iterdir())
