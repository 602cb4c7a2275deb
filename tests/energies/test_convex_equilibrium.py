"""Equilibria on convex potentials: values and implicit gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.energies import potential_reference as reference
from tests.energies.test_convex_potential import IMAGE, drawn
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax.energies import convex_equilibrium

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_equilibria_and_their_gradients_are_those_of_numpy(kind):
    """z by plain iterations; dz/dx = (I - c H)^-1 c H with H the Hessian of psi."""
    _, params, x = drawn(kind, (3,))
    width = len(params.b)
    layer = convex_equilibrium(
        x.shape[-1],
        width,
        kernel_size=None if kind == "dense" else 3,
        activation="tanh",
        strength=0.4,
    )
    weight = gaussian(*x.shape, seed=1)

    @compiled
    def solved(x):
        def total(x):
            z, info = uj.equilibrium(
                layer, params, jnp.zeros_like(x), x, tol=1e-11, on_failure="accept"
            )
            return jnp.sum(weight * z), (z, info.converged)

        (_, (z, converged)), gradient = jax.value_and_grad(total, has_aux=True)(x)
        return z, converged, gradient

    z, converged, gradient = solved(x)
    assert np.all(converged)
    W, scaling = reference.matrix_and_scaling(params.W, params.log_q, IMAGE)
    b = np.tile(params.b, len(W) // len(params.b))
    signals = np.asarray(x).reshape(3, -1)
    expected = np.zeros_like(signals)
    for _ in range(100):
        expected = 0.4 * reference.gradient(
            expected + signals, W, scaling, b, activation="tanh"
        )
    assert_allclose(z.reshape(3, -1), expected, atol=1e-9)
    slopes = (1.0 - np.tanh((expected + signals) @ W.T + b) ** 2) / scaling
    for row, pull, slope in zip(slopes, weight, gradient, strict=True):
        H = 0.4 * W.T @ np.diag(row) @ W
        by_x = np.linalg.solve(np.eye(len(H)) - H, H)
        assert_allclose(np.ravel(slope), np.ravel(pull) @ by_x, atol=1e-7)
