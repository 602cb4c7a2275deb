"""Grids at searched rates, with sweeps that are recorded in place of trained."""

import json

import pytest

from papers import searched
from papers.searched import best_rates, main

RATE = searched.RATE


def cell(method, rate, validation, feasible=True, excess=None):
    return {
        "method": method,
        RATE: rate,
        "validation": validation,
        "feasible": feasible,
        "excess": excess,
    }


def test_a_feasible_run_precedes_a_lower_loss():
    cells = [
        cell("plain", "0.1", 2.0),
        cell("plain", "0.2", 1.0),
        cell("plain", "0.3", None),
        cell("constrained", "0.1", 1.0, False, 0.5),
        cell("constrained", "0.2", 3.0),
        cell("deep_supervision", "0.1", 1.0, False, 0.5),
        cell("deep_supervision", "0.2", 3.0, False, 0.25),
    ]
    expected = {"plain": "0.2", "constrained": "0.2", "deep_supervision": "0.2"}
    found = best_rates(cells, ["method"])
    assert found == {(method,): rate for method, rate in expected.items()}


@pytest.fixture
def commands(monkeypatch):
    """Records commands, and answers with a loss that is least at .2 for plain, at .1
    for constrained."""
    given = []

    def command(words):
        given.append(words)
        over = dict(
            word.removeprefix("--over.").split("=")
            for word in words
            if word.startswith("--over.")
        )
        folder = searched.Path(words[words.index("--out") + 1])
        folder.mkdir(parents=True)
        cells = []
        for method in over["method"].split(","):
            for rate in over[RATE].split(","):
                for seed in over.get("seed", "100").split(","):
                    best, excess = (0.2, None) if method == "plain" else (0.1, -0.3)
                    row = cell(method, rate, abs(float(rate) - best), excess=excess)
                    cells.append(row | {"seed": seed, "RMSE": 9.0 + float(seed)})
        (folder / "sweep.json").write_text(json.dumps({"cells": cells}))

    monkeypatch.setattr(searched, "command", command)
    return given


def test_every_cell_is_trained_again_at_its_best_rate(commands, tmp_path, capsys):
    words = ["video-dust", "--rates", "0.1,0.2", "--seeds", "3", "--out", str(tmp_path)]
    assert main([*words, "--over.method", "plain,constrained", "--steps", "5"]) == 0
    search, plain, constrained = commands
    assert search[search.index("--seed") + 1] == "100"
    assert {"--over.method=plain,constrained", "--steps"} <= set(search)
    assert {"--over.method=plain", f"--over.{RATE}=0.2"} <= set(plain)
    assert {"--over.method=constrained", f"--over.{RATE}=0.1"} <= set(constrained)
    assert "--over.seed=0,1,2" in plain
    assert "--seed" not in plain
    shown = capsys.readouterr().out
    assert "| constrained | 0.1 | 3/3 | 10" in shown
    assert "| plain | 0.2 | - | 10" in shown
