"""Every solver of the table and every adjoint of the table, against float64 autodiff
through a converged unroll."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    relative_error,
    skew_weights,
    symmetric_weights,
    tanh_step,
    unrolled,
)
from tests.marks import in_float64, nightly
from tests.reference import compiled, jax_array
from unroll_jax import fixed_point
from unroll_jax.fixed_point import ADJOINTS, SOLVERS

pytestmark = in_float64
# Averaging takes all of its steps, to the point of least regulariser, at another rate:
# see test_averaging.
SOLVING = [name for name in SOLVERS if name != "averaged"]
# The first two are inexact by choice. The others have no adjoint system.
EXACT = [name for name in ADJOINTS if name not in ("neumann", "one_step", "unrolled")]
OPTIONS = {"tol": 1e-10, "max_steps": 2000, "on_failure": "accept", "batch_ndim": 1}


class Problem(NamedTuple):
    """A layer, and the entries that are crossed on it. None is the default of
    `equilibrium`."""

    layer: object
    params: object
    x: object
    solvers: list
    adjoints: list


def named(names, table, *, symmetric):
    return [name for name in names if table[name]().symmetric == symmetric]


def general():
    """Far from normal: for the entries that need no symmetry. An example is smaller
    than the others."""
    x = inputs(4, 8) * np.array([1.0, 0.01, 1.0, 1.0])[:, None]
    solvers = named(SOLVING, SOLVERS, symmetric=False)
    adjoints = named(EXACT, ADJOINTS, symmetric=False)
    return Problem(tanh_step, skew_weights(), x, [*solvers, None], [*adjoints, None])


def opteq():
    """Symmetric, for the entries that need it, and factored: named entries are solved
    in the layer's small space. A general entry of each table represents all: the two
    share the point and, if only one is named, the small space.
    """
    W, U = symmetric_weights()
    layer = uj.opteq(8, 6, 3, skip=0.9)
    params = uj.OptEqParams(W, U, jax_array(np.linspace(-0.3, 0.3, 6)))
    solvers = named(SOLVING, SOLVERS, symmetric=True)
    adjoints = named(EXACT, ADJOINTS, symmetric=True)
    return Problem(
        layer,
        params,
        inputs(4, 3),
        ["picard", *solvers, None],
        ["gmres", *adjoints, None],
    )


PROBLEMS = {"general": general, "opteq": opteq}


def loss_of(y):
    return jnp.sum(jnp.sin(y) * np.arange(8.0))


def by_unroll(problem, params, x):
    step = getattr(problem.layer, "step", problem.layer)

    def loss(params, x):
        return loss_of(unrolled(step, params, jnp.zeros((4, 8)), x, steps=400))

    return jax.grad(loss, (0, 1))(params, x)


def gradient_from(problem, solver, adjoint):
    def loss(params, x, start):
        y, info = uj.equilibrium(
            problem.layer, params, start, x, solver=solver, adjoint=adjoint, **OPTIONS
        )
        return loss_of(y), (y, info.converged.all())

    return jax.grad(loss, (0, 1), has_aux=True)


def staying():
    """A solver that stays at its start. The gradient is then the adjoint's, at a
    point found before."""
    none = jax_array(np.zeros(4, np.int32))
    return fixed_point.picard()._replace(run=lambda apply, z, tol, max_steps: (z, none))


PAIRS = {
    "general": [(None, None)],
    "opteq": [
        (None, None),
        (None, "conjugate_gradient"),
        ("picard", fixed_point.unrolled(150)),
        ("accelerated_gradient", fixed_point.unrolled(150)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_gradient_is_that_of_an_unroll(name):
    """Gradients of every adjoint at every solver's point, and of pairs in one call. The
    two solves share only the point: each is compiled once. In one call a factored layer
    reuses its forward solve. Solvers that unroll are in test_unrolled.
    """
    problem = PROBLEMS[name]()

    @compiled
    def run(params, x):
        start = jnp.zeros((4, 8))
        solved = [
            uj.equilibrium(problem.layer, params, start, x, solver=s, **OPTIONS)
            for s in problem.solvers
        ]
        points = jnp.stack([y for y, _ in solved])

        def at_all(adjoint):
            return jax.vmap(gradient_from(problem, staying(), adjoint), (None, None, 0))

        results = [at_all(adjoint)(params, x, points) for adjoint in problem.adjoints]
        pairs = [
            gradient_from(problem, *pair)(params, x, start) for pair in PAIRS[name]
        ]
        converged = [info.converged for _, info in solved]
        return converged, results, pairs, by_unroll(problem, params, x)

    converged, results, pairs, expected = run(problem.params, problem.x)
    for solver, rows in zip(problem.solvers, converged, strict=True):
        assert rows.all(), solver
    for adjoint, (gradients, (_, still)) in zip(problem.adjoints, results, strict=True):
        for place, solver in enumerate(problem.solvers):
            gradient = jax.tree.map(lambda leaf: leaf[place], gradients)  # noqa: B023
            assert still[place], (solver, adjoint)
            assert relative_error(gradient, expected) < 1e-6, (solver, adjoint)
    for pair, (gradient, (_, still)) in zip(PAIRS[name], pairs, strict=True):
        assert still, pair
        assert relative_error(gradient, expected) < 1e-6, pair


# the largest slope of sech^2, the derivative of tanh, is 4 / (3 sqrt 3)
SLOPE = 4.0 / 27.0**0.5
LAYER = uj.opteq(8, 8, activation="tanh")


def drawn(kind, seed):
    """Weights, and c, beta, L_J, L_B of f = tanh(A z + b), or of W^T tanh(W z + b):
    B = W^T D and J = W^T D W."""
    c = (0.3, 0.7, 0.95)[seed % 3]
    if kind == "tanh":
        return skew_weights(norm=c, seed=seed), (c, 1.0, SLOPE * c**2, SLOPE * c)
    return symmetric_weights(8, 8, square=c, seed=seed)[0], (
        c,
        c**0.5,
        SLOPE * c**1.5,
        SLOPE * c,
    )


# A layer, its parameters and input, and solvers, adjoints and tolerances.
BOUNDED = {
    "tanh": (
        tanh_step,
        lambda weights, b: (weights, b),
        [
            ("picard", "gmres", 1e-3),
            ("picard", "gmres", 1e-7),
            ("anderson", "gmres", 1e-3),
        ],
    ),
    "opteq": (
        LAYER,
        lambda weights, b: (uj.OptEqParams(weights, None, b), None),
        [
            (None, None, 1e-3),
            (None, None, 1e-7),
            ("accelerated_gradient", "conjugate_gradient", 1e-7),
        ],
    ),
}


@nightly
@pytest.mark.parametrize("kind", BOUNDED)
def test_the_documented_error_bounds_hold_over_random_problems(kind):
    """Loss |y|^2 / 2 with L_v = 1; gradient in b. Problems of the same shape share
    one program."""
    layer, given, cases = BOUNDED[kind]
    step = getattr(layer, "step", layer)

    def apply(weights, z, b):
        params, x = given(weights, b)
        return step(params, z, x)

    def solved(weights, b, solver, adjoint, tol):

        def loss(b):
            params, x = given(weights, b)
            y, info = uj.equilibrium(
                layer,
                params,
                jnp.zeros(8),
                x,
                solver=solver,
                adjoint=adjoint,
                tol=tol,
                adjoint_tol=tol,
            )
            return 0.5 * jnp.sum(y**2), (y, info.residual)

        return jax.grad(loss, has_aux=True)(b)

    @compiled
    def figures(weights, b):
        exact = unrolled(apply, weights, jnp.zeros(8), b, steps=2000)
        J, B = jax.jacobian(apply, (1, 2))(weights, exact, b)
        return exact, B, J, [solved(weights, b, *case) for case in cases]

    for seed in range(9):
        weights, (c, beta, L_J, L_B) = drawn(kind, seed)
        exact, B, J, results = figures(weights, inputs(8, seed=seed))
        right = B.T @ np.linalg.solve(np.eye(8) - J.T, exact)
        size = np.linalg.norm(exact)
        for (*pair, tol), (gradient, (y, residual)) in zip(cases, results, strict=True):
            e = residual * np.linalg.norm(y) / (1.0 - c)
            assert np.linalg.norm(y - exact) <= c * e + 1e-13, (seed, pair, tol)
            of_system = tol * np.linalg.norm(y) + c * e + L_J * e * size / (1.0 - c)
            bound = beta / (1.0 - c) * of_system + L_B * e * size / (1.0 - c)
            error = np.linalg.norm(gradient - right)
            assert 0.0 < error <= bound + 1e-13, (seed, pair, tol)
