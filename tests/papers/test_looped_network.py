"""The looped network against loops in NumPy, and exits against a loop of one example and a search."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers.looped.exits import exit_loops, exit_threshold, state_changes
from papers.looped.network import LoopedNetwork


def convolved(x, kernel):
    ndim = kernel.ndim - 2
    padded = np.pad(x, ((0, 0), *[(1, 1)] * ndim, (0, 0)))
    out = np.zeros((*x.shape[:-1], kernel.shape[-1]))
    for place in np.ndindex(*x.shape[1:-1]):
        window = padded[(slice(None), *(slice(at, at + 3) for at in place))]
        out[(slice(None), *place)] = np.tensordot(window, kernel, axes=ndim + 1)
    return out


@pytest.mark.parametrize(("ndim", "shape"), [(1, (2, 6, 1)), (2, (2, 4, 3, 3))])
def test_the_network_is_its_equation(ndim, shape, x64):
    model = LoopedNetwork(width=4, num_outputs=2, ndim=ndim, param_dtype=jnp.float64)
    x = np.random.default_rng(0).normal(size=shape)
    variables = jax.jit(lambda x: model.init(jax.random.key(0), x, loops=1))(x)
    run = lambda variables, x: model.apply(variables, x, loops=3, record=lambda logits, h: (logits, h))  # noqa: E731
    result = jax.jit(run)(variables, x)
    kernels = jax.tree.map(np.asarray, variables["params"])
    h, states = np.maximum(convolved(x, kernels["prelude"]), 0.0), []
    for _ in range(4):
        states.append(h)
        recalled = convolved(np.concatenate([h, x], -1), kernels["recall"])
        inner = np.maximum(convolved(recalled, kernels["inner"]), 0.0)
        h = np.maximum(recalled + convolved(inner, kernels["outer"]), 0.0)
    readouts = [convolved(state, kernels["readout"]) for state in states]
    chex.assert_trees_all_close(result[1], (np.stack(readouts), np.stack(states)), rtol=1e-10, atol=1e-12)
    chex.assert_trees_all_close(result[0], states[-1], rtol=1e-10, atol=1e-12)


def test_exits_are_those_of_each_example_looped_on_its_own():
    """h <- rate h + 1 from 0, for several rates at once, until a loop changes little."""
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
    assert exit_loops(np.asarray(state_changes(jnp.asarray(np.stack(states)))), 0.05).tolist() == needed
    assert len(set(needed)) == 4


def test_changes_are_shares_of_the_size_of_the_state():
    states = np.random.default_rng(0).normal(size=(5, 4, 3, 2))
    rows = states.reshape(5, 4, 6)
    expected = np.linalg.norm(np.diff(rows, axis=0), axis=-1) / np.linalg.norm(rows, axis=-1)[1:]
    np.testing.assert_allclose(state_changes(jnp.asarray(states)), expected, rtol=1e-5)
    large = jnp.array([1e19, 2e19, 4e19])[:, None, None] * jnp.ones((3, 1, 4))
    np.testing.assert_allclose(state_changes(large), 0.5, rtol=1e-6)
    np.testing.assert_allclose(state_changes(1e-20 * (1e-21 * large)), 0.5, rtol=1e-4)


def test_a_state_that_diverges_is_never_still():
    states = jnp.full((4, 2, 3), jnp.nan).at[0].set(1.0)
    assert exit_loops(np.asarray(state_changes(states)), 0.1).tolist() == [3, 3]


def test_the_threshold_is_the_cheapest_of_those_that_keep_the_accuracy():
    needed = np.random.default_rng(0).integers(1, 9, 400)  # the loop from which an example is right
    loops = np.arange(1, 10)[:, None]
    changes = np.where(loops < needed, 0.5, 0.1)
    threshold = exit_threshold(changes, loops >= needed)
    assert 0.1 < threshold <= 0.5
    assert exit_loops(changes, threshold).tolist() == needed.tolist()
    assert exit_loops(changes, 1e-9).tolist() == [9] * 400


def test_examples_that_are_right_late_and_still_early_loop_on():
    changes = np.array([[0.5, 0.01], [0.2, 0.01], [0.1, 0.01]])
    correct = np.array([[0, 0], [1, 0], [1, 1]])
    assert exit_loops(changes, exit_threshold(changes, correct)).tolist() == [3, 3]
