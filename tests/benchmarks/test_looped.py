"""The benchmark of loops: figures for every gradient and number of loops, and memory that exact gradients need."""

import dataclasses

import pytest

from benchmarks import looped


@pytest.mark.slow
def test_memory_and_compile_time_are_reported_for_every_gradient(capsys, monkeypatch):
    monkeypatch.setattr(looped, "LOOPS", (2, 8))
    monkeypatch.setattr(looped, "REPEATS", 1)
    monkeypatch.setattr(looped, "CONFIG", dataclasses.replace(looped.CONFIG, dim=16, num_layers=1, hidden_dim=16))
    figures = looped.main().figures
    names = {f"{way}_{count}_loops" for way in looped.WAYS for count in (2, 8)}
    ratios = {f"{way}_{part}_ratio" for way in looped.WAYS for part in ("compile", "memory")}
    assert set(figures) == {f"{name}_{unit}" for name in names for unit in ("compile_seconds", "mebibytes")} | ratios
    assert figures["unrolled_memory_ratio"] > 2.0
    assert figures["implicit_memory_ratio"] == pytest.approx(1.0, rel=0.01)
    assert "implicit, 8 loops / 2: compile" in capsys.readouterr().out
