"""Equilibrium layers of flax: gradients against the unrolled cell, diagnostics,
dropout with one mask."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from tests.reference import compiled, jax_array
from unroll_jax import linen
from unroll_jax.nnx import Equilibrium

X = jax_array(np.random.default_rng(0).normal(size=(4, 3)))


class LinenCell(nn.Module):
    @nn.compact
    def __call__(self, z, x):
        z = 0.3 * jnp.tanh(nn.Dense(3)(z) + x)
        return nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(z)


class Cell(nnx.Module):
    def __init__(self, rate, rngs):
        self.linear, self.dropout = (
            nnx.Linear(3, 3, rngs=rngs),
            nnx.Dropout(rate, rngs=rngs),
        )

    def __call__(self, z, x):
        return self.dropout(0.3 * jnp.tanh(self.linear(z) + x))


def test_the_linen_layer_has_the_unrolled_gradient():
    layer = linen.Equilibrium(LinenCell(), options={"tol": 1e-6}, rngs=("dropout",))
    variables = compiled(layer.init)(jax.random.key(0), X)

    def unrolled(variables):
        cell = {"params": variables["params"]["cell"]}
        return jnp.sum(
            jax.lax.fori_loop(
                0, 40, lambda _, z: LinenCell().apply(cell, z, X), 0.0 * X
            )
            ** 2
        )

    got = compiled(jax.grad(lambda v: jnp.sum(layer.apply(v, X) ** 2)))(variables)
    expected = compiled(jax.jacfwd(unrolled))(variables)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-4), got, expected)

    def run(v):
        return layer.apply(
            v, X, rngs={"dropout": jax.random.key(1)}, mutable="intermediates"
        )

    z, state = jax.jit(run)(variables)
    assert bool(state["intermediates"]["equilibrium"][0].converged.all())
    assert bool((z == 0.0).any())


def test_the_nnx_layer_has_the_unrolled_gradient():
    layer = Equilibrium(Cell(0.0, nnx.Rngs(0)), tol=1e-6)
    got = nnx.jit(nnx.grad(lambda layer: jnp.sum(layer(X) ** 2)))(layer)

    def unrolled(layer):
        z = 0.0 * X
        for _ in range(20):
            z = layer.cell(z, X)
        return jnp.sum(z**2)

    for a, b in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(nnx.jit(nnx.grad(unrolled))(layer)),
        strict=True,
    ):
        assert_allclose(a, b, atol=1e-4)
    _, kept = nnx.capture(nnx.Intermediate)(lambda layer, x: layer(x))(layer, X)
    assert bool(kept["equilibrium"].get_value()[0].converged.all())


@pytest.mark.nightly
def test_dropout_of_nnx_has_new_masks_at_each_call():
    layer = Equilibrium(Cell(0.5, nnx.Rngs(0)))
    first, second = layer(X), layer(X)
    assert bool((first == 0.0).any())
    assert bool(((first == 0.0) != (second == 0.0)).any())
