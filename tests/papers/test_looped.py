"""Looped networks on generated tasks: data, network and exits against loops in
NumPy; and a run."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal

from papers.looped.__main__ import main
from papers.looped.exits import exit_loops, exit_threshold, state_changes
from papers.looped.network import LoopedNetwork
from papers.looped.study import Study, violations
from papers.looped.tasks import addition, mazes, shortest_path
from tests.reference import gaussian

TINY = Study(
    steps=2, batch=4, loops=2, width=4, size=5, test_sizes=(7,), test_examples=6
)


def test_mazes_are_trees_whose_path_is_the_only_one():
    inputs, targets = mazes(np.random.default_rng(0), 5, 9)
    for maze, path in zip(inputs, targets, strict=True):
        free = maze[..., 0]
        # rooms, and an open wall fewer: a spanning tree
        assert free.sum() == 2 * 25 - 1
        start, end = (
            tuple(np.argwhere(maze[..., channel])[0].tolist()) for channel in (1, 2)
        )
        cells = shortest_path(free, start, end)
        assert set(cells) == set(map(tuple, np.argwhere(path).tolist()))
        assert all(
            abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(cells)
        )
        assert all(free[cell] for cell in cells)


def test_sums_are_those_of_integers():
    inputs, targets = addition(np.random.default_rng(0), 20, 30)
    assert (inputs.shape, targets.shape) == ((20, 31, 20), (20, 31))
    powers = np.array([10**place for place in range(31)], object)
    first, second = inputs[..., :10].argmax(-1), inputs[..., 10:].argmax(-1)
    assert_array_equal((first + second) @ powers, targets @ powers)


def convolved(x, kernel):
    ndim = kernel.ndim - 2
    padded = np.pad(x, ((0, 0), *[(1, 1)] * ndim, (0, 0)))
    windows = sliding_window_view(padded, (3,) * ndim, axis=tuple(range(1, ndim + 1)))
    # both have the inputs' channels first
    return np.tensordot(windows, np.moveaxis(kernel, -2, 0), axes=ndim + 1)


@pytest.mark.parametrize(("ndim", "shape"), [(1, (2, 6, 1)), (2, (2, 4, 3, 3))])
def test_the_network_is_its_equation(ndim, shape, x64):
    model = LoopedNetwork(width=4, num_outputs=2, ndim=ndim, param_dtype=jnp.float64)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), x, loops=1))
    variables = jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape), shapes)
    record = lambda logits, h: (logits, h)
    last, (logits, found) = jax.jit(
        lambda variables: model.apply(variables, x, loops=3, record=record)
    )(variables)
    kernels = variables["params"]
    states = [np.maximum(convolved(x, kernels["prelude"]), 0.0)]
    for _ in range(3):
        h = np.concatenate([states[-1], x], axis=-1)
        recalled = convolved(h, kernels["recall"])
        inner = np.maximum(convolved(recalled, kernels["inner"]), 0.0)
        states.append(np.maximum(recalled + convolved(inner, kernels["outer"]), 0.0))
    readouts = [convolved(state, kernels["readout"]) for state in states]
    close = {"rtol": 1e-10, "atol": 1e-12}
    assert_allclose(logits, readouts, **close)
    assert_allclose(found, states, **close)
    assert_allclose(last, states[-1], **close)


def test_exits_are_those_of_each_example_looped_on_its_own():
    """h <- rate h + 1 from 0, for several rates at once, until a loop changes
    little."""
    rates, most = np.array([0.1, 0.5, 0.9, 0.99]), 30
    states, needed = [np.zeros((4, 3))], []
    for _ in range(most):
        states.append(rates[:, None] * states[-1] + 1.0)
    for rate in rates:
        h, loops = 0.0, 0
        while loops < most:
            before, h, loops = h, rate * h + 1.0, loops + 1
            if abs(h - before) / abs(h) < 0.05:
                break
        needed.append(loops)
    assert (
        exit_loops(np.asarray(jax.jit(state_changes)(np.stack(states))), 0.05).tolist()
        == needed
    )
    assert len(set(needed)) == 4


def test_changes_are_exact_near_the_ends_of_float32():
    changes = jax.jit(state_changes)
    states = gaussian(5, 4, 3, 2)
    rows = states.reshape(5, 4, 6)
    moved = np.linalg.norm(np.diff(rows, axis=0), axis=-1)
    expected = moved / np.linalg.norm(rows[1:], axis=-1)
    for size, rtol in ((1.0, 1e-5), (1e37, 1e-5), (1e-36, 1e-3)):
        scaled = np.float32(size * states)
        assert_allclose(changes(scaled), expected, rtol=rtol)
    states[1:] = np.nan  # a state that has diverged never exits
    assert exit_loops(np.asarray(changes(states)), 0.1).tolist() == [4] * 4


def test_the_threshold_is_the_cheapest_that_keeps_accuracy():
    # the loop from which an example is right
    needed = np.random.default_rng(0).integers(1, 9, 400)
    loops = np.arange(1, 10)[:, None]
    changes = np.where(loops < needed, 0.5, 0.1)
    threshold = exit_threshold(changes, loops >= needed)
    assert 0.1 < threshold <= 0.5
    assert exit_loops(changes, threshold).tolist() == needed.tolist()
    # Examples that are right late and still early loop on.
    changes = np.array([[0.5, 0.01], [0.2, 0.01], [0.1, 0.01]])
    correct = np.array([[0, 0], [1, 0], [1, 1]])
    assert exit_loops(changes, exit_threshold(changes, correct)).tolist() == [3, 3]


def test_bounds_fall_to_the_floor_and_windows_may_not_rise():
    measure = jax.jit(
        functools.partial(violations, dataclasses.replace(TINY, loops=10))
    )
    losses, states = np.full((11, 4), 0.02), np.full((11, 4, 5, 2), 10.0)
    states[1:] -= np.linspace(0.1, 1.0, 10)[:, None, None, None]  # steps of 0.1
    met = measure(losses, states)
    assert {kind: set(held) for kind, held in met.items()} == {
        "near": {"level", "size"},
        "far": {"rise", "size", "step"},
    }
    assert (
        max(float(np.max(value)) for held in met.values() for value in held.values())
        <= 1e-5
    )
    losses[10, 0] = 0.04  # one of four samples, the worst quarter
    states[6] = 20.0
    violated = measure(losses, states)
    assert np.isclose(float(violated["far"]["rise"][-1]), 1.0, atol=1e-5)
    assert np.isclose(float(violated["near"]["level"][-1]), 0.25, atol=1e-5)
    assert np.isclose(float(violated["near"]["size"][5]), np.log(2.0), atol=1e-5)
    assert np.argwhere(np.asarray(violated["far"]["step"]) > 1e-4).ravel().tolist() == [
        5,
        6,
    ]


@pytest.mark.nightly
def test_a_command_trains_and_evaluates(tmp_path, capsys):
    words = "--steps 2 --batch 4 --loops 2 --width 4 --size 5 --test-examples 6"
    words += f" --method all --far 3 --test-sizes 5 --out {tmp_path}"
    assert main(words.split()) == 0
    (path,) = tmp_path.glob("*.json")
    (results,) = json.loads(path.read_text())["results"].values()
    exits = results["exit"]
    assert 1.0 <= exits["low"] <= exits["loops"] <= exits["high"] <= 16.0
    assert main(["--loops", "0"]) == 2
    assert "loops" in capsys.readouterr().err
