"""Plain JAX code beside the library's layers is of the same mathematics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from benchmarks.plain_layers import PLAIN


def test_every_system_has_a_plain_layer():
    assert list(PLAIN) == list(uj.DESCENTS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_layer_and_its_gradient_are_the_librarys(name):
    descent, y, x = uj.DESCENTS[name].example(jax.random.key(0), (4,))
    params = descent.init(jax.random.key(1))
    draw = np.random.default_rng(2)

    def moved(leaf):
        return jnp.asarray(leaf + 0.1 * draw.normal(size=leaf.shape))

    # Initial parameters hold zeros and ones.
    params, y, x, weights = jax.tree.map(moved, (params, y, x, jnp.zeros_like(y)))

    def step_and_gradient(step):
        def loss(params, y):
            after = step(params, y, x)
            return jnp.sum(weights * after), after

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, y)

    plain, expected = map(step_and_gradient, (PLAIN[name], descent.step))
    jax.tree.map(
        lambda a, b: assert_allclose(a, b, rtol=1e-6, atol=1e-8),
        plain,
        expected,
    )
