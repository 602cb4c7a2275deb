"""Attention with several heads lowers the sum of their energies, whatever its majoriser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.any_rho import of_every_rho
from tests.energies.attention.test_heads import GRAPH, SHAPES, build, tokens, weights
from unroll_jax.energies.attention.heads import HeadsParams

SCALES = np.logspace(-3, 3, 200)[:, None, None]  # six orders of magnitude
CASES = [
    ("block", "wide", {}),
    ("block", "narrow", {"form": "softmax", "ridge": 0.1, "mask": GRAPH}),
    ("block", "square", {"step_size": 0.3, "ridge": 10.0}),
]


def energies_and_slack(layer, params, y, x):
    """Before and after a step, and what round-off of the tokens is of the energies, as their gradients make it."""
    states = jnp.stack([y, layer.step(params, y, x)])
    before_and_after, pullback = jax.vjp(lambda states: layer.energy(params, states, x), states)
    (gradients,) = pullback(jnp.ones_like(before_and_after))
    size = jnp.maximum(jnp.max(jnp.abs(states), axis=(0, -2, -1)), jnp.max(jnp.abs(x), axis=(-2, -1)))
    slack = jnp.abs(before_and_after[0]) + size * jnp.sum(jnp.abs(gradients), axis=(0, -2, -1))
    return *before_and_after, slack


def check_descent(values, dtype, bound, what):
    before, after, slack = (np.asarray(array, np.float64) for array in values)
    limits = jnp.finfo(dtype)
    assert np.all(after - before <= bound * (float(limits.eps) * slack + float(limits.tiny))), what
    assert np.mean(after < before) > 0.3, what


def draws(dtype, shape):
    """200 weights, tokens and anchors."""
    num_heads, rank = SHAPES[shape]
    W_a = np.sqrt(2.0 / (4 + rank)) * tokens(2, (200, num_heads, 4, rank))
    y, x = (SCALES * tokens(seed, (200, 6, 4)) for seed in (0, 1))
    return [array.astype(dtype) for array in (W_a, y, x)]


@pytest.mark.parametrize(("majoriser", "shape", "options"), CASES)
def test_no_step_raises_the_sum_of_the_heads_energies_for_any_rho(majoriser, shape, options):
    """Also with more columns than the tokens are wide and no ridge, where the systems of "block" may be singular."""

    def one(rho, *args):
        layer = build(majoriser, shape, rho=rho, **options)
        return jax.vmap(lambda W_a, *args: energies_and_slack(layer, HeadsParams(W_a), *args))(*args)

    for rho, *values in zip(uj.RHOS, *of_every_rho(one)(*draws("float32", shape)), strict=True):
        check_descent(values, "float32", 32.0, rho)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_no_step_of_orthogonal_heads_raises_the_energy(dtype):
    """Weights drawn once: the decomposition within is not run in batches."""
    entries = {
        "narrow": {"rho": "softmax", "form": "softmax"},
        "square": {"rho": "student", "ridge": 0.1, "form": "jacobi"},
        "one": {"rho": "softmax", "form": "softmax"} if dtype == "float64" else {"rho": "student", "ridge": 0.1},
    }
    layers = {shape: build("orthogonal", shape, **options) for shape, options in entries.items()}
    raw = {shape: weights(shape, "orthogonal")[0].astype(dtype) for shape in entries}
    y, x = ((SCALES * tokens(seed, (200, 6, 4))).astype(dtype) for seed in (0, 1))
    with jax.enable_x64(dtype == "float64"):
        values = jax.jit(
            lambda raw, y, x: {name: energies_and_slack(layers[name], HeadsParams(raw[name]), y, x) for name in layers}
        )(raw, y, x)
        for shape, options in entries.items():
            check_descent(values[shape], dtype, 32.0, (shape, options))
