"""Constraints as pytrees: kinds, groups, rows, penalties and dtypes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.constrained import growing_penalty, proportional_integral, take_rows

SGD = optax.sgd(1.0)
VIOLATIONS = {
    "gap": np.float32([1.0, -1.0]),
    "sum": np.float32(-2.0),
    "deep": {"0": np.ones((2, 2), np.float32)},
}
KINDS = {"gap": "at_most", "sum": "equal", "deep": "at_most"}


def moved(optimizer=SGD, violations=VIOLATIONS, start=0.0, **options):
    init, update = uj.dual_ascent(optimizer, **options)
    run = compiled(lambda violations: update(init(violations, start), violations))
    return run(violations)


def values(tree):
    return jax.tree.map(lambda leaf: leaf.tolist(), tree)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {
                "kinds": KINDS,
                "cap": {
                    "gap": 0.25,
                    "sum": 6.0,
                    "deep": np.array([[0.125, 0.5], [0.25, 9.0]]),
                },
                "start": {"gap": 0.0, "sum": -3.0, "deep": 0.0},
            },
            ([0.25, 0.0], -5.0, [[0.125, 0.5], [0.25, 1.0]]),
        ),
        (
            {
                "optimizer": None,
                "kinds": KINDS,
                "penalty": {"gap": 2.0, "sum": 0.5, "deep": 1.0},
            },
            ([2.0, 0.0], -1.0, [[1.0, 1.0], [1.0, 1.0]]),
        ),
        (
            {"kinds": KINDS, "restart": True, "start": 5.0},
            ([6.0, 0.0], 3.0, [[6.0, 6.0], [6.0, 6.0]]),
        ),
    ],
    ids=["prefix trees", "the penalty is the rate", "restart"],
)
def test_multipliers_have_the_structure_of_the_violations_and_their_options(
    options, expected
):
    state = moved(**options)
    assert values(state.multipliers) == {
        "gap": expected[0],
        "sum": expected[1],
        "deep": {"0": expected[2]},
    }


def test_violations_are_detached():
    init, update = uj.dual_ascent(SGD)
    assert not np.any(
        compiled(jax.grad(lambda c: jnp.sum(update(init(2), c).multipliers)))(
            np.ones(2)
        )
    )


def test_rows_move_as_if_they_were_alone_and_others_stay():
    """Also the moments of the optimiser; a table of ten rows against one of the
    three rows that ever move."""
    init, update = uj.dual_ascent(optax.chain(optax.ema(0.5), optax.adam(0.5)))
    rows = np.array([7, 2, 4])
    steps = gaussian(4, 3).astype(np.float32)

    def both(states, step):
        table, few = states
        return (
            update(table, {"margin": step}, rows),
            update(few, {"margin": step}),
        ), None

    @compiled
    def run(steps):
        start = tuple(init({"margin": jnp.zeros(count)}) for count in (10, 3))
        return [
            state.multipliers["margin"] for state in jax.lax.scan(both, start, steps)[0]
        ]

    table, few = map(np.asarray, run(steps))
    assert_array_equal(table[rows], few)
    assert not np.any(np.delete(table, rows))
    assert np.any(few > 0.0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_short_violations_leave_multipliers_and_the_lagrangian_in_float32(dtype):
    half = jax.tree.map(lambda c: c.astype(dtype), VIOLATIONS)
    init, update = uj.dual_ascent(optax.adam(0.5), kinds="equal")

    def results(half):
        prices = update(init(half), half).multipliers
        return prices, [
            uj.lagrangian(jnp.ones((), dtype), half, given) for given in (prices, half)
        ]

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(results, half))} == {
        np.dtype("float32")
    }


RULES = [
    ({}, [[3.0, 1.0, 3.0], [9.0, 1.0, 9.0]]),
    ({"shrinkage": 0.5}, [[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]]),
    ({"maximum": 4.0}, [[3.0, 1.0, 3.0], [4.0, 1.0, 4.0]]),
    ({"factor": 1.0, "increment": 1.5}, [[2.5, 1.0, 2.5], [4.0, 1.0, 4.0]]),
]


def test_penalties_change_by_their_rule():
    """Violations stay, are met, and shrink to a third. The first step has none to
    compare with."""
    rules = [
        growing_penalty(1.0, **{"factor": 3.0, "tolerance": 0.1} | options)
        for options, _ in RULES
    ]
    duals = [uj.dual_ascent(None, kinds="equal", penalty=rule) for rule in rules]

    def step(states, violations):
        states = [
            dual.update(state, violations)
            for dual, state in zip(duals, states, strict=True)
        ]
        return states, [state.penalty for state in states]

    rows = np.float32([[-1.0, 0.05, 0.9], [-1.0, 0.05, 0.3]])
    penalties = compiled(
        lambda rows: jax.lax.scan(step, [dual.init(3) for dual in duals], rows)[1]
    )(rows)
    for (options, expected), actual in zip(RULES, penalties, strict=True):
        assert actual.tolist() == expected, options


def test_a_donated_state_leaves_the_arrays_of_its_options():
    penalty = jax_array([1.0, 2.0])
    init, update = uj.dual_ascent(SGD, penalty=penalty)
    compiled(update, donate_argnums=0)(init(2), jnp.ones(2))
    assert init(2).penalty.tolist() == penalty.tolist() == [1.0, 2.0]


def test_a_group_may_be_empty():
    violations = {"none": np.zeros(0, np.float32), "one": np.ones(1, np.float32)}
    state = moved(optax.adam(1.0), violations, penalty=1.0)
    lagrangian = compiled(functools.partial(uj.lagrangian, 1.0))
    assert lagrangian(violations, state.multipliers, penalty=state.penalty) > 2.0
    none, one = uj.constraint_report(violations, state.multipliers).groups
    assert (none.status, none.worst, none.met, one.status) == (
        "idle",
        0.0,
        1.0,
        "violated",
    )


def test_rows_of_every_width_are_rows():
    """Of 300 points, which an int8 does not count; known and traced rows, of a state of
    NumPy arrays."""
    table = np.arange(300.0, dtype=np.float32)
    kinds = ("int8", "uint8", "int16", "int32", "uint32")
    every = [np.array([3, 127, 0], kind) for kind in kinds]
    dual = uj.dual_ascent(optax.adam(1.0))
    state = jax.device_get(dual.init(300))

    def run(rows):
        moved = dual.update(state, np.ones(3, np.float32), rows)
        return take_rows(table, rows), moved.multipliers

    results = compiled(lambda traced: [run(rows) for rows in (*every, *traced)])(every)
    for taken, moved in results:
        assert_array_equal(taken, [3.0, 127.0, 0.0])
        assert_array_equal(np.flatnonzero(moved), [0, 3, 127])


def test_traced_rows_out_of_range_move_nothing_others_keep_caps():
    """Rows 1, 7 and -1 of four: as row 1, with multipliers of 0. With
    violations in all three, the cap and the penalty of row 1."""
    caps = np.array([0.1, 0.2, 0.3, 0.4])
    duals = [
        uj.dual_ascent(optax.sgd(0.5)),
        uj.dual_ascent(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))),
        uj.dual_ascent(optax.adam(0.5), resilience=2.0),
        uj.dual_ascent(proportional_integral(0.5)),
        uj.dual_ascent(optax.adam(0.5), cap=caps, penalty=growing_penalty(1.0)),
    ]

    @compiled
    def run(rows, c):
        return [dual.update(dual.init(4), c, rows) for dual in duals]

    violations = np.float32([1.0, 0.0, 0.0])
    *states, _ = run(np.array([1, 7, -1]), violations)
    *expected, _ = run(np.array([1, 2, 3]), violations)
    chex.assert_trees_all_equal(states, expected)
    assert all(state.multipliers[1] > 0.0 for state in states)
    *_, capped = run(np.array([1, 7, -1]), np.ones(3, np.float32))
    assert_allclose(capped.multipliers, [0.0, 0.2, 0.0, 0.0], rtol=1e-6)
    assert capped.penalty.tolist() == [1.0, 2.0, 1.0, 1.0]
