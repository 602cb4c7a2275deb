"""Exit by improvement: loops of each example against a loop of one alone, thresholds against a search."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.looped import exit_loops, exit_threshold, run_loops, state_changes

RATES = np.array([0.1, 0.5, 0.9, 0.99])


def alone(rate, threshold, most):
    """h <- rate h + 1 from 0 until a loop changes little; the state and the loops taken."""
    h = 0.0
    for loop in range(1, most + 1):
        before, h = h, rate * h + 1.0
        if abs(h - before) / abs(h) < threshold:
            return h, loop
    return h, most


def settle(rates, h, _):
    return rates * h + 1.0


@pytest.mark.parametrize(("shape", "batch_ndim"), [((4, 3), 1), ((2, 2, 3), 2)])
def test_every_example_stops_by_itself(shape, batch_ndim, x64):
    rates = jnp.asarray(RATES).reshape(*shape[:-1], 1)
    options = {"gradient": "none", "threshold": 0.05, "batch_ndim": batch_ndim, "record": jnp.max}
    result = jax.jit(lambda rates: run_loops(settle, rates, jnp.zeros(shape), loops=30, **options))(rates)
    states, loops = zip(*(alone(rate, 0.05, 30) for rate in RATES), strict=True)
    assert result.taken.shape == shape[:-1]
    assert result.taken.ravel().tolist() == list(loops)
    chex.assert_trees_all_close(result.state.reshape(4, 3), np.repeat(states, 3).reshape(4, 3), rtol=1e-12)
    assert result.records.tolist() == [0.0, max(states)]
    assert len(set(loops)) == 4


def test_free_loops_and_a_state_of_several_arrays_count(x64):
    rates = jnp.asarray(RATES)[:, None]
    state = {"a": jnp.zeros((4, 3)), "b": jnp.full((4, 2), 2.0)}
    step = lambda rates, h, _: {"a": rates * h["a"] + 1.0, "b": h["b"]}  # noqa: E731
    far = run_loops(step, rates, state, loops=1, gradient="none", threshold=0.5, free=3).state["a"]
    chex.assert_trees_all_close(far[:, 0], np.array([alone(rate, 0.0, 4)[0] for rate in RATES]), rtol=1e-12)
    records = run_loops(step, rates, state, loops=6, record=lambda h: h).records
    sizes = {name: np.linalg.norm(leaf, axis=-1) ** 2 for name, leaf in records.items()}
    moved = np.linalg.norm(np.diff(records["a"], axis=0), axis=-1)
    expected = moved / np.sqrt(sizes["a"] + sizes["b"])[1:]
    chex.assert_trees_all_close(state_changes(records), expected, rtol=1e-12)


def test_loops_taken_are_those_of_recorded_changes():
    rates = jnp.asarray(RATES)[:, None]
    records = run_loops(settle, rates, jnp.zeros((4, 3)), loops=12, record=lambda h: h).records
    taken = run_loops(settle, rates, jnp.zeros((4, 3)), loops=12, gradient="none", threshold=0.1).taken
    assert exit_loops(state_changes(records), 0.1).tolist() == taken.tolist()


def test_the_threshold_is_the_cheapest_of_those_that_keep_the_accuracy():
    rng = np.random.default_rng(0)
    needed = rng.integers(1, 9, 400)  # the loop from which an example is right
    loops = np.arange(10)[:, None]
    correct = loops >= needed
    changes = np.where(loops[1:] < needed, 0.5, 0.1)
    threshold = exit_threshold(changes, correct)
    assert 0.1 < threshold <= 0.5
    taken = exit_loops(changes, threshold)
    assert taken.tolist() == needed.tolist()
    assert exit_loops(changes, 1e-9).tolist() == [9] * 400


def test_examples_that_are_right_late_and_still_early_loop_on():
    changes = np.array([[0.5, 0.01], [0.2, 0.01], [0.1, 0.01]])
    correct = np.array([[0, 0], [0, 0], [1, 0], [1, 1]])
    assert exit_loops(changes, exit_threshold(changes, correct)).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "takes threshold, and batch_ndim unless it is 1, got []"),
        ({"threshold": 0.1, "tol": 1.0}, TypeError, "got ['threshold', 'tol']"),
        ({"threshold": 0.0}, ValueError, "threshold must be positive"),
        ({"threshold": 0.1, "batch_ndim": 3}, ValueError, "batch_ndim must be at most the rank of the state, 2"),
    ],
)
def test_bad_arguments_are_named(options, error, message):
    with pytest.raises(error) as caught:
        run_loops(settle, 0.5, jnp.zeros((2, 3)), loops=2, gradient="none", **options)
    assert message in str(caught.value)


def test_shapes_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="correct must be"):
        exit_threshold(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="states must be"):
        state_changes(jnp.ones((1, 2)))


@pytest.mark.parametrize("growth", [1e10, jnp.nan])
def test_a_state_that_diverges_is_never_still(growth):
    result = run_loops(lambda params, h, x: growth * h, None, jnp.ones((2, 3)), loops=9, gradient="none", threshold=0.1)
    assert result.taken.tolist() == [9, 9]
    states = jnp.array([1e19, 2e19, 4e19])[:, None, None] * jnp.ones((3, 1, 4))
    np.testing.assert_allclose(state_changes(states), 0.5, rtol=1e-6)
    np.testing.assert_allclose(state_changes(1e-20 * (1e-21 * states)), 0.5, rtol=1e-4)
