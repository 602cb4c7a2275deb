"""Progress of a run: a bar on a terminal, lines in a log file."""

import io
import sys

import pytest

from unroll_jax.train.system.terminal import pausing, progress, safe_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_log_file_has_lines_and_a_terminal_a_bar_with_the_pause(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("plain", total=4, done=1) as bar:
        bar.set_postfix({"loss": "1.5"}, refresh=False)
        with pausing(bar, "evaluating"):
            pass
        bar.update(3)
    shown = stream.getvalue()
    assert ("\r" in shown) == ("plain, evaluating" in shown) == stream.isatty()
    if not stream.isatty():
        first, *_, last = shown.splitlines()
        assert first.startswith("plain: step 1 of 4 (25%)")
        assert last.startswith("plain: step 4 of 4 (100%), 00:00 left, loss=1.5")


def test_processes_but_the_first_show_nothing(capsys):
    with progress("plain", total=2, shown=False) as bar, pausing(bar, "compiling"):
        bar.update()
    assert capsys.readouterr().err == ""


def test_output_escapes_what_would_steer_a_terminal_or_what_it_cannot_show(monkeypatch):
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii", write_through=True))
    with safe_output():
        print("a\x1b[2J\tb\x00\x9b\u202e\udcff é")
    assert content.getvalue() == rb"a\x1b[2J" + b"\t" + rb"b\x00\x9b\u202e\udcff \xe9" + b"\n"


def test_a_bar_is_drawn_through_safe_output(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with safe_output(), progress("a\x1bb", total=1) as bar:
        bar.update()
    assert "\ra\\x1bb: " in sys.stderr.getvalue()
