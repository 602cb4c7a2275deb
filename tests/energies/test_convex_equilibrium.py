"""Equilibria on convex potentials: values and implicit gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.energies import potential_reference as reference
from tests.marks import in_float64
from tests.reference import gaussian
from unroll_jax.energies import ConvexPotentialParams, convex_equilibrium

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
IMAGE = (4, 3)
KINDS = {"dense": ((6, 4), (4,), None), "conv": ((3, 3, 2, 5), (*IMAGE, 2), 3)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def drawn(kind, batch, activation="relu", strength=0.5):
    shape, event, kernel_size = KINDS[kind]
    rng = np.random.default_rng(0)
    width = shape[0] if kind == "dense" else shape[-1]
    arrays = (
        rng.normal(size=shape),
        rng.normal(size=width),
        0.3 * rng.normal(size=width),
    )
    layer = convex_equilibrium(
        event[-1],
        width,
        kernel_size=kernel_size,
        activation=activation,
        strength=strength,
    )
    return (
        layer,
        ConvexPotentialParams(*map(jnp.asarray, arrays)),
        jnp.asarray(rng.normal(size=(*batch, *event))),
    )


def solve(layer, params, x):
    z, info = uj.equilibrium(
        layer, params, jnp.zeros_like(x), x, tol=1e-11, on_failure="accept"
    )
    return z, info.converged


@every_kind
def test_equilibria_and_their_gradients_are_those_of_numpy(kind):
    """z by plain iterations; dz/dx = (I - c H)^-1 c H with H the Hessian of psi."""
    layer, params, x = drawn(kind, (3,), activation="tanh", strength=0.4)
    weight = gaussian(*x.shape, seed=1)

    @jax.jit
    def solved(x):
        def total(x):
            z, converged = solve(layer, params, x)
            return jnp.sum(weight * z), (z, converged)

        (_, (z, converged)), gradient = jax.value_and_grad(total, has_aux=True)(x)
        return z, converged, gradient

    z, converged, gradient = map(np.asarray, solved(x))
    assert np.all(converged)
    W, scaling = reference.matrix_and_scaling(params.W, params.log_q, IMAGE)
    b = np.tile(params.b, len(W) // len(params.b))
    for one, state, pull, slope in zip(np.asarray(x), z, weight, gradient, strict=True):
        signal = np.ravel(one)
        expected = np.zeros(one.size)
        for _ in range(100):
            expected = 0.4 * reference.gradient(
                expected + signal, W, scaling, b, activation="tanh"
            )
        assert_allclose(np.ravel(state), expected, atol=1e-9)
        slopes = 1.0 - np.tanh(W @ (expected + signal) + b) ** 2
        H = W.T @ np.diag(slopes / scaling) @ W
        by_x = np.linalg.solve(np.eye(len(H)) - 0.4 * H, 0.4 * H)
        assert_allclose(np.ravel(slope), np.ravel(pull) @ by_x, atol=1e-7)
