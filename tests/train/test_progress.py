"""How far a run is, on a terminal and in a log file."""

import io

import pytest

from unroll_jax.train.system.terminal import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def stepped(bar: Progress, clock: Clock, steps: int, seconds: float) -> None:
    for _ in range(steps):
        clock.now += seconds
        bar.step()


def test_a_log_file_has_a_plain_line_for_every_tenth(clock):
    stream = io.StringIO()
    with Progress("erm", total=200, stream=stream, clock=clock) as bar:
        bar.words({"loss": "1.5"})
        stepped(bar, clock, 200, 1.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "erm: step 20 of 200 (10%), 03:00 left, loss 1.5"
    assert lines[-1] == "erm: step 200 of 200 (100%), 00:00 left, loss 1.5"
    assert len(lines) == 10
    assert "\r" not in stream.getvalue()


def test_slow_steps_leave_no_half_minute_silent(clock):
    stream = io.StringIO()
    with Progress("erm", total=1000, stream=stream, clock=clock) as bar:
        stepped(bar, clock, 12, 10.0)
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["3", "6", "9", "12"]


def test_quick_runs_write_few_lines(clock):
    stream = io.StringIO()
    with Progress("erm", total=1000, stream=stream, clock=clock) as bar:
        stepped(bar, clock, 1000, 0.001)
    assert stream.getvalue().splitlines() == ["erm: step 1000 of 1000 (100%), 00:00 left"]


def test_pauses_do_not_count_for_the_time_left(clock):
    stream = io.StringIO()
    with Progress("erm", total=100, stream=stream, clock=clock) as bar:
        with bar.pausing("compiling"):
            clock.now += 600.0
        stepped(bar, clock, 10, 1.0)
    assert stream.getvalue().splitlines() == [
        "erm: compiling",
        "erm: step 1 of 100 (1%), 01:39 left",
        "erm: step 10 of 100 (10%), 01:30 left",
    ]


def test_steps_of_an_earlier_process_do_not_count_for_the_rate(clock):
    stream = io.StringIO()
    with Progress("erm", total=100, done=79, stream=stream, clock=clock) as bar:
        stepped(bar, clock, 1, 2.0)
    assert stream.getvalue() == "erm: step 80 of 100 (80%), 00:40 left\n"


def test_a_terminal_has_a_bar_that_says_what_is_done_in_place_of_training():
    stream = Terminal()
    with Progress("erm", total=4, stream=stream) as bar:
        with bar.pausing("compiling"):
            assert "erm, compiling:" in stream.getvalue().split("\r")[-1]
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
