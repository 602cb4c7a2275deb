"""Operators with traced numbers, as `prox_gradient` uses them: against NumPy, cvxpy
and finite differences."""

import chex
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.comparing import assert_derivative
from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax import energies
from unroll_jax.energies.proximal.activations import ACTIVATIONS

Z = gaussian(3, 4) * 2.0
STEP = 1.3


def shortened(z, s, t):
    return z * np.maximum(1.0 - s * t / np.linalg.norm(z, axis=-1, keepdims=True), 0.0)


# Numbers, the prox in NumPy, the penalty and constraints for cvxpy.
OPERATORS = {
    "identity": ((), lambda z, s: z, lambda u: 0.0, lambda u: []),
    "relu": ((), lambda z, s: np.maximum(z, 0.0), lambda u: 0.0, lambda u: [u >= 0.0]),
    "soft_threshold": (
        (0.7,),
        lambda z, s, t: np.sign(z) * np.maximum(np.abs(z) - s * t, 0.0),
        lambda u, t: t * cp.sum(cp.abs(u)),
        lambda u, t: [],
    ),
    "nonnegative_soft_threshold": (
        (0.7,),
        lambda z, s, t: np.maximum(z - s * t, 0.0),
        lambda u, t: t * cp.sum(u),
        lambda u, t: [u >= 0.0],
    ),
    "elastic_net": (
        (0.7, 0.4),
        lambda z, s, t, w: (
            np.sign(z) * np.maximum(np.abs(z) - s * t, 0.0) / (1.0 + s * w)
        ),
        lambda u, t, w: t * cp.sum(cp.abs(u)) + w * cp.sum_squares(u) / 2,
        lambda u, t, w: [],
    ),
    "box": (
        (-0.3, 0.8),
        lambda z, s, least, most: np.clip(z, least, most),
        lambda u, least, most: 0.0,
        lambda u, least, most: [u >= least, u <= most],
    ),
    "group_shrinkage": (
        (0.7,),
        shortened,
        lambda u, t: t * cp.sum(cp.norm(u, 2, axis=1)),
        lambda u, t: [],
    ),
}
every_operator = pytest.mark.parametrize("name", OPERATORS)


def both_uses(name):
    make = uj.PROXIMALS[name]
    numbers = OPERATORS[name][0]
    return lambda z, s, *given: make(*given).prox(z, s), lambda z, s, *_: make(
        *numbers
    ).prox(z, s)


def test_every_operator_is_tested():
    assert set(OPERATORS) | set(ACTIVATIONS) == set(uj.PROXIMALS)


@in_float64
@every_operator
def test_a_prox_solves_its_problem_and_differentiates(name):
    """With fixed and traced numbers; in state, step and numbers. Z has no entry within
    1e-3 of a kink."""
    numbers, reference, penalty, constraints = OPERATORS[name]
    u = cp.Variable(Z.shape)
    objective = STEP * penalty(u, *numbers) + cp.sum_squares(u - Z) / 2
    problem = cp.Problem(cp.Minimize(objective), constraints(u, *numbers))
    problem.solve(solver=cp.CLARABEL)
    weights = np.cos(np.arange(24.0)).reshape(2, 3, 4)
    point = jax.tree.map(np.asarray, (Z, STEP, *numbers))

    def both(point):
        return jnp.stack([use(*point) for use in both_uses(name)])

    for near in compiled(both)(point):
        assert_allclose(near, reference(*point), rtol=1e-13, atol=1e-14)
        assert_allclose(near, u.value, atol=1e-4)
    value = lambda point: jnp.sum(weights * both(point))
    assert_derivative(value, point, rtol=1e-6, atol=1e-8)


@in_float64
@every_operator
def test_penalties_of_traced_numbers_are_those_of_fixed_ones(name):
    numbers, reference, penalty, _ = OPERATORS[name]
    make = uj.PROXIMALS[name]
    inside = jnp.asarray(reference(Z, STEP, *numbers))
    measure = jax.value_and_grad(lambda z, *given: make(*given).penalty(z))

    @compiled
    def all_of(z, *given):
        made = make(*given)
        further = (
            make(*numbers).penalty(jnp.stack([z, z])),
            made.penalty(jnp.asarray(Z)),
        )
        return measure(z, *given), measure(z, *numbers), *further

    traced, fixed, stacked, outside = all_of(inside, *numbers)
    exact = getattr(penalty(cp.Constant(np.asarray(inside)), *numbers), "value", 0.0)
    assert_allclose(traced[0], exact, rtol=1e-12)
    chex.assert_trees_all_close(traced, fixed, rtol=1e-13)
    assert_allclose(stacked, [exact] * 2, rtol=1e-12)
    assert np.isinf(outside) or name not in (
        "relu",
        "nonnegative_soft_threshold",
        "box",
    )


@in_float64
@pytest.mark.parametrize(
    "name",
    ["soft_threshold", "nonnegative_soft_threshold", "elastic_net", "group_shrinkage"],
)
def test_numbers_may_be_arrays(name):
    _, reference, penalty, _ = OPERATORS[name]
    rows = np.array([[0.1], [0.5], [0.0]])
    numbers = (rows, 2.0 * rows) if name == "elastic_net" else (rows,)
    prox = both_uses(name)[0]
    make = uj.PROXIMALS[name]
    near, whole = compiled(
        lambda z, *given: (prox(z, STEP, *given), make(*numbers).penalty(z))
    )(Z, *numbers)
    assert_allclose(near, reference(Z, STEP, *numbers), rtol=1e-13, atol=1e-14)
    if name != "nonnegative_soft_threshold":
        rows_apart = [
            penalty(cp.Constant(Z[i : i + 1]), *(one[i, 0] for one in numbers)).value
            for i in range(3)
        ]
        assert_allclose(whole, sum(rows_apart), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bounds_of_a_box_may_be_arrays(dtype):
    """One of each column, of each row, and of one side only, known and traced."""
    columns = np.array([-0.3, -1.0, 0.1, 0.0])
    rows = np.array([[0.0], [-1.0], [0.2]])
    z = jax_array(np.stack([Z, 0.0 * Z]), dtype)

    def measure(z, lower, upper):
        phi = energies.box(lower, upper)
        near = phi.prox(z, 1.0)
        return near, phi.penalty(near), phi.penalty(z)

    for lower, upper in ((columns, columns + 0.5), (rows, 3.0), (-3.0, rows + 1.0)):

        @compiled
        def ways(z, *ends, known=(lower, upper)):
            return [
                measure(z, *known),
                measure(z, *ends),
            ]

        for near, inside, outside in ways(z, lower, upper):
            assert near.dtype == dtype
            expected = np.clip(np.asarray(z, float), lower, upper)
            atol = 1e-2 if dtype == "bfloat16" else 1e-6
            assert_allclose(np.asarray(near, float), expected, atol=atol)
            assert_array_equal(inside, [0.0, 0.0])
            clipped = np.any(expected != np.asarray(z, float), axis=(-2, -1))
            assert_array_equal(outside, np.where(clipped, np.inf, 0.0))
    missing = np.full((3, 4), np.nan, np.float32)
    assert np.isnan(compiled(energies.box(columns, columns + 1.0).penalty)(missing))


@pytest.mark.parametrize(
    "name", [name for name, (numbers, *_) in OPERATORS.items() if numbers]
)
def test_traced_numbers_out_of_range_give_nan(name):
    numbers = OPERATORS[name][0]
    use = compiled(both_uses(name)[0])
    for place in range(len(numbers)):
        for value in (-1.0, np.nan, np.inf) if name != "box" else (np.nan,):
            given = [
                value if i == place else number for i, number in enumerate(numbers)
            ]
            assert np.all(np.isnan(use(np.float32(Z), STEP, *given))), (place, value)
    if name == "box":
        assert np.all(np.isnan(use(np.float32(Z), STEP, 1.0, 0.0)))
    else:
        assert np.all(np.isnan(use(np.float32(Z), -1.0, *numbers)))


def test_zero_groups_have_gradients_and_numbers_keep_low_precision():
    slopes = compiled(
        jax.jacobian(lambda z: energies.group_shrinkage(0.5).prox(z, 1.0))
    )(np.zeros((1, 3), np.float32))
    assert np.isfinite(slopes).all()
    for name, (numbers, *_) in OPERATORS.items():
        near = jax.eval_shape(
            both_uses(name)[0],
            jnp.asarray(Z, jnp.bfloat16),
            STEP,
            *map(jnp.float32, numbers),
        )
        assert near.dtype == jnp.bfloat16, name
