"""Sequential averaging: its steps. Which fixed point it chooses is in
tests/test_opteq_convergence.py."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.fixed_point.problems import inputs, skew_weights, tanh_step
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp
from unroll_jax.energies.equilibrium.regularisers import decorrelation

pytestmark = in_float64


def test_averaging_takes_all_the_stated_steps_and_can_be_differentiated():
    R, smoothness, eta, p, c = (
        (lambda z: 1.5 * jnp.sum((z - 1.0) ** 2)),
        3.0,
        0.8,
        0.4,
        0.2,
    )
    A = np.asarray(skew_weights())
    x = np.asarray(inputs(8))

    def looped(x):
        z = np.zeros(8)
        gamma = 0.5 / smoothness
        for k in range(1, 7):
            beta = eta / k**p
            weight = eta / k**c
            z = beta * ((1 - gamma * weight) * z - gamma * 3.0 * (z - 1.0)) + (
                1 - beta
            ) * np.tanh(z @ A + x)
        return z

    solver = fp.averaged(R, smoothness=smoothness, eta=eta, p=p, c=c)
    start = jnp.zeros(8)
    options = {"solver": solver, "tol": 0.9, "on_failure": "accept"}

    def run(x, **given):
        return uj.equilibrium(tanh_step, jnp.asarray(A), start, x, **options | given)

    averaged = lambda x: run(x, adjoint=fp.unrolled(6))[0]
    step = 1e-6 * np.cos(np.arange(8.0))

    @compiled
    def both(x, step):
        return (jax.jvp(averaged, (x,), (step,)), run(x, max_steps=6))

    (value, slope), (unstopped, info) = both(x, step)
    assert_allclose(value, looped(x), rtol=1e-12)
    # f of the last state
    assert_allclose(unstopped, np.tanh(looped(x) @ A + x), rtol=1e-12)
    assert int(info.steps) == 6  # also where the tolerance is met
    assert_allclose(
        slope, (looped(x + step) - looped(x - step)) / 2, rtol=1e-5, atol=1e-13
    )


def test_a_regulariser_of_the_whole_batch_sees_the_whole_batch():
    """With T = 0, one step from z is beta S(z). S has the slope of R over all rows,
    by finite differences."""
    R = decorrelation().value
    z = gaussian(5, 3)
    solver = fp.averaged(R, smoothness=2.0, couples_examples=True)
    options = {
        "solver": solver,
        "adjoint": fp.unrolled(1),
        "batch_ndim": 1,
        "on_failure": "accept",
    }
    shifts = 1e-6 * np.eye(z.size).reshape(z.size, *z.shape)

    @compiled
    def run(z):
        values = [jax.vmap(R)(z + sign * shifts) for sign in (1.0, -1.0)]
        return uj.equilibrium(lambda params, z, x: 0.0 * z, (), z, **options)[0], values

    y, (above, below) = run(z)
    slope = (np.asarray(above) - np.asarray(below)).reshape(z.shape) / 2e-6
    assert_allclose(y, 0.75 * z - 0.25 * slope, atol=1e-8)
