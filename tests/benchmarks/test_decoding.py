"""The benchmark of decoding runs, and drafts that always stand are reported as such."""

import importlib.util
import math

import pytest

from benchmarks import decoding
from unroll_jax.models import DecoderConfig


def test_tokens_a_second_are_reported_without_a_real_model(capsys, monkeypatch):
    shape = DecoderConfig(50, 8, 4, 2, 1, 12, max_positions=64)
    sizes = decoding.Sizes(shape, batches=(2,), tokens=10, draft_length=2, repeats=2)
    monkeypatch.setattr(decoding, "FULL", sizes)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    figures = decoding.main().figures
    printed = capsys.readouterr().out
    assert "without SmolLM2" in printed
    assert "yes" in printed
    rows, _, told = printed.split("same answers")[1].partition("drafts are given, and none is chosen")
    assert " no" not in rows
    assert told.startswith("\nacceptance by layer: 0:")
    stem = "random_batch_2"
    for who in ("plain", "exit_1", "exit_2", "exit_3"):
        assert figures[f"{stem}_{who}_tokens_a_second"] == pytest.approx(20 / figures[f"{stem}_{who}_seconds"])
    for layer in (2, 3):
        assert figures[f"{stem}_exit_{layer}_acceptance"] == 1.0
        assert figures[f"{stem}_exit_{layer}_tokens_a_verification"] == 3.0
        assert figures[f"{stem}_layer_{layer}_acceptance"] == 1.0
    assert 0.0 < figures[f"{stem}_exit_2_speedup"] < 100.0
    assert all(value >= 0 and math.isfinite(value) for value in figures.values())
