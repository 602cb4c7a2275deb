"""Sequential averaging: its steps, and the fixed point that it chooses among all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, skew_weights, tanh_step
from unroll_jax import fixed_point as fp
from unroll_jax.energies.equilibrium.regularisers import decorrelation

pytestmark = pytest.mark.usefixtures("x64")


def test_averaging_takes_all_its_steps_and_leads_from_a_fixed_point_to_the_one_of_least_norm():
    """T projects on the line z_1 + z_2 = 2. Theorem 4 for other regularisers is in tests/test_opteq_convergence.py."""
    project = lambda params, z, x: z - (jnp.sum(z) - 2.0) / 2.0  # noqa: E731
    options = {"max_steps": 20_000, "on_failure": "accept"}
    solvers = fp.averaged(p=0.5, c=0.2), "picard"
    run = jax.jit(lambda start: [uj.equilibrium(project, (), start, solver=s, **options) for s in solvers])
    (averaged, info), (plain, plain_info) = run(np.array([4.0, -2.0]))
    assert (int(info.steps), int(plain_info.steps)) == (20_000, 1)
    np.testing.assert_allclose(averaged, [1.0, 1.0], atol=2e-2)
    np.testing.assert_allclose(plain, [4.0, -2.0], rtol=1e-12)


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
    options = {"solver": solver, "adjoint": fp.unrolled(6), "on_failure": "accept"}
    averaged = jax.jit(lambda x: uj.equilibrium(tanh_step, jnp.asarray(A), jnp.zeros(8), x, **options)[0])
    np.testing.assert_allclose(averaged(x), looped(x), rtol=1e-12)
    step = 1e-6 * np.cos(np.arange(8.0))
    slope = jax.jvp(averaged, (x,), (step,))[1]
    np.testing.assert_allclose(slope, (looped(x + step) - looped(x - step)) / 2, rtol=1e-5, atol=1e-13)


def test_a_regulariser_of_the_whole_batch_sees_the_whole_batch():
    """With T = 0, one step from z is beta S(z). S has the slope of R over all rows, by finite differences."""
    R, z = decorrelation().value, np.random.default_rng(0).normal(size=(5, 3))
    solver = fp.averaged(R, smoothness=2.0, couples_examples=True)
    options = {"solver": solver, "adjoint": fp.unrolled(1), "batch_ndim": 1, "on_failure": "accept"}
    shifts = 1e-6 * np.eye(z.size).reshape(z.size, *z.shape)

    @jax.jit
    def run(z):
        values = [jax.vmap(R)(z + sign * shifts) for sign in (1.0, -1.0)]
        return uj.equilibrium(lambda params, z, x: 0.0 * z, (), z, **options)[0], values

    y, (above, below) = run(z)
    slope = (np.asarray(above) - np.asarray(below)).reshape(z.shape) / 2e-6
    np.testing.assert_allclose(y, 0.75 * z - 0.25 * slope, atol=1e-8)
