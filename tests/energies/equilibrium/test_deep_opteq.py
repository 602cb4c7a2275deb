"""Deep OptEq: its steps, its energy, and the properties of a single layer."""

import collections

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.opteq_layers import H, I, M, convolutional, dense
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32
DEEP = {
    "dense": lambda: [opteq(M, H), opteq(M, M, I, skip=0.6), opteq(M, 3, I, activation="tanh")],
    "conv": lambda: [opteq_conv(2, 3), opteq_conv(2, 5, 3, kernel_size=1, skip=0.6)],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [("dense", ()), ("dense", (2, 3)), ("conv", (3,))])
def test_a_deep_step_applies_every_layer_and_never_raises_the_residual(kind, batch):
    layers = DEEP[kind]()
    layer = deep_opteq(layers)
    _, _, z, x = {"dense": dense, "conv": convolutional}[kind](batch)

    @jax.jit
    def measure(z, x):
        params = jax.tree.map(lambda leaf: leaf.astype(z.dtype), layer.init(jax.random.key(0, impl="rbg")))
        expected = z
        for one, layer_params in zip(layers, params, strict=True):
            expected = one.step(layer_params, expected, x)
        stepped = layer.step(params, z, x)
        return expected, stepped, layer.energy(params, z, x), layer.energy(params, stepped, x)

    expected, stepped, before, after = map(np.asarray, measure(z, x))
    np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-12)
    assert before.shape == batch
    event = tuple(range(len(batch), z.ndim))
    np.testing.assert_allclose(before, 0.5 * np.sum((expected - np.asarray(z)) ** 2, axis=event), rtol=1e-12)
    assert np.all(after <= before)


def test_the_residual_can_rise_where_a_norm_is_above_1():
    layer = deep_opteq([opteq(M, H, activation="identity"), opteq(M, H, activation="identity")])

    @jax.jit
    def measure(z):
        params = tuple(layer_params._replace(W=2.0 * layer_params.W) for layer_params in layer.init(jax.random.key(0)))
        return layer.energy(params, z), layer.energy(params, layer.step(params, z))

    before, after = measure(np.random.default_rng(0).normal(size=M))
    assert float(after) > float(before)


def test_a_deep_opteq_of_one_layer_is_that_layer():
    layer, params, z, x = dense((3,))
    deep = deep_opteq(collections.deque([layer]))  # any sequence

    @jax.jit
    def both(params, z, x):
        alone = layer.step(params, z, x), layer.energy(params, z, x), params.W
        return (deep.step((params,), z, x), deep.energy((params,), z, x), deep.factored((params,), x).matrix), alone

    chex.assert_trees_all_equal(*both(params, z, x))
    assert deep_opteq([opteq_conv(2, 3)]).factored is None


@pytest.mark.parametrize("make", [opteq, opteq_conv])
def test_one_layer_is_as_symmetric_as_it_is_and_several_are_not(make):
    layer = make(2, 3)
    lopsided = layer._replace(symmetric=False)
    assert deep_opteq([layer]).symmetric
    assert not deep_opteq([lopsided]).symmetric
    assert not deep_opteq([layer, layer]).symmetric


@pytest.mark.slow
def test_the_equilibrium_of_one_convolution_is_found_as_that_of_the_layer():
    """By accelerated gradients: in fewer steps than by Anderson's method, the default without symmetry."""
    layer, params, z, x = convolutional((3,), jnp.float32)
    deep = deep_opteq([layer])

    @jax.jit
    def steps(z, x):
        solve = lambda layer, params, **how: uj.equilibrium(layer, params, 0.0 * z, x, **how)[1].steps  # noqa: E731
        alone = [solve(layer, params, solver=name) for name in ("accelerated_gradient", "anderson")]
        return solve(deep, (params,)), *alone

    default, accelerated, anderson = (counts.tolist() for counts in steps(z, x))
    assert default == accelerated
    assert default != anderson
