"""Searches whose runs are not trained but take a moment."""

import dataclasses
import json
import math

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.search.trials import search
from unroll_jax.train.system.files import write_json


def measured(config):
    """Stands in for training: the loss is least at a rate of 1e-3, and a steep alpha is not met at high rates."""
    rate, alpha = config.primal.learning_rate, config.constraints.alpha[0]
    loss = 2.0 + (math.log10(rate) + 3.0) ** 2
    return loss, 10.0 * alpha * rate - 0.1


@pytest.fixture
def trained(monkeypatch, clips):
    """Runs are not trained but take a moment; the lists hold the folders that were, and those then evaluated."""
    configs, folders, tested = {}, [], []

    def train_run(task, folder, *, experiment, log):
        config = configs[folder] = task.config
        folders.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        loss, excess = measured(config)
        # The first validation is worse, the last one better but not feasible: the best is the second.
        rows = [(1, 2 * loss, excess), (2, loss, excess), (3, 0.5 * loss, 1.0)]
        lines = [
            {
                "kind": "validation",
                "step": step,
                "layer_losses": [9.0, value],
                "feasible": over <= 0,
                "worst_excess": over,
            }
            for step, value, over in rows
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        failed = config.primal.learning_rate > 0.09
        status = {"state": "failed" if failed else "finished", "train_seconds": 1.0}
        write_json(folder / "status.json", {**status, "messages": ["the loss is not finite"] if failed else []})
        if failed:
            raise UserError("the loss is not finite")

    monkeypatch.setattr("unroll_jax.train.tasks.video.load", lambda config, *, log: clips)
    monkeypatch.setattr("unroll_jax.train.search.trials.train_run", train_run)
    monkeypatch.setattr("unroll_jax.train.search.trials.parallel_coordinates", lambda *arguments: None)
    monkeypatch.setattr("unroll_jax.train.search.trials.png", lambda figure: b"")

    def evaluate(task, folder, *, experiment, log):
        assert task.config == configs[folder]  # as trained
        tested.append(folder)

    monkeypatch.setattr("unroll_jax.train.search.trials.evaluate", evaluate)
    return folders, tested


@pytest.fixture
def go(trained, tmp_path):
    """``go(over, name, **options)``: a search into ``tmp_path / name``; returns its outcomes."""

    def run(over, name="search", *, config=None, log=None, **options):
        config = dataclasses.replace(config or VideoConfig(), out=str(tmp_path / name))
        return search(config, experiment="video-ut", over=over, log=(log if log is not None else []).append, **options)

    return run


def values_of(outcomes):
    return [dict(one.values) for one in sorted(outcomes, key=lambda one: one.trial)]
