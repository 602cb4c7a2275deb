"""The benchmarks run, on sizes too small to mean anything."""

import json
import math

import jax
import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import compile_time
from benchmarks.video import FRAMES, compiled_step, matmul_flops, random_batch
from train.config.video import VideoConfig
from train.tasks.video import VideoTask


def test_an_unknown_benchmark_is_one_line_and_exit_code_2(capsys):
    assert benchmarks.main(["nope"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("error: unknown benchmark 'nope'")
    for name in benchmarks.BENCHMARKS:
        assert name in error


def test_figures_are_written_as_json(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_time, "main", lambda: {"ratio": 1.25})
    assert benchmarks.main(["compile_time"]) == 0
    assert json.loads((tmp_path / "runs" / "benchmarks" / "compile_time.json").read_text()) == {"ratio": 1.25}
    assert "compile_time" in capsys.readouterr().out


@pytest.fixture
def small(monkeypatch):
    """Frames of 3 tokens of 4 pixels."""
    monkeypatch.setattr("benchmarks.video.FRAMES", FRAMES._replace(num_tokens=3, token_dim=4))


@pytest.mark.usefixtures("small")
def test_a_compiled_step_trains():
    step, state, batch = compiled_step("constrained", 1)
    assert batch.shape == (VideoConfig().batch_size, 3, 4)
    state, metrics = jax.block_until_ready(step(state, batch))
    assert int(state.step) == 1
    assert metrics.layer_losses.shape == (2,)


@pytest.mark.usefixtures("small")
def test_compile_time_is_reported_for_every_depth(capsys, monkeypatch):
    monkeypatch.setattr(compile_time, "REPEATS", 1)
    figures = compile_time.main()
    assert {"ratio", "layers_1_seconds", "layers_7_seconds"} == set(figures)
    assert "7 layers / 1 layer" in capsys.readouterr().out


def test_random_frames_are_the_same_every_time():
    np.testing.assert_array_equal(random_batch(2), random_batch(2))
    assert random_batch(2).dtype == np.uint8


def test_operations_are_counted_from_the_shapes_of_the_layers():
    config = VideoConfig()
    params = jax.eval_shape(VideoTask(config, FRAMES).init, jax.random.key(0))["params"]["layers"]
    per_token = sum(math.prod(leaf.shape) for leaf in params) / config.model.num_layers
    attention = 2 * FRAMES.num_tokens * FRAMES.token_dim
    forward = 2 * 5 * FRAMES.num_tokens * (per_token + attention)
    assert matmul_flops(config.model.num_layers, 5) == pytest.approx(3 * config.model.num_layers * forward)
