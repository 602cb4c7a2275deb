"""The benchmarks run, on sizes too small to mean anything."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import compile_time
from benchmarks.record import Record
from benchmarks.video import FRAMES, random_batch, training_step
from unroll_jax.train.config.video import VideoConfig


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], ["unknown benchmark 'nope'", *benchmarks.BENCHMARKS]),
        (["gorwth"], ["unknown benchmark 'gorwth' (did you mean growth?)"]),
        (["growth", "--qick"], ["unknown option '--qick' (did you mean --quick?)"]),
        (["--compare", "a"], ["--compare", "expected 2 arguments"]),
        (["growth", "--compare", "a", "b"], ["--compare takes OLD and NEW alone, got also 'growth'"]),
        (["gpu", "--only", "pairs,decodr"], ["--only", "unknown part 'decodr' (did you mean decoder?)"]),
        (["growth", "--only", "pairs"], ["--only names parts of gpu, got benchmarks ['growth']"]),
        (["--out", __file__], ["is a file; name a folder"]),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmarks.main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


@pytest.fixture
def calls(monkeypatch):
    """The options that each benchmark is run with; none of them measures anything."""
    calls = {}

    def load(name):
        def main(**options):
            calls[name.removeprefix("benchmarks.")] = options

        return SimpleNamespace(main=main)

    monkeypatch.setattr(benchmarks, "importlib", SimpleNamespace(import_module=load))
    monkeypatch.setattr(benchmarks, "keep_memory", lambda: False)
    return calls


def test_quick_leaves_peers_out_and_all_leaves_out_what_is_on_request(calls):
    assert benchmarks.main(["--quick"]) == 0
    assert set(calls) == set(benchmarks.BENCHMARKS) - {"gpu"}
    assert calls["growth"] == {"quick": True, "peers": False}
    benchmarks.main(["gpu", "--quick", "--peers", "growth"])
    options = {"quick": True, "peers": True}
    assert calls["growth"] == options
    assert calls["gpu"] == options | {"only": None, "out": Path("runs/benchmarks")}
    benchmarks.main(["growth"])
    assert calls["growth"] == {"quick": False, "peers": True}
    benchmarks.main(["growth", "--no-peers"])
    assert calls["growth"] == {"quick": False, "peers": False}


def test_figures_are_written_with_what_they_are_of(capsys, monkeypatch, tmp_path):
    record = Record(notes=["A note."])
    record.time("step_seconds", np.array([1.0, 2.0, 3.0]), flops=4e9, rate=4e9)
    record.figures["missing_mebibytes"] = float("nan")
    record.draw = record.draw_times
    monkeypatch.setattr(compile_time, "main", lambda *, quick, peers: record)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert benchmarks.main(["compile_time", "--quick", "--out", str(tmp_path / "out")]) == 0
    assert "compile_time" in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "compile_time.json").read_text())
    assert written["figures"] == {"step_seconds": 2.0, "missing_mebibytes": None}
    assert written["spreads"] == {"step_seconds": 0.5}  # of quartiles 1.5 and 2.5
    assert written["floors"] == {"step_seconds": {"flops": 4e9, "seconds": 1.0}}
    assert written["quick"]
    assert written["machine"]["cores"] >= 1
    assert written["versions"]["jax"] == jax.__version__
    assert written["allocator"]["MALLOC_ARENA_MAX"] == "1"
    table = (tmp_path / "out" / "compile_time.md").read_text()
    assert "| step_seconds | 2 | 50.0% | 1 | 2.00 | 4 |" in table
    assert "A note." in table
    assert (tmp_path / "out" / "compile_time.png").stat().st_size > 0


@pytest.fixture
def small(monkeypatch):
    """Frames of 3 tokens of 4 pixels."""
    monkeypatch.setattr(
        "benchmarks.video.FRAMES", FRAMES._replace(spec=FRAMES.spec._replace(num_tokens=3, token_dim=4))
    )


@pytest.mark.usefixtures("small")
def test_the_step_of_video_trains():
    step, state, batch = training_step("constrained", 1)
    assert batch.shape == (VideoConfig().batch_size, 3, 4)
    state, metrics = jax.block_until_ready(step(state, batch))
    assert int(state.step) == 1
    assert metrics.layer_losses.shape == (2,)


@pytest.mark.usefixtures("small")
def test_compile_time_is_reported_for_every_depth(capsys, monkeypatch):
    monkeypatch.setattr(compile_time, "DEPTHS", (1, 2, 3))
    monkeypatch.setattr(compile_time, "REPEATS", 1)
    record = compile_time.main()
    times = {f"layers_{depth}_seconds" for depth in (1, 2, 3)}
    assert set(record.figures) == times | {"layers_2_over_1", "layers_3_over_1"}
    assert set(record.spreads) == set(record.figures)
    assert "3 layers / 1 layer" in capsys.readouterr().out


def test_random_frames_are_the_same_every_time():
    np.testing.assert_array_equal(random_batch(2), random_batch(2))
    assert random_batch(2).dtype == np.uint8
