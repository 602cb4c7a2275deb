"""Progress of a run: a bar on a terminal, a few lines in a log file."""

import io

import pytest

from unroll_jax.train.system.terminal import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown():
    """``shown(steps, seconds, **options)``: the lines of a log file after so many steps, which take so long each."""

    def lines(steps, seconds, *, words=None, compiling=0.0, **options):
        now, stream = [0.0], io.StringIO()
        with Progress("erm", stream=stream, clock=lambda: now[0], **options) as bar:
            bar.words(words or {})
            if compiling:
                with bar.pausing("compiling"):
                    now[0] += compiling
            for _ in range(steps):
                now[0] += seconds
                bar.step()
        assert "\r" not in stream.getvalue()
        return stream.getvalue().splitlines()

    return lines


def test_a_log_file_has_a_line_for_every_tenth_and_at_least_every_half_minute(shown):
    lines = shown(200, 1.0, total=200, words={"loss": "1.5"})
    assert lines[0] == "erm: step 20 of 200 (10%), 03:00 left, loss 1.5"
    assert lines[-1] == "erm: step 200 of 200 (100%), 00:00 left, loss 1.5"
    assert len(lines) == 10
    assert [line.split()[2] for line in shown(12, 10.0, total=1000)] == ["3", "6", "9", "12"]
    assert shown(1000, 0.001, total=1000) == ["erm: step 1000 of 1000 (100%), 00:00 left"]


def test_pauses_and_steps_of_an_earlier_process_do_not_count_for_the_time_left(shown):
    assert shown(10, 1.0, total=100, compiling=600.0) == [
        "erm: compiling",
        "erm: step 1 of 100 (1%), 01:39 left",
        "erm: step 10 of 100 (10%), 01:30 left",
    ]
    assert shown(1, 2.0, total=100, done=79) == ["erm: step 80 of 100 (80%), 00:40 left"]


def test_a_terminal_has_a_bar_with_the_pause():
    stream = Terminal()
    with Progress("erm", total=4, stream=stream) as bar:
        bar.step()
        with bar.pausing("evaluating"):
            assert "erm, evaluating:  25%" in stream.getvalue().split("\r")[-1]
        bar.write("a line")
    assert "a line\n" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_processes_but_the_first_show_nothing(stream):
    with Progress("erm", total=2, shown=False, stream=stream) as bar, bar.pausing("compiling"):
        bar.step()
        bar.write("a line")
    assert stream.getvalue() == ""
