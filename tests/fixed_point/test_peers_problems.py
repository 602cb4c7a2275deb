"""Problems of the tests of jaxopt and optimistix, and TorchDEQ's map, re-expressed with their tolerances.

jaxopt: fixed_point_iteration_test, anderson_test, implicit_diff_test, linear_solve_test. optimistix:
test_fixed_point with helpers.py. TorchDEQ has no tests of solvers; its problem here is its usual map. Left out:
jaxopt's dense and least-squares linear solvers and its mixing frequency, which have no counterpart here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.flatten_util import ravel_pytree

import unroll_jax as uj
from unroll_jax import fixed_point as fp

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.slow]
ROBERTSON = jnp.array([0.04, 3e7, 1e4])


def affine(n=200):
    """jaxopt's random symmetric contraction with spectral radius below 0.5."""
    M = np.random.default_rng(0).uniform(-1.0, 1.0, (n, n))
    M = M + M.T
    M = M / (2.0 * np.abs(np.linalg.eigvalsh(M)).max() + 1e-4)
    return jnp.asarray(M, jnp.float32), jnp.asarray(np.random.default_rng(1).uniform(size=n), jnp.float32)


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


MIDPOINT = {"y": (1 / 16, 0.5), "f": (1.0, 1 / 16)}  # that in k is the one in f where f is linear
STIFF = {"y": (1e-8, 0.5), "f": (1.0, 1e-8), "k": (1e-8, 1.0)}
DECAY, START = jnp.array([0.9, 0.99, 0.999]), jnp.array([1.0, 0.4, -0.2])
THETA = jnp.array([0.0, jnp.pi / 2])
HALVES = {"a": jnp.full((3, 2, 4), 0.5), "b": jnp.full(4, 0.5)}
MATRIX = jnp.asarray(np.random.default_rng(19).normal(size=(28, 28)), jnp.float32)


def by_vector(step):
    """A step of vectors on optimistix' pytree of 28 numbers."""

    def advance(params, tree, x):
        flat, restore = ravel_pytree(tree)
        return restore(step(params, flat, x))

    return advance


LINEAR, ROBERTSONS = by_vector(midpoint(lambda A, v: A @ v)), midpoint(robertson)


def on_leaves(function):
    return lambda params, z, x: jax.tree.map(lambda leaf: function(params * leaf), z)


def network(params, z, x):
    return 0.1 * (params[2] @ jax.nn.softplus(params[0] @ z + params[1]) + params[3])


NETWORK = [
    jnp.asarray(0.3 * np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(8, 28), 8, (28, 8), 28])
]
COS = 0.73908514
# origin: (step, params, start, options, the solution or None for its residual alone, absolute tolerance)
PROBLEMS = {
    "jaxopt: geometric decay, plain": (
        lambda r, z, x: r * z,
        DECAY,
        START,
        {"solver": "picard", "max_steps": 8000},
        jnp.zeros(3),
        1e-2,
    ),
    "jaxopt: geometric decay, Anderson": (
        lambda r, z, x: r * z,
        DECAY,
        START,
        {"solver": fp.anderson(5), "max_steps": 10_000},
        jnp.zeros(3),
        1e-2,
    ),
    "jaxopt: a scalar": (
        lambda p, z, x: 0.5 * z + 0.5,
        None,
        jnp.zeros(()),
        {"solver": fp.anderson(5), "tol": 1e-4},
        jnp.ones(()),
        1e-3,
    ),
    "jaxopt: sines and powers, plain": (
        lambda p, z, x: (jnp.sin(z[0]) * z[0] ** 2, z[1] ** 3),
        None,
        (jnp.array([0.6, 0.0, -0.1]), jnp.array([[0.7], [0.5]])),
        {"solver": "picard", "tol": 1e-6},
        (jnp.zeros(3), jnp.zeros((2, 1))),
        1e-6,
    ),
    "jaxopt: sines and powers, Anderson": (
        lambda p, z, x: (jnp.sin(z[0]) * z[0] ** 2, (z[1][0] ** 3, -z[1][1])),
        None,
        (jnp.array([0.6, 0.0, -0.1]), (jnp.array([[0.7], [0.5]]), jnp.array([[-1.0, 0.0, 2.0, -0.4]]) / 3.0)),
        {"solver": fp.anderson(3), "tol": 1e-6, "max_steps": 100_000},
        (jnp.zeros(3), (jnp.zeros((2, 1)), jnp.zeros((1, 4)))),
        1e-6,
    ),
    **{
        f"jaxopt: cosine, {name}": (
            lambda theta, z, x: jnp.cos(z) + theta,
            THETA,
            jnp.array([0.3, jnp.pi / 4]),
            options,
            jnp.array([COS, jnp.pi / 2]),
            tol,
        )
        for name, options, tol in [
            # At pi / 2 the slope is -1: plain steps converge sublinearly, and jaxopt allows them as many.
            ("plain", {"solver": "picard", "tol": 1e-2, "max_steps": 100_000}, 1e-2),
            ("Anderson", {"solver": fp.anderson(4), "tol": 1e-6}, 1e-5),
        ]
    },
    "jaxopt: rotations, Anderson": (
        lambda M, z, x: M @ (z - x) + x,
        rotation(),
        jnp.asarray(np.random.default_rng(0).uniform(size=14), jnp.float32),
        {"solver": fp.anderson(10), "max_steps": 400, "tol": 1e-5, "x": jnp.arange(1.0, 15.0)},
        jnp.arange(1.0, 15.0),
        1e-3,
    ),
    "optimistix: cosine": (on_leaves(jnp.cos), 1.0, HALVES, {}, None, 1e-4),
    "optimistix: exponential": (on_leaves(lambda v: jnp.exp(-v)), 1.0, HALVES, {}, None, 1e-4),
    "optimistix: network": (by_vector(network), NETWORK, HALVES, {}, None, 1e-4),
    "optimistix: heat equation": (heat, 1.0, jnp.ones(100), {"max_steps": 10_000}, None, 1e-4),
    **{
        f"optimistix: midpoint, linear, {name}": (LINEAR, (MATRIX, *scales), HALVES, {}, None, 1e-4)
        for name, scales in MIDPOINT.items()
    },
    **{
        f"optimistix: midpoint, Robertson, {name}": (ROBERTSONS, (ROBERTSON, *scales), jnp.ones(3), {}, None, 1e-4)
        for name, scales in STIFF.items()
    },
    **{
        f"torchdeq: tanh, {solver}": (
            lambda p, z, x: jnp.tanh(z @ p + x),
            0.1 * MATRIX[:8, :8],
            jnp.zeros((4, 8)),
            {"solver": solver, "x": MATRIX[:4, 8:16], "batch_ndim": 1, "tol": 1e-3},
            None,
            1e-2,
        )
        for solver in ("picard", "anderson")
    },
}


@functools.cache
def solver_of(step, options):
    @jax.jit
    def solve(params, start, x):
        z, info = uj.equilibrium(step, params, start, x, **{"batch_ndim": 0, "on_failure": "accept"} | dict(options))
        return z, info.converged, step(params, z, x)

    return solve


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_of_a_peer_is_solved_to_its_tolerance(name):
    step, params, start, options, solution, tolerance = PROBLEMS[name]
    options = dict(options)
    x = options.pop("x", None)
    z, converged, stepped = solver_of(step, tuple(options.items()))(params, start, x)
    solution = stepped if solution is None else solution
    assert bool(converged.all())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), z, solution)


GRADIENTS = {
    "jaxopt: flat landscape": (lambda theta, z, x: theta * z, jnp.array([0.05, 0.2]), jnp.array([1.0, -0.5])),
    "jaxopt: affine contraction": (lambda p, z, x: p[0] @ z + p[1], affine(), jnp.zeros(200)),
}


@pytest.mark.parametrize("solver", ["picard", "anderson"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_of_a_peers_problem_is_that_of_unrolled_steps(name, solver):
    step, params, start = GRADIENTS[name]

    def solved(params):
        return jnp.sum(
            uj.equilibrium(step, params, start, solver=solver, batch_ndim=0, tol=1e-6)[0] * WEIGHTS[: start.size]
        )

    got, expected = jax.jit(jax.grad(solved))(params), of_unrolled(name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-3), got, expected)


@functools.cache
def of_unrolled(name):
    step, params, start = GRADIENTS[name]

    def unrolled(params):
        last, _ = jax.lax.scan(lambda z, _: (step(params, z, None), None), start, length=80)
        return jnp.sum(last * WEIGHTS[: start.size])

    return jax.jit(jax.grad(unrolled))(params)


@pytest.mark.parametrize("name", ["plain", "Anderson"])
def test_the_gradient_of_jaxopts_cosine_is_the_closed_form(name):
    """dz / dtheta = 1 / (1 + sin z)."""
    step, theta, start, options, solution, _ = PROBLEMS[f"jaxopt: cosine, {name}"]
    total = lambda theta: jnp.sum(uj.equilibrium(step, theta, start, batch_ndim=0, **options)[0])  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.grad(total))(theta), 1.0 / (1.0 + np.sin(solution)), rtol=1e-2)


WEIGHTS = jnp.linspace(0.5, 1.5, 200)
SYSTEM = np.random.RandomState(0).randn(5, 5)


@pytest.mark.parametrize(
    ("adjoint", "matrix"),
    [
        ("gmres", SYSTEM),
        ("gmres", SYSTEM + np.eye(5)),
        ("conjugate_gradient", SYSTEM.T @ SYSTEM + np.eye(5)),
    ],
    ids=["gmres", "gmres, ridge", "cg, ridge"],
)
def test_a_linear_system_of_jaxopt_is_solved(adjoint, matrix):
    matrix, right = np.float32(matrix), np.float32(np.random.RandomState(1).randn(5))
    size = np.linalg.norm(right)
    solve = jax.jit(lambda right: fp.ADJOINTS[adjoint]().solve(lambda w: w - w @ matrix.T, right, 1e-6, 200))
    w, info = solve(right[None] / size)
    assert float(info.residual[0]) < 1e-5
    np.testing.assert_allclose(w[0] * size, np.linalg.solve(matrix, right), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("has_aux", "forward_mode"), [(False, False), (True, True)])
def test_the_ridge_of_jaxopts_implicit_differentiation(has_aux, forward_mode):
    draw = np.random.default_rng(0)
    X, y = (jnp.asarray(draw.normal(size=size), jnp.float32) for size in ((10, 3), 10))

    def closed(weight):
        return jnp.linalg.solve(X.T @ X + weight * 10.0 * jnp.eye(3), X.T @ y)

    def optimality(weight, w):
        return jax.grad(lambda w: 0.5 * jnp.mean((X @ w - y) ** 2) + 0.5 * weight * jnp.sum(w**2))(w)

    solve = uj.implicit_root(optimality, has_aux=has_aux, forward_mode=forward_mode)(
        lambda weight, w0: (closed(weight), None) if has_aux else closed(weight)
    )
    take = (lambda result: result[0]) if has_aux else (lambda result: result)
    jacobian = jax.jacfwd if forward_mode else jax.jacrev
    slope = jacobian(lambda weight: take(solve(weight, jnp.zeros(3))))
    got, expected = jax.jit(lambda weight: (slope(weight), jax.jacfwd(closed)(weight)))(5.0)
    np.testing.assert_allclose(got, expected, atol=1e-4)
