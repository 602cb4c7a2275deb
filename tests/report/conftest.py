"""Synthetic run folders with the figures of a realistic run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unroll_jax.train.report.groups import Setting, group
from unroll_jax.train.report.records import read_runs

GAMMAS = ("0.0", "0.09", "0.15", "0.2", "0.3", "0.5")
NOISY = (0.0, 37.8, 48.8, 56.3, 68.9, 88.9)
RMSE = {
    "plain": (9.5, 14.1, 17.5, 22.9, 32.4, 47.0),
    "deep_supervision": (10.9, 15.0, 18.0, 22.5, 31.0, 44.0),
    "constrained": (11.9, 15.8, 18.8, 21.6, 28.9, 41.3),
}
# after layer 1. The input's is 4.7
FIRST_LOSSES = {"plain": 14.0, "deep_supervision": 3.0, "constrained": 2.6}
LAST_LOSS = 0.7
KEPT, EDGES = 0.78, np.linspace(0, 2, 41)
RunMaker = Callable[..., Path]


def grouped(folders: Sequence[Path]) -> list[Setting]:
    return group(read_runs(folders))


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    def make(
        method: str = "constrained",
        *,
        num_layers: int = 3,
        seed: int = 0,
        steps: int = 60,
        **overrides,
    ) -> Path:
        name = overrides.pop("name", f"{method}-L{num_layers}-s{seed}")
        return write_run(
            tmp_path / "runs" / name, method, num_layers, seed, steps, **overrides
        )

    return make


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unroll_jax.train.report.figures.pictures", lambda *_: [])


def write_run(
    folder: Path, method: str, num_layers: int, seed: int, steps: int, **overrides: Any
) -> Path:
    rng = np.random.default_rng(1000 * num_layers + seed)
    folder.mkdir(parents=True)
    evaluation = _evaluation(method, num_layers, seed, steps, rng)
    evaluation |= overrides.get("evaluation", {})
    data = {
        "source": "photos",
        "root": None,
        "prepared": "/home/somebody/.cache/unroll_jax",
    }
    config = {
        "experiment": "video-ut",
        "task": "video",
        "method": method,
        "num_layers": num_layers,
        "seed": seed,
        "data": data,
        "constraints": {"alpha": 0.22, "reference": 5.5},
    }
    status = {
        "state": "finished",
        "steps": steps,
        "best_step": steps,
        "feasible": evaluation["feasible"],
        "messages": [],
    }
    for name, value in {
        "evaluation": evaluation,
        "config": config | overrides.get("config", {}),
        "status": status | overrides.get("status", {}),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    records = _metrics(np.array(evaluation["layer_losses"], float), method, steps, rng)
    # what runs write is JSON
    lines = (json.dumps(record).replace("NaN", "null") + "\n" for record in records)
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def _evaluation(
    method: str, num_layers: int, seed: int, steps: int, rng: np.random.Generator
) -> dict[str, Any]:
    losses = np.array([4.7, *np.geomspace(FIRST_LOSSES[method], LAST_LOSS, num_layers)])
    losses *= rng.uniform(0.98, 1.02, num_layers + 1)
    bounds = _bounds(losses)
    multipliers = np.zeros(num_layers + 1)
    ratios = rng.lognormal(0.0, 0.6, (num_layers, 400))
    if method == "constrained":
        multipliers = rng.uniform(0, 0.6, num_layers + 1)
        ratios = np.exp(-0.3) * ratios**0.6
    counts = np.stack([np.histogram(np.clip(row, 0, 2), EDGES)[0] for row in ratios])
    by_layer = {
        "layer_losses": losses,
        "bounds": bounds,
        "violations": losses - bounds,
        "multipliers": multipliers,
        "slacks": 0.01 * multipliers,
        "descend_share": (ratios < 1).mean(1),
    }
    return {
        "experiment": "video-ut",
        "method": method,
        "train_gamma": 0.15,
        "test_gammas": [float(gamma) for gamma in GAMMAS],
        "num_layers": num_layers,
        "seed": seed,
        "num_sequences": 400,
        "rmse": dict(zip(GAMMAS, RMSE[method], strict=True)),
        "noisy_rmse": dict(zip(GAMMAS, NOISY, strict=True)),
        "feasible": bool(np.all(losses <= 1.05 * bounds)),
        "tolerance": 0.05,
        "ratio_histogram": {"edges": EDGES.tolist(), "counts": counts.tolist()},
        "share_descending": float((ratios < 1).mean()),
        "mean_ratio_all": float(ratios.mean()),
        "best_step": steps,
        **{name: values.tolist() for name, values in by_layer.items()},
    }


def _metrics(
    final: np.ndarray, method: str, steps: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        fade = np.exp(-5 * step / steps)
        losses = (final + fade * (8 - final)) * rng.uniform(0.95, 1.05, len(final))
        prices = np.linspace(0.1, 0.8, len(final)) * (method == "constrained")
        row = {"step": step, "layer_losses": losses.tolist()}
        more = {
            "loss": losses[-1],
            "violations": (losses - _bounds(losses)).tolist(),
            "multipliers": ((1 - fade) * prices).tolist(),
        }
        records.append({"kind": "train"} | row | more)
        if step % max(1, steps // 6) == 0:
            records.append({"kind": "validation", "feasible": True} | row)
    return records


def _bounds(losses: np.ndarray) -> np.ndarray:
    return np.append(5.5, KEPT * losses[:-1])
