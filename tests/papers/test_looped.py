"""Looped networks on generated tasks: the data against their definitions, a run of every kind, its table."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from papers.looped.__main__ import main
from papers.looped.evaluation import interval, run
from papers.looped.study import FLOOR, Study, rises, violations
from papers.looped.tasks import TASKS, addition, mazes, prefix_sums, shortest_path

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


def test_sums_are_those_of_integers():
    inputs, targets = addition(np.random.default_rng(0), 20, 30)
    assert (inputs.shape, targets.shape) == ((20, 31, 20), (20, 31))

    def number(digits):
        return sum(int(digit) * 10**place for place, digit in enumerate(digits))

    pairs = zip(inputs[..., :10].argmax(-1), inputs[..., 10:].argmax(-1), targets, strict=True)
    chains = []
    for first, second, total in pairs:
        assert number(first) + number(second) == number(total)
        chains.append(
            max(
                len(chain)
                for chain in "".join("x" if a + b == 9 else " " for a, b in zip(first, second, strict=True)).split()
            )
        )
    assert np.mean(chains) > 8  # of random digits about 1


def test_a_window_may_not_rise_above_its_start_or_the_floor_and_no_start_is_rewarded_for_a_larger_loss():
    losses = np.random.default_rng(0).uniform(0.001, 2.0, (4, 6)).astype(np.float32)
    np.testing.assert_allclose(rises(losses), losses[:, 1:] / np.maximum(losses[:, :1], FLOOR) - 1.0, rtol=1e-5)
    assert jax.grad(lambda f: rises(f).sum())(jnp.array([1.0, 2.0, 3.0])).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_those_of_their_seed(name):
    first, second, other = (TASKS[name].draw(np.random.default_rng(seed), 2, 9) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (first.inputs != other.inputs).any()
    assert first.targets.shape == first.inputs.shape[:-1]
    assert first.targets.max() < (TASKS[name].classes)


def test_bounds_fall_to_the_floor_and_windows_may_not_rise():
    study = dataclasses.replace(TINY, loops=10)
    losses, states = np.full((11, 4), 0.02), np.full((11, 4, 5, 2), 10.0)
    states[1:] -= np.linspace(0.1, 1.0, 10)[:, None, None, None]  # steps of 0.1
    met = violations(study, jnp.asarray(losses), jnp.asarray(states))
    assert {kind: set(held) for kind, held in met.items()} == {
        "near": {"level", "size"},
        "far": {"rise", "size", "step"},
    }
    assert max(float(np.max(value)) for held in met.values() for value in held.values()) <= 1e-5
    losses[10, 0] = 0.04  # one of four samples, the worst quarter
    states[6] = 20.0
    violated = violations(study, jnp.asarray(losses), jnp.asarray(states))
    assert np.isclose(float(violated["far"]["rise"][-1]), 1.0, atol=1e-5)
    assert np.isclose(float(violated["near"]["level"][-1]), 0.25, atol=1e-5)
    assert np.isclose(float(violated["near"]["size"][5]), np.log(2.0), atol=1e-5)
    assert np.argwhere(np.asarray(violated["far"]["step"]) > 1e-4).ravel().tolist() == [5, 6]


def test_intervals_are_those_of_student():
    values = [0.1, 0.2, 0.4]
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert interval(values) == f"{(low + high) / 2:.3f} ± {(high - low) / 2:.3f}"
    assert (interval([1.0, 1.0]), interval([0.5])) == ("1.000", "0.500")


def test_a_command_trains_evaluates_and_prints_its_table(tmp_path, capsys):
    options = ["--steps", "2", "--batch", "4", "--loops", "2", "--width", "4", "--size", "5", "--test-examples", "6"]
    options += ["--method", "all", "--far", "3", "--test-sizes", "5", "--out", str(tmp_path)]
    assert main(options) == 0
    (path,) = tmp_path.glob("*.json")
    (results,) = json.loads(path.read_text())["results"].values()
    assert results["loops"] == [1, 2, 4, 8, 16, 50]
    assert 1.0 <= results["exit"]["low"] <= results["exit"]["loops"] <= results["exit"]["high"] <= 16.0
    assert "| all, far starts to 3, steps 2, batch 4, loops 2, width 4, size 5 | 1 |" in capsys.readouterr().out
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
        ("addition", "constrained", 3),
    ],
)
def test_every_method_runs(task, method, far, tmp_path):
    study = dataclasses.replace(TINY, task=task, method=method, far=far, test_sizes=(7,), out=str(tmp_path))
    assert all(0.0 <= accuracy <= 1.0 for accuracy in run(study)["results"]["7"]["accuracy"])


@pytest.mark.slow
def test_loops_of_all_are_learned(tmp_path):
    study = Study(method="all", steps=400, loops=6, size=8, test_sizes=(8,), test_examples=64, out=str(tmp_path))
    assert run(study)["results"]["8"]["best"] > 0.9
