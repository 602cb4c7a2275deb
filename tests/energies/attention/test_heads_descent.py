"""Attention with several heads lowers the sum of their energies, whatever its majoriser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.any_rho import of_every_rho
from tests.energies.attention.test_heads import CHOICES, GRAPH, SHAPES, build, tokens, weights
from unroll_jax.energies.attention.heads import HeadsParams

SCALES = np.logspace(-3, 3, 200)[:, None, None]  # six orders of magnitude


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


def draws(dtype, shape, batch=()):
    """200 weights, tokens and anchors."""
    num_heads, rank = SHAPES[shape]
    W_a = np.sqrt(2.0 / (4 + rank)) * tokens(2, (200, num_heads, 4, rank))
    scales = SCALES.reshape(200, *(1 for _ in batch), 1, 1)
    y, x = (scales * tokens(seed, (200, *batch, 6, 4)) for seed in (0, 1))
    return [array.astype(dtype) for array in (W_a, y, x)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("majoriser", "shape", "dtype"),
    [("block", shape, "float32") for shape in ("square", "wide", "narrow")]
    + [pytest.param("block", shape, "float64", marks=pytest.mark.slow) for shape in ("square", "wide")]
    + [("block", "one", "float64")]
    + [("scalar", "narrow", "float64"), ("scalar", "square", "float32"), ("scalar", "one", "float32")]
    + [("scalar", "wide", "float64")],
)
def test_no_step_raises_the_sum_of_the_heads_energies(majoriser, shape, dtype):
    """200 draws each of weights, tokens and anchors; other options and batch ranks go round over the cases."""
    place = CHOICES.index((majoriser, shape)) + 2 * (dtype == "float64")
    batch = [(), (2,), (2, 1)][place % 3]
    options = {
        "rho": list(uj.RHOS)[place % len(uj.RHOS)],
        "form": ("jacobi", "softmax")[place % 2],
        "ridge": (0.0, 0.1, 10.0)[place % 3],
        "step_size": (1.0, 0.3)[place // 2 % 2],
        "mask": (None, GRAPH)[place // 3 % 2],
    }
    layer = build(majoriser, shape, **options)
    with jax.enable_x64(dtype == "float64"):
        values = jax.jit(jax.vmap(lambda W_a, *args: energies_and_slack(layer, HeadsParams(W_a), *args)))(
            *draws(dtype, shape, batch)
        )
        assert values[0].shape == (200, *batch)
        check_descent(values, dtype, 32.0, options)


def test_no_step_of_a_block_raises_the_energy_for_any_rho():
    """More columns than the tokens are wide and no ridge, where its systems may be singular."""

    def one(rho, *args):
        layer = build("block", "wide", rho=rho)
        return jax.vmap(lambda W_a, *args: energies_and_slack(layer, HeadsParams(W_a), *args))(*args)

    for rho, *values in zip(uj.RHOS, *of_every_rho(one)(*draws("float32", "wide")), strict=True):
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
