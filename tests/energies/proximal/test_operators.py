"""Operators with traced numbers, as `prox_gradient` uses them: against NumPy, cvxpy
and finite differences."""

import functools

import chex
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.dust_reference import soft
from tests.marks import in_float64
from tests.reference import compiled, directional_derivative, gaussian, jax_array
from unroll_jax import energies
from unroll_jax.energies.proximal.activations import ACTIVATIONS

Z = gaussian(3, 4) * 2.0
STEP = 1.3
WEIGHTS = np.cos(np.arange(12.0)).reshape(3, 4)


def shortened(z, s, t):
    return z * np.maximum(1.0 - s * t / np.linalg.norm(z, axis=-1, keepdims=True), 0.0)


# Numbers, the prox in NumPy, the penalty and constraints for cvxpy.
OPERATORS = {
    "identity": ((), lambda z, s: z, lambda u: 0.0, lambda u: []),
    "relu": ((), lambda z, s: np.maximum(z, 0.0), lambda u: 0.0, lambda u: [u >= 0.0]),
    "soft_threshold": (
        (0.7,),
        lambda z, s, t: soft(z, s * t),
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
        lambda z, s, t, w: soft(z, s * t) / (1.0 + s * w),
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


def test_every_operator_is_tested():
    assert set(OPERATORS) | set(ACTIVATIONS) == set(uj.PROXIMALS)


def traced_prox(name, z, s, *numbers):
    return uj.PROXIMALS[name](*numbers).prox(z, s)


@functools.cache
def measured():
    """Of each operator, with traced and fixed numbers: gradients of the product of
    its prox with `WEIGHTS`, the prox, and penalties at it. Penalties at two copies of
    the prox (stacked) and at Z (outside) have one kind of numbers."""

    def of_one(name, z, s, *numbers):
        def total(z, s, *given):
            near = traced_prox(name, z, s, *given)
            return jnp.sum(WEIGHTS * near), near

        places = range(2 + len(numbers))
        fixed = OPERATORS[name][0]
        pulls = [jax.grad(total, places, has_aux=True)(z, s, *numbers)]
        pulls += [jax.grad(total, (0, 1), has_aux=True)(z, s, *fixed)]
        near = pulls[0][1]
        phis = [uj.PROXIMALS[name](*each) for each in (numbers, fixed)]
        return {
            "prox": [near for _, near in pulls],
            "gradients": [gradient for gradient, _ in pulls],
            "penalties": [jax.value_and_grad(phi.penalty)(near) for phi in phis],
            "stacked": phis[1].penalty(jnp.stack([near, near])),
            "outside": phis[0].penalty(z),
        }

    points = {name: (Z, STEP, *numbers) for name, (numbers, *_) in OPERATORS.items()}
    return compiled(
        lambda points: {name: of_one(name, *point) for name, point in points.items()}
    )(points)


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
    point = Z, STEP, *numbers
    directions = gaussian(3, 4, seed=3), *gaussian(len(point) - 1, seed=4)

    def shifted(distance, count):
        moves = [distance * direction for direction in directions[:count]]
        moved = map(np.add, point, moves)
        return np.sum(WEIGHTS * reference(*moved, *point[count:]))

    of_one = measured()[name]
    for gradient, near in zip(of_one["gradients"], of_one["prox"], strict=True):
        assert_allclose(near, reference(*point), rtol=1e-13, atol=1e-14)
        assert_allclose(near, u.value, atol=1e-4)
        of_distance = functools.partial(shifted, count=len(gradient))
        along = directional_derivative(of_distance, 0.0, 1.0, width=1e-5)
        slope = sum(map(np.vdot, gradient, directions))
        assert_allclose(slope, along, rtol=1e-6, atol=1e-8)


@in_float64
@every_operator
def test_penalties_of_traced_numbers_are_those_of_fixed_ones(name):
    of_one = measured()[name]
    traced, fixed = of_one["penalties"]
    numbers, _, penalty, _ = OPERATORS[name]
    exact = getattr(penalty(cp.Constant(of_one["prox"][0]), *numbers), "value", 0.0)
    assert_allclose(traced[0], exact, rtol=1e-12)
    chex.assert_trees_all_close(traced, fixed, rtol=1e-13)
    assert_allclose(of_one["stacked"], [exact] * 2, rtol=1e-12)
    assert np.isinf(of_one["outside"]) or name not in (
        "relu",
        "nonnegative_soft_threshold",
        "box",
    )


@in_float64
def test_numbers_may_be_arrays():
    rows = np.array([[0.1], [0.5], [0.0]])
    names = ("soft_threshold", "nonnegative_soft_threshold", "group_shrinkage")
    given = dict.fromkeys(names, (rows,))
    given["elastic_net"] = rows, 2.0 * rows

    @compiled
    def all_of(z, traced):
        return {
            name: (
                traced_prox(name, z, STEP, *traced[name]),
                uj.PROXIMALS[name](*numbers).penalty(z),
            )
            for name, numbers in given.items()
        }

    for name, (near, whole) in all_of(Z, given).items():
        _, reference, penalty, _ = OPERATORS[name]
        expected = reference(Z, STEP, *given[name])
        assert_allclose(near, expected, rtol=1e-13, atol=1e-14, err_msg=name)
        if name != "nonnegative_soft_threshold":
            each = (
                penalty(cp.Constant(z[None]), *numbers).value
                for z, *numbers in zip(
                    Z, *(one[:, 0] for one in given[name]), strict=True
                )
            )
            assert_allclose(whole, sum(each), rtol=1e-13, err_msg=name)


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

    bounds = [(columns, columns + 0.5), (rows, 3.0), (-3.0, rows + 1.0)]

    @compiled
    def both(z, traced):
        return [[measure(z, *ends) for ends in each] for each in (bounds, traced)]

    for ways in both(z, bounds):
        for (lower, upper), (near, inside, outside) in zip(bounds, ways, strict=True):
            assert near.dtype == dtype
            expected = np.clip(np.asarray(z, float), lower, upper)
            atol = 1e-2 if dtype == "bfloat16" else 1e-6
            assert_allclose(np.asarray(near, float), expected, atol=atol)
            assert_array_equal(inside, [0.0, 0.0])
            clipped = np.any(expected != np.asarray(z, float), axis=(-2, -1))
            assert_array_equal(outside, np.where(clipped, np.inf, 0.0))
    missing = np.full((3, 4), np.nan, np.float32)
    assert np.isnan(compiled(energies.box(columns, columns + 1.0).penalty)(missing))


def test_traced_numbers_out_of_range_give_nan():
    bad = {}
    for name, (numbers, *_) in OPERATORS.items():
        values = (-1.0, np.nan, np.inf) if name != "box" else (np.nan,)
        bad[name] = [
            (STEP, *numbers[:place], value, *numbers[place + 1 :])
            for place in range(len(numbers))
            for value in values
        ]
        bad[name].append((STEP, 1.0, 0.0) if name == "box" else (-1.0, *numbers))
    del bad["identity"], bad["relu"]

    @compiled
    def all_of(z, bad):
        return {
            name: [traced_prox(name, z, *each) for each in rows]
            for name, rows in bad.items()
        }

    for name, proxes in all_of(np.float32(Z), bad).items():
        for numbers, prox in zip(bad[name], proxes, strict=True):
            assert np.all(np.isnan(prox)), (name, numbers)


def test_zero_groups_have_gradients_and_numbers_keep_low_precision():
    slopes = compiled(
        jax.jacobian(lambda z: energies.group_shrinkage(0.5).prox(z, 1.0))
    )(np.zeros((1, 3), np.float32))
    assert np.isfinite(slopes).all()
    for name, (numbers, *_) in OPERATORS.items():
        narrow = jax.ShapeDtypeStruct(Z.shape, jnp.bfloat16)
        use = functools.partial(traced_prox, name)
        near = jax.eval_shape(use, narrow, STEP, *map(np.float32, numbers))
        assert near.dtype == jnp.bfloat16, name
