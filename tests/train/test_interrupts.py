"""SIGTERM and Ctrl-C save and end in one line. A second Ctrl-C ends at once."""

import signal
import time
import weakref

import jax
import numpy as np
import pytest

from tests.train.commands import files_of, metrics_of, status_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import Interrupted, UserError
from unroll_jax.train.core import loop
from unroll_jax.train.system.machine import handling, stopping_at_once

pytestmark = pytest.mark.xdist_group("video-runs")


@pytest.fixture(autouse=True)
def heard():
    """Handles SIGINT, also where a background shell ignores it: started processes
    inherit that, and not a handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "interrupted by Ctrl-C"),
        (signal.SIGTERM, 0, "asked to end by SIGTERM"),
    ],
)
def test_a_run_saves_its_step_and_goes_on(
    both, start, config, tmp_path, at_batch, number, code, words
):
    at_batch(4, lambda batch: signal.raise_signal(number))
    with pytest.raises(
        Interrupted, match=f"{words}, saved at step 4 of 6; the same command goes on"
    ) as caught:
        start(config)
    assert caught.value.code == code
    status = status_of(tmp_path / "run")
    assert (status["state"], status["steps"]) == ("interrupted", 4)
    at_batch(None, lambda batch: None)
    assert "going on from the checkpoint of step 4" in start(config)
    assert metrics_of(tmp_path / "run") == metrics_of(both / "constrained")


def test_a_second_ctrl_c_is_handled_by_nobody():
    before, acts = signal.getsignal(signal.SIGINT), []
    with handling(signal.SIGINT, lambda: acts.append(1)):
        signal.raise_signal(signal.SIGINT)
        assert acts == [1]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL, (
            "the system ends the process, without a traceback"
        )
    assert signal.getsignal(signal.SIGINT) == before


def test_what_the_shell_ignores_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until `heard` ends
    with stopping_at_once():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_falls_into_a_callback_is_not_lost(number):
    class Thing:
        pass

    def wait():
        thing = Thing()
        kept = weakref.ref(thing, lambda _: signal.raise_signal(number))
        with stopping_at_once():
            del thing
            assert kept() is None
            time.sleep(20.0)

    with pytest.raises(Interrupted):
        wait()


# functions that a signal interrupts
LOAD, READ = "tasks.video.task.load", "core.checkpoint._read_arrays"


@pytest.mark.parametrize(
    ("command", "place", "number", "code"),
    [
        ("evaluate run", LOAD, signal.SIGINT, 130),
        ("evaluate run", READ, signal.SIGTERM, 0),
        ("run video-ut --out run/new", LOAD, signal.SIGTERM, 0),
    ],
)
def test_commands_end_in_one_line_and_change_nothing(
    trained, tmp_path, monkeypatch, capsys, command, place, number, code
):
    """A signal is not taken for damage: a fallback would silently evaluate another
    checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        f"unroll_jax.train.{place}", lambda *_, **__: signal.raise_signal(number)
    )
    before = files_of(trained)
    assert main(command.split()) == code
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1
    assert "the same command goes on from what is saved, or begins again" in output.err
    assert "falling back" not in output.out + output.err
    assert files_of(trained) == before


def test_a_state_that_is_not_finite_is_not_saved(
    start, changed, tmp_path, at_batch, monkeypatch
):
    def compile_step(*arguments):
        compiled, seconds = ordinary(*arguments)

        def step(state, batch):
            new, metrics = compiled(state, batch)
            nan = lambda leaf: np.full_like(leaf, np.nan)
            return new._replace(params=jax.tree.map(nan, new.params)), metrics

        return step, seconds

    ordinary = loop._compile
    monkeypatch.setattr(loop, "_compile", compile_step)
    at_batch(1, lambda batch: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(UserError, match="not finite after step 1"):
        start(changed(validate_every=6))
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
