"""Layer normalisation as two gradient steps."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.marks import in_float64
from tests.reference import compiled

DIM = 6


@in_float64
def test_energy_and_step_equal_the_reference_and_flax():
    """The step is y less a gradient step. Falls of the energy are in
    test_proven_falls.py."""
    rng = np.random.default_rng(0)
    # radius, epsilon, and length of the step
    cases = [(None, 0.0, 1.0), (None, 1e-6, 0.3), (0.7, 0.0, 0.3), (2.0, 0.1, 1.0)]
    y = rng.normal(size=(2, 3, 5, DIM)) + 3.0 * rng.normal(size=(2, 3, 5, 1))
    y *= 10.0 ** rng.uniform(-3.0, 3.0, size=(2, 3, 5, 1))
    centred = y - y.mean(axis=-1, keepdims=True)

    @compiled
    def measure(y):
        results = []
        for radius, epsilon, a in cases:
            layer = uj.layer_norm(DIM, radius=radius, epsilon=epsilon, step_size=a)
            energy, pull = jax.vjp(lambda y, layer=layer: layer.energy(None, y), y)
            peer = nn.LayerNorm(
                epsilon=epsilon,
                use_bias=False,
                use_scale=False,
                param_dtype=jnp.float64,
            )
            with jax.numpy_dtype_promotion("standard"):  # flax mixes dtypes
                flax = peer.apply({}, y)
            slope = pull(jnp.ones_like(energy))[0]
            results.append((energy, slope, layer.step(None, y), flax))
        return results

    for (radius, epsilon, a), (energy, *vectors) in zip(cases, measure(y), strict=True):
        radius = radius or np.sqrt(DIM)
        length = np.sqrt(np.sum(centred**2, axis=-1) + DIM * epsilon)
        of_mean = y.sum(axis=-1) ** 2 / (2 * DIM)
        tokens = of_mean + 0.5 * (length**2 - DIM * epsilon) - radius * length
        message = f"{radius=}, {epsilon=}"
        expected = np.sum(tokens + 0.5 * radius**2, axis=-1)
        assert_allclose(energy, expected, rtol=1e-12, err_msg=message)
        unit = centred / length[..., None]
        slope = y - radius * unit
        chex.assert_trees_all_close(
            vectors,
            [slope, y - a * slope, np.sqrt(DIM) * unit],
            rtol=1e-11,
            atol=1e-9,
            custom_message=message,
        )


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_tokens_of_any_size_are_normalised(epsilon):
    layer = uj.layer_norm(3, epsilon=epsilon)

    @compiled
    def step_and_slopes(y):
        return layer.step(None, y), jax.jacobian(lambda y: layer.step(None, y)[0])(y)[
            :, 0
        ]

    # entries below 1.2e-38 are 0 to compiled code
    for size in (1e-36, 1e-30, 1e-10, 1e-3, 1.0, 1e10, 1e25, 1e37):
        y = np.float32(size * np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 0.25]]))
        wide = y.astype(np.float64)
        centred = wide - wide.mean(-1, keepdims=True)
        length = np.sqrt(np.mean(centred**2, -1, keepdims=True) + epsilon)
        normed, slopes = step_and_slopes(y)
        assert_allclose(
            normed, centred / length, rtol=1e-5, atol=1e-30, err_msg=f"size {size}"
        )
        u = centred[0]
        n = length[0]
        expected = (np.eye(3) - 1 / 3) / n - np.outer(u, u) / (3 * n**3)
        assert_allclose(
            slopes,
            expected,
            rtol=2e-5,
            atol=max(2e-6 / n[0], 2e-38),
            err_msg=f"size {size}",
        )
