"""Looped networks on generated tasks: the data against their definitions, a run of every kind, its table."""

import dataclasses
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from papers.looped.__main__ import main
from papers.looped.study import Study, run, violations
from papers.looped.tasks import TASKS, mazes, prefix_sums, shortest_path

TINY = Study(steps=2, batch=4, loops=2, width=4, size=5, test_sizes=(7,), test_examples=6)


def test_targets_of_prefix_sums_are_parities():
    inputs, targets = prefix_sums(np.random.default_rng(0), 3, 9)
    assert (inputs.shape, targets.shape) == ((3, 9, 1), (3, 9))
    for row, parities in zip(inputs[..., 0], targets, strict=True):
        assert [int((row[: place + 1] == 1).sum()) % 2 for place in range(9)] == parities.tolist()


def test_mazes_are_trees_whose_path_is_the_only_one():
    inputs, targets = mazes(np.random.default_rng(0), 5, 9)
    for maze, path in zip(inputs, targets, strict=True):
        free = maze[..., 0]
        assert free.sum() == 2 * 25 - 1  # rooms, and an open wall fewer: a spanning tree
        start, end = (tuple(np.argwhere(maze[..., channel])[0].tolist()) for channel in (1, 2))
        cells = shortest_path(free, start, end)
        assert set(cells) == set(map(tuple, np.argwhere(path).tolist()))
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(cells))
        assert all(free[cell] for cell in cells)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_those_of_their_seed(name):
    first, second, other = (TASKS[name](np.random.default_rng(seed), 2, 9) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (first.inputs != other.inputs).any()


def test_bounds_fall_to_the_floor_and_windows_may_not_rise():
    study = dataclasses.replace(TINY, loops=10)
    losses, sizes = np.full((11, 4), 0.02), np.full((11, 4), 10.0)
    met = violations(study, jnp.asarray(losses), jnp.asarray(sizes))
    assert {name: value.shape for name, value in met.items()} == {"near": (10,), "far": (10,), "state": (10,)}
    assert max(float(np.max(value)) for value in met.values()) <= 1e-6
    losses[10, 0] = 0.04  # one of four samples, the worst quarter
    risen = violations(study, jnp.asarray(losses), jnp.asarray(sizes))
    assert np.isclose(float(risen["far"][-1]), 1.0, atol=1e-5)
    assert np.isclose(float(risen["near"][-1]), 0.25, atol=1e-5)


def test_a_command_trains_evaluates_and_prints_its_table(tmp_path, capsys):
    options = ["--steps", "2", "--batch", "4", "--loops", "2", "--width", "4", "--size", "5", "--test-examples", "6"]
    options += ["--method", "constrained", "--far", "3", "--test-sizes", "7", "--out", str(tmp_path)]
    assert main(options) == 0
    (path,) = tmp_path.glob("*.json")
    (results,) = json.loads(path.read_text())["results"].values()
    assert results["loops"] == [1, 2, 4, 8, 16, 48]
    assert "| constrained, far starts to 3 | 1 |" in capsys.readouterr().out
    assert main(["--loops", "0"]) == 2
    assert "loops" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method", "far"),
    [
        ("prefix-sums", "last", 0),
        ("prefix-sums", "random", 3),
        ("prefix-sums", "progressive", 3),
        ("prefix-sums", "constrained", 0),
        ("mazes", "all", 3),
    ],
)
def test_every_method_runs(task, method, far, tmp_path):
    results = run(dataclasses.replace(TINY, task=task, method=method, far=far, out=str(tmp_path)))["results"]["7"]
    assert all(0.0 <= accuracy <= 1.0 for accuracy in results["accuracy"])


@pytest.mark.slow
def test_loops_of_all_are_learned(tmp_path):
    study = Study(method="all", steps=400, loops=6, size=8, test_sizes=(8,), test_examples=64, out=str(tmp_path))
    assert run(study)["results"]["8"]["best"] > 0.9
