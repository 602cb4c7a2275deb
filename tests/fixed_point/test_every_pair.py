"""Every solver of the table with every adjoint of the table, against float64 autodiff through a converged unroll."""

import itertools
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
from unroll_jax import fixed_point
from unroll_jax.fixed_point import ADJOINTS, SOLVERS

pytestmark = pytest.mark.usefixtures("x64")

# Averaging takes all of its steps, to the point of least regulariser, at a rate of its own: see test_averaging.
SOLVING = [name for name in SOLVERS if name != "averaged"]
# These two are inexact by choice, and unrolling has no adjoint system.
EXACT = [name for name in ADJOINTS if name not in ("neumann", "one_step", "unrolled")]
OPTIONS = {"tol": 1e-10, "max_steps": 2000, "on_failure": "accept", "batch_ndim": 1}


class Problem(NamedTuple):
    """A layer, and which entries claim it; None is what `equilibrium` chooses by itself."""

    layer: object
    step: object
    params: object
    x: object
    solvers: list
    adjoints: list


def general():
    """Far from normal: for the entries that need no symmetry."""
    names = (
        [n for n in table if not entries[n]().symmetric] for table, entries in ((SOLVING, SOLVERS), (EXACT, ADJOINTS))
    )
    return Problem(tanh_step, tanh_step, skew_weights(), inputs(4, 8), *([*own, None] for own in names))


def opteq():
    """Symmetric, and factored: what is chosen is solved in the layer's own small space."""
    W, U = symmetric_weights()
    layer, params = uj.opteq(8, 6, 3, skip=0.9), uj.OptEqParams(W, U, jnp.linspace(-0.3, 0.3, 6))
    return Problem(layer, layer.step, params, inputs(4, 3), [*SOLVING, None], [*EXACT, None])


PROBLEMS = {"general": general, "opteq": opteq}
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def loss_of(y):
    return jnp.sum(jnp.sin(y) * jnp.arange(8.0))


def expected_gradient(problem):
    zeros = jnp.zeros((4, 8))
    loss = lambda params, x: loss_of(unrolled(problem.step, params, zeros, x, steps=400))  # noqa: E731
    return jax.jit(jax.grad(loss, (0, 1)))(problem.params, problem.x)


def gradient_from(problem, solver, adjoint):
    """``start -> (gradient, whether all converged)``, compiled."""

    def loss(params, x, start):
        y, info = uj.equilibrium(problem.layer, params, start, x, solver=solver, adjoint=adjoint, **OPTIONS)
        return loss_of(y), info.converged.all()

    compiled = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    return lambda start: compiled(problem.params, problem.x, start)


def staying():
    """A solver that stays where it starts: the gradient is then that of an adjoint at a point found before."""
    none = jnp.zeros(4, jnp.int32)
    return fixed_point.picard()._replace(unrollable=False, whole=lambda problem, z, tol, max_steps: (z, none))


@every_problem
def test_the_gradient_of_every_adjoint_at_the_point_of_every_solver_is_that_of_an_unroll(name):
    """The full table. The two solves share the point alone, so that each is compiled once and not once a pair."""
    problem = PROBLEMS[name]()
    expected, errors, points = expected_gradient(problem), {}, {}
    for solver in problem.solvers:
        solve = jax.jit(
            lambda p, x, s=solver: uj.equilibrium(problem.layer, p, jnp.zeros((4, 8)), x, solver=s, **OPTIONS)
        )
        points[solver], info = solve(problem.params, problem.x)
        assert info.converged.all(), solver
    for adjoint in problem.adjoints:
        gradient = gradient_from(problem, staying(), adjoint)
        for solver, point in points.items():
            found, converged = gradient(point)
            assert converged, (solver, adjoint)
            errors[solver, adjoint] = relative_error(found, expected)
    assert len(errors) == len(problem.solvers) * len(problem.adjoints)
    assert max(errors.values()) < 1e-6, errors


@every_problem
def test_in_one_call_every_solver_and_every_adjoint_agree_with_an_unroll(name):
    """Each of the two tables once through, paired so that both passes are one program, as users have it."""
    problem = PROBLEMS[name]()
    solvers, adjoints = problem.solvers, problem.adjoints
    count = max(len(solvers), len(adjoints))
    pairs = list(itertools.islice(zip(itertools.cycle(solvers), itertools.cycle(adjoints), strict=False), count))
    assert {pair[0] for pair in pairs} == {*solvers}
    assert {pair[1] for pair in pairs} == {*adjoints}
    expected = expected_gradient(problem)
    for pair in pairs:
        found, converged = gradient_from(problem, *pair)(jnp.zeros((4, 8)))
        assert converged, pair
        assert relative_error(found, expected) < 1e-6, pair


@every_problem
def test_every_solver_that_says_so_can_be_unrolled(name):
    problem = PROBLEMS[name]()
    expected = expected_gradient(problem)
    for solver in (name for name in problem.solvers if name and SOLVERS[name]().unrollable):
        found, _ = gradient_from(problem, solver, fixed_point.unrolled(150))(jnp.zeros((4, 8)))
        assert relative_error(found, expected) < 1e-6, solver


SLOPE = 4.0 / 27.0**0.5  # the largest slope of sech^2, the derivative of tanh, is 4 / (3 sqrt 3)


def tanh_bounds(A):
    """f = tanh(A z + b): c, beta, L_J, L_B."""
    c = float(np.linalg.norm(A, 2))
    return c, 1.0, SLOPE * c**2, SLOPE * c


def opteq_bounds(W):
    """f = W^T tanh(W z + b), with B = W^T D and J = W^T D W."""
    size = float(np.linalg.norm(W, 2))
    return size**2, size, SLOPE * size**3, SLOPE * size**2


LAYER = uj.opteq(8, 8, activation="tanh")
SMOOTH = {  # a layer, parameters with a given c, their bounds, and the parameters with b put into them
    "tanh": (tanh_step, lambda c, seed: skew_weights(norm=c, seed=seed), tanh_bounds, lambda A, b: (A, b)),
    "opteq": (
        LAYER,
        lambda c, seed: symmetric_weights(8, 8, square=c, seed=seed)[0],
        opteq_bounds,
        lambda W, b: (uj.OptEqParams(W, None, b), None),
    ),
}
BOUNDED = [
    ("tanh", "picard", "gmres"),
    ("tanh", "anderson", "bicgstab"),
    ("tanh", "broyden", "anderson"),
    ("opteq", None, None),
    ("opteq", "newton_cg", "conjugate_gradient"),
]


@pytest.mark.parametrize("tol", [1e-3, 1e-7])
@pytest.mark.parametrize(("kind", "solver", "adjoint"), BOUNDED)
def test_the_documented_error_bounds_hold_over_random_problems(kind, solver, adjoint, tol):
    """Loss |y|^2 / 2, so that L_v = 1; gradient in b."""
    layer, weights_of, bounds_of, split = SMOOTH[kind]
    step = layer if callable(layer) else layer.step

    @jax.jit
    def figures(weights, b):
        def loss(b):
            params, x = split(weights, b)
            y, info = uj.equilibrium(
                layer, params, jnp.zeros(8), x, tol=tol, adjoint_tol=tol, solver=solver, adjoint=adjoint
            )
            return 0.5 * jnp.sum(y**2), (y, info.residual)

        (_, (y, residual)), gradient = jax.value_and_grad(loss, has_aux=True)(b)
        apply = lambda b, z: (lambda params, x: step(params, z, x))(*split(weights, b))  # noqa: E731
        exact = jax.lax.scan(lambda z, _: (apply(b, z), None), jnp.zeros(8), length=2000)[0]
        B, J = jax.jacobian(apply, (0, 1))(b, exact)
        return y, residual, gradient, exact, B.T @ jnp.linalg.solve(jnp.eye(8) - J.T, exact)

    for seed in range(9):
        weights = weights_of((0.3, 0.7, 0.95)[seed % 3], seed)
        c, beta, L_J, L_B = bounds_of(weights)
        y, residual, gradient, exact, right = (np.asarray(a) for a in figures(weights, inputs(8, seed=seed)))
        e = residual * np.linalg.norm(y) / (1.0 - c)
        assert np.linalg.norm(y - exact) <= c * e + 1e-13
        rho, size = tol * np.linalg.norm(y), np.linalg.norm(exact)
        bound = beta / (1.0 - c) * (rho + c * e + L_J * e * size / (1.0 - c)) + L_B * e * size / (1.0 - c)
        error = np.linalg.norm(gradient - right)
        assert error <= bound + 1e-13
        assert error > 0.0
