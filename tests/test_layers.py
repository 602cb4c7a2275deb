"""Equilibrium layers of flax: gradients against the unrolled cell, diagnostics,
dropout with one mask."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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

    def solved(variables):
        return jnp.sum(layer.apply(variables, X) ** 2)

    def unrolled(variables):
        cell = {"params": variables["params"]["cell"]}
        step = lambda _, z: LinenCell().apply(cell, z, X)
        return jnp.sum(jax.lax.fori_loop(0, 40, step, 0.0 * X) ** 2)

    @compiled
    def run(v):
        rngs = {"dropout": jax.random.key(1)}
        z, state = layer.apply(v, X, rngs=rngs, mutable="intermediates")
        converged = state["intermediates"]["equilibrium"][0].converged
        return jax.grad(solved)(v), jax.jacfwd(unrolled)(v), converged, z

    gradient, expected, converged, z = run(variables)
    chex.assert_trees_all_close(gradient, expected, rtol=0.0, atol=1e-4)
    assert converged.all()
    assert (z == 0.0).any()


def test_the_nnx_layer_has_the_unrolled_gradient():
    layer = nnx.jit(lambda: Equilibrium(Cell(0.0, nnx.Rngs(0)), tol=1e-6))()

    def solved(layer):
        return jnp.sum(layer(X) ** 2)

    def unrolled(layer):
        z = 0.0 * X
        for _ in range(20):
            z = layer.cell(z, X)
        return jnp.sum(z**2)

    run = nnx.jit(lambda layer: [nnx.grad(each)(layer) for each in (solved, unrolled)])
    gradients = map(jax.tree.leaves, run(layer))
    chex.assert_trees_all_close(*gradients, rtol=0.0, atol=1e-4)
    _, kept = nnx.capture(nnx.Intermediate)(lambda layer, x: layer(x))(layer, X)
    assert bool(kept["equilibrium"].get_value()[0].converged.all())


@pytest.mark.nightly
def test_dropout_of_nnx_has_new_masks_at_each_call():
    layer = Equilibrium(Cell(0.5, nnx.Rngs(0)))
    first, second = layer(X), layer(X)
    assert bool((first == 0.0).any())
    assert bool(((first == 0.0) != (second == 0.0)).any())
