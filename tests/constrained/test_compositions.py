"""Averages, steps in several calls, warm-up, groups and masks, composed from optax, against loops in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax.constrained import proportional_integral

VIOLATIONS = np.random.default_rng(3).normal(size=(24, 3))


def in_calls(optimizer, count):
    """One step on the mean of ``count`` calls, accumulated in the precision of the multipliers."""
    return optax.MultiSteps(optimizer, count, accumulator_dtype=jnp.result_type(float)).gradient_transformation()


def after(optimizer, first):
    """Still for ``first`` calls."""
    return optax.conditionally_mask(optimizer, lambda step, **_: step >= first)


def masked(optimizer, still):
    """Entries of one array of multipliers that never move."""
    zero = optax.stateless(lambda updates, _: jax.tree.map(lambda u: jnp.where(still, 0.0, u), updates))
    return optax.chain(optimizer, zero)


def multipliers_after(dual, violations=VIOLATIONS, start=0.0):
    """Multipliers after every call, (T, C)."""

    def step(state, row):
        state = dual.update(state, row)
        return state, state.multipliers

    rows = jnp.asarray(violations)
    return np.asarray(jax.jit(lambda rows: jax.lax.scan(step, dual.init(rows.shape[1], start), rows)[1])(rows))


@pytest.mark.usefixtures("x64")
def test_ema_puts_a_moving_average_in_the_place_of_violations():
    """a_t = sum_s decay^(t - s) c_s / sum_s decay^(t - s)."""
    multipliers, expected = np.zeros(3), []
    for call in range(len(VIOLATIONS)):
        average = np.average(VIOLATIONS[: call + 1], axis=0, weights=0.8 ** np.arange(call, -1, -1))
        multipliers = np.maximum(multipliers + 0.1 * average, 0.0)
        expected.append(multipliers)
    actual = multipliers_after(uj.dual_ascent(optax.chain(optax.ema(0.8), optax.sgd(0.1))))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_all_of_them_together_equal_a_loop():
    """Warm-up, then means of two, less lambda / beta, projected to [0, cap]; one constraint still."""
    start = np.array([0.2, 0.25, 0.0])
    multipliers, expected, pair = start.copy(), [], []
    for call, violation in enumerate(VIOLATIONS):
        if call >= 3:
            pair.append(violation)
            if len(pair) == 2:
                gradient = np.mean(pair, axis=0) - multipliers / 3.0
                multipliers = np.clip(multipliers + 0.1 * gradient, 0.0, 0.3)
                multipliers[1], pair = start[1], []
        expected.append(multipliers.copy())
    optimizer = after(in_calls(masked(optax.sgd(0.1), np.array([False, True, False])), 2), 3)
    actual = multipliers_after(uj.dual_ascent(optimizer, resilience=3.0, cap=0.3), start=start)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    assert np.max(actual) == 0.3  # the cap was met
    assert len(np.unique(actual[:, 0])) > 5  # and something moved


def test_adam_begins_after_the_warm_up():
    """Its moments are those of the calls that counted."""
    multipliers = multipliers_after(uj.dual_ascent(after(optax.adam(0.1), 5)))
    plain = multipliers_after(uj.dual_ascent(optax.adam(0.1)), VIOLATIONS[5:])
    np.testing.assert_array_equal(multipliers[:5], np.zeros((5, 3)))
    np.testing.assert_allclose(multipliers[5:], plain, rtol=1e-6, atol=1e-7)


def test_a_schedule_of_optax_is_the_rate_of_the_call():
    rates = optax.linear_schedule(0.2, 0.0, 10)
    multipliers, expected = np.zeros(3), []
    for call, violation in enumerate(VIOLATIONS):
        multipliers = np.maximum(multipliers + float(rates(call)) * violation, 0.0)
        expected.append(multipliers)
    np.testing.assert_allclose(multipliers_after(uj.dual_ascent(optax.sgd(rates))), expected, rtol=1e-5, atol=1e-6)


def test_each_group_has_its_optimiser_or_none():
    rates = {"one": optax.sgd(1.0), "two": optax.adam(0.5), "still": optax.set_to_zero()}
    labels = {"gap": "one", "deep": {"0": "two"}, "fixed": "still"}
    violations = {"gap": jnp.array([1.0, -1.0]), "deep": {"0": jnp.ones((2, 2))}, "fixed": jnp.ones(())}
    init, update = uj.dual_ascent(optax.partition(rates, labels))
    multipliers = update(init(violations, start={"gap": 0.0, "deep": 0.0, "fixed": 3.0}), violations).multipliers
    assert multipliers["gap"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(multipliers["deep"]["0"], 0.5, rtol=1e-4)
    assert float(multipliers["fixed"]) == 3.0


def test_accumulated_gradients_and_violations_take_the_step_of_the_whole_batch():
    """`MultiSteps` around both inner optimisers of a chain: two micro-batches of one sample against a batch of two."""
    dual = uj.dual_ascent(in_calls(optax.sgd(1.0), 2))
    optimizer = optax.chain(optax.clip(10.0), uj.primal_dual(in_calls(optax.sgd(0.1), 2), dual, violations=1))
    params = jnp.array([2.0])
    state = optimizer.init(params)
    for violation in (1.0, 3.0):
        updates, state = optimizer.update(jnp.array([violation]), state, params, violations=jnp.array([violation]))
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params, [1.8], rtol=1e-6)
    np.testing.assert_allclose(uj.multipliers_of(state), [2.0], rtol=1e-6)


def test_restarts_and_penalties_wait_with_the_multipliers():
    restarted, grown = [], []
    restart = uj.dual_ascent(in_calls(optax.sgd(1.0), 2), restart=True)
    grow = uj.dual_ascent(in_calls(optax.sgd(1.0), 2), penalty=uj.constrained.growing_penalty(1.0))
    met, violated = restart.init(1, start=5.0), grow.init(1)
    for _ in range(4):
        met, violated = restart.update(met, -jnp.ones(1)), grow.update(violated, jnp.ones(1))
        restarted.append(float(met.multipliers[0]))
        grown.append(float(violated.penalty[0]))
    assert restarted == [5.0, 0.0, 0.0, 0.0]
    assert grown == [1.0, 2.0, 2.0, 4.0]


@pytest.mark.parametrize("name", ["sgd", "adam", "pi", "nu_pi"])
def test_a_capped_multiplier_falls_as_soon_as_its_constraint_is_met(name):
    """After 1000 violated steps at the cap; an integral that had wound up to 100 would hold it there for long."""
    options = {"proportional_gain": 0.5} if name.endswith("pi") else {}
    optimizer = proportional_integral(0.1, 0.5, cap=1.0) if name == "pi" else uj.dual_optimizer(name, 0.1, **options)
    violations = np.concatenate([np.ones((1000, 1)), -np.ones((20, 1))])
    multipliers = multipliers_after(uj.dual_ascent(optimizer, cap=1.0), violations)[:, 0]
    assert multipliers.max() == 1.0
    assert multipliers[999] == 1.0
    assert multipliers[-1] < 0.9 if name == "adam" else multipliers[-1] == 0.0  # Adam's moments need longer to turn


def test_without_options_the_state_is_the_optimisers():
    chex.assert_trees_all_equal(uj.dual_ascent(optax.adam(0.1)).init(3).opt_state, optax.adam(0.1).init(jnp.zeros(3)))
