"""When multipliers move and on what: `dual_ascent`'s options, against loops in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax.constrained import proportional_integral

VIOLATIONS = np.random.default_rng(3).normal(size=(24, 3))
EVERYTHING = {
    "resilience": 3.0,
    "every": 2,
    "smoothing": 0.7,
    "warmup": 3,
    "freeze_after": 21,
    "frozen": np.array([False, True, False]),
    "cap": 0.3,
}


def multipliers_after(dual, violations=VIOLATIONS, start=0.0):
    """Multipliers after every call, (T, C)."""

    def step(state, row):
        state = dual.update(state, row)
        return state, state.multipliers

    rows = jnp.asarray(violations)
    return np.asarray(jax.jit(lambda rows: jax.lax.scan(step, dual.init(rows.shape[1], start), rows)[1])(rows))


@pytest.mark.usefixtures("x64")
def test_a_step_every_three_calls_takes_their_mean():
    multipliers, expected = np.zeros(3), []
    for call, _ in enumerate(VIOLATIONS):
        if call % 3 == 2:
            multipliers = np.maximum(multipliers + 0.1 * VIOLATIONS[call - 2 : call + 1].mean(axis=0), 0.0)
        expected.append(multipliers)
    actual = multipliers_after(uj.dual_ascent(optax.sgd(0.1), every=3))
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_smoothing_puts_a_moving_average_in_the_place_of_violations():
    """a_t = sum_s decay^(t - s) c_s / sum_s decay^(t - s)."""
    multipliers, expected = np.zeros(3), []
    for call in range(len(VIOLATIONS)):
        weights = 0.8 ** np.arange(call, -1, -1)
        average = np.average(VIOLATIONS[: call + 1], axis=0, weights=weights)
        multipliers = np.maximum(multipliers + 0.1 * average, 0.0)
        expected.append(multipliers)
    actual = multipliers_after(uj.dual_ascent(optax.sgd(0.1), smoothing=0.8))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_all_options_together_equal_a_loop():
    """Warm-up, then means of two, smoothed, less lambda / beta, projected to [0, cap]; one constraint frozen."""
    start = np.array([0.2, 0.25, 0.0])
    multipliers, expected, pair, weighted, weight = start.copy(), [], [], np.zeros(3), 0.0
    for call, violation in enumerate(VIOLATIONS):
        if 3 <= call < 21:
            pair.append(violation)
            if len(pair) == 2:
                weighted, weight = 0.7 * weighted + np.mean(pair, axis=0), 0.7 * weight + 1.0
                gradient = weighted / weight - multipliers / 3.0
                multipliers = np.clip(multipliers + 0.1 * gradient, 0.0, 0.3)
                multipliers[1], pair = start[1], []
        expected.append(multipliers.copy())
    actual = multipliers_after(uj.dual_ascent(optax.sgd(0.1), **EVERYTHING), start=start)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    assert np.max(actual) == 0.3  # the cap was met
    assert len(np.unique(actual[:, 0])) > 5  # and something moved


def test_warmup_and_freeze_leave_the_steps_between_as_they_are():
    """Adam too begins only after the warm-up: its moments are those of the calls that counted."""
    multipliers = multipliers_after(uj.dual_ascent(optax.adam(0.1), warmup=5, freeze_after=15))
    plain = multipliers_after(uj.dual_ascent(optax.adam(0.1)), VIOLATIONS[5:15])
    np.testing.assert_array_equal(multipliers[:5], np.zeros((5, 3)))
    np.testing.assert_allclose(multipliers[5:15], plain, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(multipliers[15:], np.broadcast_to(multipliers[14], (9, 3)))


@pytest.mark.parametrize("frozen", [(True, False, True), np.array([True, False, False]), True, False], ids=str)
def test_frozen_multipliers_stay_where_they_start_and_others_do_not_notice(frozen):
    start = np.array([0.5, 1.0, 2.0], np.float32)
    free = multipliers_after(uj.dual_ascent(optax.adam(0.1)), start=start)
    multipliers = multipliers_after(uj.dual_ascent(optax.adam(0.1), frozen=frozen), start=start)
    places = np.flatnonzero(np.broadcast_to(frozen, 3))
    for place in range(3):
        expected = np.full(24, start[place]) if place in places else free[:, place]
        np.testing.assert_allclose(multipliers[:, place], expected, rtol=1e-6)


def test_no_multiplier_exceeds_its_cap():
    pushed = np.ones((30, 2))
    for cap, expected in ((1.5, [1.5, 1.5]), ((0.5, 2.0), [0.5, 2.0])):
        np.testing.assert_allclose(multipliers_after(uj.dual_ascent(optax.sgd(0.1), cap=cap), pushed)[-1], expected)


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


def test_a_fixed_penalty_is_multipliers_frozen_at_their_start():
    multipliers = multipliers_after(uj.dual_ascent(optax.sgd(0.1), frozen=True), start=0.75)
    np.testing.assert_array_equal(multipliers, np.full((24, 3), 0.75, np.float32))


def test_a_run_resumed_from_the_arrays_of_its_state_goes_on_exactly():
    dual = uj.dual_ascent(optax.adam(0.1), **EVERYTHING)
    update = jax.jit(dual.update)
    state = dual.init(3)
    for row in jnp.asarray(VIOLATIONS[:10]):
        state = update(state, row)
    saved, structure = [np.asarray(leaf) for leaf in jax.tree.leaves(state)], jax.tree.structure(dual.init(3))
    resumed = jax.tree.unflatten(structure, saved)
    for row in jnp.asarray(VIOLATIONS[10:]):
        state, resumed = update(state, row), update(resumed, row)
    chex.assert_trees_all_equal(resumed, state)


def test_without_options_the_state_is_the_optimisers_own():
    chex.assert_trees_all_equal(uj.dual_ascent(optax.adam(0.1)).init(3).opt_state, optax.adam(0.1).init(jnp.zeros(3)))


BAD_OPTIONS = [
    ({"every": 0}, "every must be at least 1, got 0"),
    ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1.0"),
    ({"smoothing": float("nan")}, r"smoothing must be in \[0, 1\), got nan"),
    ({"warmup": -1}, "warmup must be at least 0, got -1"),
    ({"warmup": 5, "freeze_after": 4}, "freeze_after must be at least warmup=5, or None, got 4"),
    ({"cap": 0.0}, "cap must be positive and finite, got 0.0"),
    ({"cap": (1.0, float("inf"))}, r"cap\[1\] must be positive and finite, got inf"),
    ({"cap": (1.0, 2.0)}, r"cap must be one value or have shape \(3,\)"),
    ({"frozen": (True, False)}, r"frozen must be one value or have shape \(3,\)"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[row[1] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        uj.dual_ascent(optax.sgd(0.1), **options).init(3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("start", [-0.1, (1.0, 2.0), float("nan"), float("inf")], ids=str)
def test_a_bad_start_is_named(start):
    with pytest.raises(ValueError, match=r"start must be (finite|one value)"):
        uj.dual_ascent(optax.sgd(0.1)).init(3, start)
