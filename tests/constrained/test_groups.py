"""Constraints as pytrees: kinds, groups, rows, penalties and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax.constrained import bertsekas_penalty, growing_penalty, switching_objective, take_rows

VIOLATIONS = {
    "gap": np.array([1.0, -1.0], np.float32),
    "sum": np.float32(-2.0),
    "deep": {"0": np.ones((2, 2), np.float32)},
}
KINDS = {"gap": "at_most", "sum": "equal", "deep": "at_most"}


def test_multipliers_have_the_structure_of_the_violations_and_the_sign_of_their_kind():
    init, update = uj.dual_ascent(optax.sgd(0.5), kinds=KINDS)
    state = jax.jit(update)(init(VIOLATIONS), VIOLATIONS)
    assert jax.tree.structure(state.multipliers) == jax.tree.structure(VIOLATIONS)
    assert state.multipliers["gap"].tolist() == [0.5, 0.0]
    assert float(state.multipliers["sum"]) == -1.0


def test_the_lagrangian_is_the_sum_over_all_groups():
    multipliers = jax.tree.map(lambda c: np.full_like(c, 0.5), VIOLATIONS)
    expected = 3.0 + 0.5 * (0.0 - 2.0 + 4.0)
    assert float(uj.lagrangian(3.0, VIOLATIONS, multipliers)) == expected
    assert float(uj.lagrangian(3.0, VIOLATIONS, multipliers, normalise=True)) == pytest.approx(expected / 4.5)


def test_options_are_prefix_trees():
    cap = {"gap": 0.25, "sum": 6.0, "deep": np.array([[0.1, 0.2], [0.3, 9.0]])}
    init, update = uj.dual_ascent(optax.sgd(1.0), kinds=KINDS, cap=cap)
    multipliers = update(init(VIOLATIONS, start={"gap": 0.0, "sum": -3.0, "deep": 0.0}), VIOLATIONS).multipliers
    assert multipliers["gap"].tolist() == [0.25, 0.0]
    assert float(multipliers["sum"]) == -5.0
    np.testing.assert_allclose(multipliers["deep"]["0"], [[0.1, 0.2], [0.3, 1.0]], rtol=1e-6)


def test_a_multiplier_restarts_once_its_constraint_is_met():
    init, update = uj.dual_ascent(optax.sgd(1.0), kinds={"a": "at_most", "b": "equal"}, restart=True)
    state = init({"a": jnp.zeros(2), "b": jnp.zeros(())}, start={"a": 5.0, "b": 5.0})
    state = update(state, {"a": jnp.array([-0.1, 0.1]), "b": jnp.array(-0.1)})
    np.testing.assert_allclose(state.multipliers["a"], [0.0, 5.1], rtol=1e-6)
    np.testing.assert_allclose(state.multipliers["b"], 4.9, rtol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [optax.sgd(0.5), optax.adam(0.5), uj.nu_pi(0.5, 1.0)], ids=["sgd", "adam", "nu_pi"]
)
def test_rows_move_as_if_they_were_alone_and_others_stay(optimizer):
    """Also the moments of the optimiser; a table of ten rows against one of the three rows that ever move."""
    init, update = uj.dual_ascent(optax.chain(optax.ema(0.5), optimizer))
    rows, steps = np.array([7, 2, 4]), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    table, alone = init({"margin": jnp.zeros(10)}), init({"margin": jnp.zeros(3)})
    by_rows = jax.jit(update)
    for step in steps:
        table = by_rows(table, {"margin": step}, rows)
        alone = by_rows(alone, {"margin": step})
    np.testing.assert_array_equal(take_rows(table.multipliers, rows)["margin"], alone.multipliers["margin"])
    assert not np.any(np.delete(np.asarray(table.multipliers["margin"]), rows))
    assert np.any(alone.multipliers["margin"] > 0.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_violations_leave_multipliers_and_the_lagrangian_in_float32(dtype):
    half = jax.tree.map(lambda c: jnp.asarray(c, dtype), VIOLATIONS)
    init, update = uj.dual_ascent(optax.adam(0.5), kinds="equal")
    state = update(init(half), half)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.multipliers)} == {np.dtype("float32")}
    for multipliers in (state.multipliers, half):
        assert uj.lagrangian(jnp.asarray(1.0, dtype), half, multipliers).dtype == jnp.float32


def test_without_an_optimiser_the_penalty_is_the_rate():
    init, update = uj.dual_ascent(None, kinds=KINDS, penalty={"gap": 2.0, "sum": 0.5, "deep": 1.0})
    state = update(init(VIOLATIONS), VIOLATIONS)
    assert state.multipliers["gap"].tolist() == [2.0, 0.0]
    assert float(state.multipliers["sum"]) == -1.0


def test_the_augmented_lagrangian_of_equalities_equals_its_definition():
    violations, multipliers, rho = np.array([0.5, -2.0]), np.array([3.0, -1.0]), np.array([0.5, 4.0])
    value = uj.augmented_lagrangian(1.0, violations, multipliers, penalty=rho, kinds="equal")
    assert float(value) == pytest.approx(1.0 + multipliers @ violations + 0.5 * rho @ violations**2)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (growing_penalty(1.0, factor=3.0, tolerance=0.1), [[3.0, 1.0, 3.0], [9.0, 1.0, 9.0]]),
        (bertsekas_penalty(1.0, factor=3.0, shrinkage=0.5, tolerance=0.1), [[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]]),
        (growing_penalty(1.0, factor=3.0, tolerance=0.1, maximum=4.0), [[3.0, 1.0, 3.0], [4.0, 1.0, 4.0]]),
        (growing_penalty(1.0, factor=1.0, increment=1.5, tolerance=0.1), [[2.5, 1.0, 2.5], [4.0, 1.0, 4.0]]),
    ],
    ids=["growing", "bertsekas", "maximum", "increment"],
)
def test_penalties_change_by_their_rule(rule, expected):
    """Violations stay, are met, and shrink to a third; the first step has none to compare with."""
    init, update = uj.dual_ascent(None, kinds="equal", penalty=rule)
    state, penalties = init(3), []
    for violations in ([-1.0, 0.05, 0.9], [-1.0, 0.05, 0.3]):
        state = update(state, np.array(violations, np.float32))
        penalties.append(state.penalty.tolist())
    assert penalties == expected


def test_rows_keep_their_caps_and_penalties():
    options = {"cap": np.array([0.1, 0.2, 0.3]), "penalty": growing_penalty(1.0)}
    init, update = uj.dual_ascent(optax.sgd(1.0), **options)
    state = jax.jit(update)(init(3), np.ones(2, np.float32), np.array([2, 0]))
    np.testing.assert_allclose(state.multipliers, [0.1, 0.0, 0.3], rtol=1e-6)
    assert state.penalty.tolist() == [2.0, 1.0, 2.0]


def test_rows_of_a_state_of_numpy_arrays_as_a_checkpoint_holds_them():
    init, update = uj.dual_ascent(optax.adam(1.0))
    state = jax.tree.map(np.asarray, init(3))
    moved = update(state, np.ones(2, np.float32), np.array([2, 0])).multipliers
    np.testing.assert_allclose(moved, [1.0, 0.0, 1.0], rtol=1e-4)
    assert jax.jit(lambda rows: take_rows(np.asarray(moved), rows))(np.array([1])).tolist() == [0.0]


def test_lists_are_a_value_for_each_group_if_the_violations_are_a_list():
    options = {"cap": [0.5, 1.5], "kinds": ["equal", "at_most"], "penalty": [1.0, 2.0]}
    init, update = uj.dual_ascent(optax.sgd(1.0), **options)
    state = init([np.zeros(2, np.float32), np.zeros(2, np.float32)], start=[-1.0, 1.0])
    assert [leaf.tolist() for leaf in state.penalty] == [[1.0, 1.0], [2.0, 2.0]]
    state = update(state, [np.ones(2, np.float32), np.ones(2, np.float32)])
    assert [leaf.tolist() for leaf in state.multipliers] == [[0.0, 0.0], [1.5, 1.5]]
    assert uj.dual_ascent(optax.sgd(1.0)).init(2, start=[1.0, 2.0]).multipliers.tolist() == [1.0, 2.0]


def test_a_donated_state_leaves_the_arrays_of_its_options():
    penalty = jnp.array([1.0, 2.0])
    init, update = uj.dual_ascent(optax.sgd(1.0), penalty=penalty)
    jax.jit(update, donate_argnums=0)(init(2), jnp.ones(2))
    assert init(2).penalty.tolist() == penalty.tolist() == [1.0, 2.0]


def test_a_group_may_be_empty():
    violations = {"none": jnp.zeros(0), "one": jnp.ones(1)}
    init, update = uj.dual_ascent(optax.adam(1.0), penalty=1.0)
    state = update(init(violations), violations)
    assert float(uj.augmented_lagrangian(1.0, violations, state.multipliers, penalty=state.penalty)) > 2.0
    assert float(switching_objective(5.0, violations)) == 1.0
    none, one = uj.constraint_report(violations, state.multipliers).groups
    assert (none.status, none.worst, none.met, one.status) == ("idle", 0.0, 1.0, "violated")


def test_traced_rows_out_of_range_move_nothing():
    init, update = uj.dual_ascent(optax.adam(1.0))
    state = jax.jit(update)(init(3), np.ones(3, np.float32), np.array([3, -1, 1]))
    np.testing.assert_allclose(state.multipliers, [0.0, 1.0, 0.0], rtol=1e-4)
