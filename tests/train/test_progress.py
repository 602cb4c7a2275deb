"""Progress of a run: a bar on a terminal, lines in a log file."""

import io
import sys

import pytest

from unroll_jax.train.system.terminal import pausing, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_log_file_has_lines_and_a_terminal_a_bar_with_the_pause(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("erm", total=4, done=1) as bar:
        bar.set_postfix({"loss": "1.5"}, refresh=False)
        with pausing(bar, "evaluating"):
            pass
        bar.update(3)
    shown = stream.getvalue()
    assert ("\r" in shown) == ("erm, evaluating" in shown) == stream.isatty()
    if not stream.isatty():
        first, *_, last = shown.splitlines()
        assert first.startswith("erm: step 1 of 4 (25%)")
        assert last.startswith("erm: step 4 of 4 (100%), 00:00 left, loss=1.5")


def test_processes_but_the_first_show_nothing(capsys):
    with progress("erm", total=2, shown=False) as bar, pausing(bar, "compiling"):
        bar.update()
    assert capsys.readouterr().err == ""
