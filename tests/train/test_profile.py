"""Traces of some steps: which, where they go, and that a run is the same with and without."""

import dataclasses
import json

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.run import Profile, parse_profile
from unroll_jax.train.system.machine import Profiler


@pytest.mark.parametrize("text", ["5", "0:1", "3:0", "a:b", "-1:2", "1:2:3", ""])
def test_a_text_that_names_no_steps_is_refused_with_an_example(text):
    with pytest.raises(UserError, match=r"profile must be STEP:COUNT.* as in 100:5, got"):
        parse_profile(text)


def test_steps_are_counted_from_one_and_must_be_the_runs():
    assert parse_profile("3:2", num_steps=4) == Profile(3, 4)
    assert parse_profile(None) is None
    with pytest.raises(UserError, match="asks for steps 3 to 5, but the run has 4"):
        parse_profile("3:3", num_steps=4)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (range(7), ["start after 2", "stop after 4"]),
        (range(2, 4), ["start after 2", "stop at the end"]),
        (range(3, 7), ["start after 3", "stop after 4"]),
        (range(4, 7), ["--profile: steps 3 to 4 are done already; no trace"]),
    ],
)
def test_the_trace_covers_these_steps_and_ends_with_the_run(monkeypatch, tmp_path, calls, expected):
    events, done = [], 0
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: events.append(f"start after {done}"))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: events.append(f"stop after {done}"))
    profiler = Profiler(Profile(3, 4), tmp_path, lambda line: events.append(line) if "a trace;" not in line else None)
    for done in calls:
        profiler.at(done, None)
    done = "end"
    profiler.end()
    assert [event.replace("after end", "at the end") for event in events] == expected


@pytest.mark.slow
@pytest.mark.xdist_group("video-runs")
def test_a_profiled_run_has_a_trace_and_is_the_same_run(start, config, both, tmp_path):
    log = start(dataclasses.replace(config, profile="2:3"))
    assert any("profile: a trace" in line for line in log)
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["profile"] == "2:3"
    rows = [(folder / "metrics.jsonl").read_bytes() for folder in (tmp_path / "run", both / "constrained")]
    assert rows[0] == rows[1]
    assert not (both / "constrained" / "profile").exists()
    assert any("finished already" in line for line in start(config))


def test_steps_that_the_run_does_not_have_are_refused_before_the_folder_is_made(start, config, tmp_path):
    with pytest.raises(UserError, match="steps 5 to 8, but the run has 6"):
        start(dataclasses.replace(config, profile="5:4"))
    assert not (tmp_path / "run").exists()
