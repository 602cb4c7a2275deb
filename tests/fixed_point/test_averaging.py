"""Sequential averaging: its steps, the fixed point that it chooses, and that it chooses among all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, skew_weights, tanh_step
from unroll_jax import fixed_point as fp
from unroll_jax.energies.equilibrium.regularisers import decorrelation

pytestmark = pytest.mark.usefixtures("x64")


def test_averaging_finds_the_fixed_point_of_least_norm_and_without_it_another_is_found():
    """T projects on the line z_1 + z_2 = 2; its point of least norm is (1, 1). Xie et al. (2021), Theorem 4."""
    project = lambda params, z, x: z - (jnp.sum(z) - 2.0) / 2.0  # noqa: E731
    options = {"adjoint": fp.unrolled(20_000), "on_failure": "accept"}
    solvers = fp.averaged(p=0.5, c=0.2), None
    run = jax.jit(lambda start: [uj.equilibrium(project, (), start, solver=s, **options)[0] for s in solvers])
    averaged, plain = run(np.array([5.0, -1.0]))
    np.testing.assert_allclose(plain, [4.0, -2.0], rtol=1e-12)
    np.testing.assert_allclose(averaged, [1.0, 1.0], atol=2e-2)


def test_averaging_takes_the_stated_steps_and_can_be_differentiated():
    R, smoothness, eta, p, c = (lambda z: 1.5 * jnp.sum((z - 1.0) ** 2)), 3.0, 0.8, 0.4, 0.2
    A, x = np.asarray(skew_weights()), np.asarray(inputs(8))

    def looped(x):
        z, gamma = np.zeros(8), 0.5 / smoothness
        for k in range(1, 7):
            beta, weight = eta / k**p, eta / k**c
            z = beta * ((1 - gamma * weight) * z - gamma * 3.0 * (z - 1.0)) + (1 - beta) * np.tanh(z @ A + x)
        return z

    solver = fp.averaged(R, smoothness=smoothness, eta=eta, p=p, c=c)
    averaged = jax.jit(
        lambda x: uj.equilibrium(
            tanh_step, jnp.asarray(A), jnp.zeros(8), x, solver=solver, adjoint=fp.unrolled(6), on_failure="accept"
        )[0]
    )
    np.testing.assert_allclose(averaged(x), looped(x), rtol=1e-12)
    step = 1e-6 * np.cos(np.arange(8.0))
    slope = jax.jvp(averaged, (x,), (step,))[1]
    np.testing.assert_allclose(slope, (looped(x + step) - looped(x - step)) / 2, rtol=1e-5, atol=1e-13)


def affine_problem(dim=6, conditions=2):
    """T projects on {z : C z = d}; R is a quadratic around a target; where R is least in Fix(T), by its KKT system."""
    draw = np.random.default_rng(3)
    C, d = draw.normal(size=(conditions, dim)), draw.normal(size=conditions)
    A = np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    H, target = A @ np.diag(np.linspace(0.5, 1.0, dim)) @ A.T, draw.normal(size=dim)
    system = np.block([[H, C.T], [C, np.zeros((conditions, conditions))]])
    least = np.linalg.solve(system, np.concatenate([H @ target, d]))[:dim]
    inverse = np.linalg.pinv(C)
    start = inverse @ d + (np.eye(dim) - inverse @ C) @ draw.normal(size=dim)
    project = lambda params, z, x: z - (z @ C.T - d) @ inverse.T  # noqa: E731
    R = lambda z: 0.5 * (z - target) @ H @ (z - target)  # noqa: E731
    return project, R, start, least


def test_a_start_among_the_fixed_points_is_led_to_the_one_of_least_regulariser():
    """Theorem 4 needs every step: a solver that stops where T(z) = z, as here at once, would return the start."""
    project, R, start, least = affine_problem()
    np.testing.assert_allclose(project((), start, None), start, atol=1e-14)
    solver = fp.averaged(R, p=0.3, c=0.3)

    @jax.jit
    def run(start):
        limits = (200, 2000, 20_000)
        options = [{"solver": solver, "max_steps": steps, "on_failure": "accept"} for steps in limits]
        return [uj.equilibrium(project, (), start, **choice) for choice in (*options, {"solver": "picard"})]

    *averaged, (plain, info) = run(start)
    errors = []
    for steps, (y, solve_info) in zip((200, 2000, 20_000), averaged, strict=True):
        assert int(solve_info.steps) == steps
        np.testing.assert_allclose(project((), np.asarray(y), None), y, atol=1e-12)
        errors.append(np.linalg.norm(y - least))
    assert np.linalg.norm(start - least) > 1.0
    assert errors[-1] < 0.1 * np.linalg.norm(start - least)
    # R is minimised with lambda_k |z|^2 / 2 added, and beta_k of a step leads off Fix(T): in the end like k^-0.3.
    assert np.all(np.diff(np.log10(errors)) < -0.2)
    np.testing.assert_allclose(plain, start, atol=1e-12)
    assert int(info.steps) == 1


def test_a_regulariser_of_the_whole_batch_sees_the_whole_batch():
    """One step from z, with T = 0: beta S(z) alone, S with the slope of R over all rows, by finite differences."""
    R, z = decorrelation().value, np.random.default_rng(0).normal(size=(5, 3))
    solver = fp.averaged(R, smoothness=2.0, couples_examples=True)
    options = {"adjoint": fp.unrolled(1), "batch_ndim": 1, "on_failure": "accept"}
    shifts = 1e-6 * np.eye(z.size).reshape(z.size, *z.shape)

    @jax.jit
    def run(z):
        y, _ = uj.equilibrium(lambda params, z, x: 0.0 * z, (), z, solver=solver, **options)
        return y, [jax.vmap(R)(z + sign * shifts) for sign in (1.0, -1.0)]

    y, (above, below) = run(z)
    slope = (np.asarray(above) - np.asarray(below)).reshape(z.shape) / 2e-6
    np.testing.assert_allclose(y, 0.75 * z - 0.25 * slope, atol=1e-8)
