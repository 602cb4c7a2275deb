"""Problems of the tests of jaxopt and optimistix, and TorchDEQ's map, re-expressed with their tolerances.

jaxopt: fixed_point_iteration_test, anderson_test. optimistix: test_fixed_point with helpers.py. TorchDEQ has no tests
of solvers; its problem here is its usual map. jaxopt's mixing frequency has no counterpart here.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.flatten_util import ravel_pytree

from tests.fixed_point.problems import program
from unroll_jax import fixed_point as fp

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.slow]


class Problem(NamedTuple):
    """A problem with its solution, or None to test only its residual, and absolute and relative tolerances of both."""

    step: Any
    params: Any
    start: Any
    solution: Any = None
    tolerance: float = 1e-4
    x: Any = None
    options: tuple = ()


def solved_by(solver, **options):
    return tuple({"solver": solver, **options}.items())


def rotation():
    theta = np.pi / np.array([2, 3, 4, 5, 6, 1.27, 1.73])
    blocks = [[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in theta]
    return jnp.asarray(scipy.linalg.block_diag(*blocks), jnp.float32)


def midpoint(f):
    """A step of the implicit midpoint rule from 0, as a fixed point; in y, f or k by the scales in its params."""
    return lambda params, z, x: params[1] * f(params[0], params[2] * z)


def robertson(k, y):
    slow, fast = k[0] * y[0] - k[2] * y[1] * y[2], k[1] * y[1] ** 2
    return jnp.stack([-slow, slow - fast, fast])


def heat(const, y, x):
    """optimistix' Crank-Nicolson step; its Laplacian returns y itself, which is kept."""
    start = jnp.linspace(-1.0, 1.0, 100) ** 2
    return const * (start + 0.5 * ((1.0 - y) * y + (1.0 - start) * start))


def by_vector(step):
    """A step of vectors on optimistix' pytree of 28 numbers."""

    def advance(params, tree, x):
        flat, restore = ravel_pytree(tree)
        return restore(step(params, flat, x))

    return advance


def on_leaves(function):
    return lambda params, z, x: jax.tree.map(lambda leaf: function(params * leaf), z)


def network(params, z, x):
    return 0.1 * (params[2] @ jax.nn.softplus(params[0] @ z + params[1]) + params[3])


def cosine(theta, z, x):
    return jnp.cos(z) + theta


def decay(rates, z, x):
    return rates * z


def powers(p, z, x):
    return jnp.sin(z[0]) * z[0] ** 2, (z[1][0] ** 3, -z[1][1])


DECAYS = decay, jnp.array([0.9, 0.99, 0.999]), jnp.array([1.0, 0.4, -0.2]), jnp.zeros(3), 1e-2
POWERS = jnp.array([0.6, 0.0, -0.1]), (jnp.array([[0.7], [0.5]]), jnp.array([[-1.0, 0.0, 2.0, -0.4]]) / 3.0)
COSINE = cosine, jnp.array([0.0, jnp.pi / 2]), jnp.array([0.3, jnp.pi / 4]), jnp.array([0.73908514, jnp.pi / 2])
TURNED, FAR = jnp.asarray(np.random.default_rng(0).uniform(size=14), jnp.float32), jnp.arange(1.0, 15.0)
HALVES = {"a": jnp.full((3, 2, 4), 0.5), "b": jnp.full(4, 0.5)}
MATRIX = jnp.asarray(np.random.default_rng(19).normal(size=(28, 28)), jnp.float32)
SHAPES = (8, 28), (8,), (28, 8), (28,)
NETWORK = [jnp.asarray(0.3 * np.random.default_rng(i).normal(size=s), jnp.float32) for i, s in enumerate(SHAPES)]
LINEAR, ROBERTSONS = by_vector(midpoint(lambda A, v: A @ v)), midpoint(robertson)
RATES = jnp.array([0.04, 3e7, 1e4])
TANH = lambda p, z, x: jnp.tanh(z @ p + x), 0.1 * MATRIX[:8, :8], jnp.zeros((4, 8)), None, 1e-2, MATRIX[:4, 8:16]
PROBLEMS = {
    "jaxopt: geometric decay, plain": Problem(*DECAYS, options=solved_by("picard", max_steps=8000)),
    "jaxopt: geometric decay, Anderson": Problem(*DECAYS, options=solved_by(fp.anderson(5), max_steps=10_000)),
    "jaxopt: a scalar": Problem(
        lambda p, z, x: 0.5 * z + 0.5,
        None,
        jnp.zeros(()),
        jnp.ones(()),
        1e-3,
        options=solved_by(fp.anderson(5), tol=1e-4),
    ),
    "jaxopt: sines and powers, plain": Problem(
        lambda p, z, x: (jnp.sin(z[0]) * z[0] ** 2, z[1] ** 3),
        None,
        (POWERS[0], POWERS[1][0]),
        (jnp.zeros(3), jnp.zeros((2, 1))),
        1e-6,
        options=solved_by("picard", tol=1e-6),
    ),
    "jaxopt: sines and powers, Anderson": Problem(
        powers,
        None,
        POWERS,
        jax.tree.map(jnp.zeros_like, POWERS),
        1e-6,
        options=solved_by(fp.anderson(3), tol=1e-6, max_steps=100_000),
    ),
    # At pi / 2 the slope is -1: plain steps converge sublinearly, and jaxopt allows them as many.
    "jaxopt: cosine, plain": Problem(*COSINE, 1e-2, options=solved_by("picard", tol=1e-2, max_steps=100_000)),
    "jaxopt: cosine, Anderson": Problem(*COSINE, 1e-5, options=solved_by(fp.anderson(4), tol=1e-6)),
    "jaxopt: rotations, Anderson": Problem(
        lambda M, z, x: M @ (z - x) + x, rotation(), TURNED, FAR, 1e-3, FAR, solved_by(fp.anderson(10), max_steps=400)
    ),
    "optimistix: cosine": Problem(on_leaves(jnp.cos), 1.0, HALVES),
    "optimistix: exponential": Problem(on_leaves(lambda v: jnp.exp(-v)), 1.0, HALVES),
    "optimistix: network": Problem(by_vector(network), NETWORK, HALVES),
    "optimistix: heat equation": Problem(heat, 1.0, jnp.ones(100), options=(("max_steps", 10_000),)),
    # The linear problem is the same in k and in f.
    "optimistix: midpoint, linear, y": Problem(LINEAR, (MATRIX, 1 / 16, 0.5), HALVES),
    "optimistix: midpoint, linear, f": Problem(LINEAR, (MATRIX, 1.0, 1 / 16), HALVES),
    "optimistix: midpoint, Robertson, y": Problem(ROBERTSONS, (RATES, 1e-8, 0.5), jnp.ones(3)),
    "optimistix: midpoint, Robertson, f": Problem(ROBERTSONS, (RATES, 1.0, 1e-8), jnp.ones(3)),
    "optimistix: midpoint, Robertson, k": Problem(ROBERTSONS, (RATES, 1e-8, 1.0), jnp.ones(3)),
    "torchdeq: tanh, picard": Problem(*TANH, solved_by("picard", batch_ndim=1, tol=1e-3)),
    "torchdeq: tanh, anderson": Problem(*TANH, solved_by("anderson", batch_ndim=1, tol=1e-3)),
}
solver_of = functools.cache(lambda step, options: program(step, **{"batch_ndim": 0} | dict(options)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_of_a_peer_is_solved_to_its_tolerance(name):
    step, params, start, solution, tolerance, x, options = PROBLEMS[name]
    z, info = solver_of(step, options)(params, start, x)
    solution = step(params, z, x) if solution is None else solution
    assert bool(info.converged.all())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), z, solution)
