"""Sums over pairs: in blocks as all at once, and in the memory of a block."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import unroll_jax as uj
from tests.energies.attention.examples import NO_WEIGHT
from tests.energies.comparing import both
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian
from unroll_jax.energies.attention.pairs import neighbourhood, pair_energy
from unroll_jax.energies.attention.rho import resolve_rho, softmax

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
PLAIN = softmax()._replace(exponential=False)  # the same function, as any other rho
RHOS = {
    "softmax": softmax(),
    "plain softmax": resolve_rho(PLAIN),
    "log": resolve_rho("log"),
}
N, DIM = 11, 3
RING = np.isin(np.abs(np.subtract.outer(np.arange(N), np.arange(N))), (1, N - 1))


def draw(*batch, n=N):
    return tuple(gaussian(2, *batch, n, DIM))


def total(rho, z, values, graph=None, **options):
    around = neighbourhood(rho, z, values, graph, **options)
    weight = np.cos(np.arange(values.size)).reshape(values.shape).astype(z.dtype)
    return (
        jnp.sum(around.energy)
        + jnp.sum(jnp.sin(around.log_degree))
        + jnp.sum(weight * around.mean)
    )


@nightly
@pytest.mark.parametrize(
    ("name", "bounded"),
    [("softmax", False), ("softmax", True), ("plain softmax", True), ("log", False)],
)
def test_blocks_give_what_all_at_once_gives(name, bounded):
    """Values, also in maps, gradients and second derivatives, for blocks that do and
    do not divide n."""
    rho, (z, values), graph = RHOS[name], draw(2), RING if name == "log" else None

    @functools.partial(compiled, static_argnums=2)
    def all_of(z, values, block):
        options = {"block": block, "bounded": bounded}
        first = jax.grad(lambda *a: total(rho, *a, graph, **options), (0, 1))

        def curvature(z):
            slopes = first(z, values)
            return jnp.sum(jnp.cos(slopes[0])), slopes

        second, slopes = jax.grad(curvature, has_aux=True)(z)
        summed = functools.partial(neighbourhood, rho, graph=graph, **options)
        energy = pair_energy(rho, z, graph, block=block)
        return summed(z, values), jax.vmap(summed)(z, values), energy, slopes, second

    expected = all_of(z, values, N)
    actual = all_of(z, values, 4 if bounded else 1)
    chex.assert_trees_all_close(expected[0].energy, expected[2], rtol=1e-13)
    chex.assert_trees_all_close(actual[:3], expected[:3], rtol=1e-12, atol=1e-13)
    chex.assert_trees_all_close(actual[1], actual[0], rtol=1e-12, atol=1e-13)
    chex.assert_trees_all_close(actual[3:], expected[3:], rtol=1e-10, atol=1e-11)


def test_the_softmax_sums_know_what_any_rho_would_compute():
    """The derivative written out for rho = -exp(-z) is the one autodiff finds for
    the same function."""
    ways = (("plain softmax", None), ("softmax", None), ("softmax", 4))

    @compiled
    def all_of(*pair):
        return [
            jax.value_and_grad(
                functools.partial(total, RHOS[name], block=block, bounded=True), (0, 1)
            )(*pair)
            for name, block in ways
        ]

    expected, *others = all_of(*draw())
    for actual in others:
        chex.assert_trees_all_close(actual, expected, rtol=1e-11, atol=1e-12)


@nightly
def test_derivatives_of_second_order_equal_finite_differences_in_both_modes():
    function = compiled(functools.partial(total, RHOS["softmax"], bounded=True))
    check_grads(
        function, draw(n=6), order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4
    )


def temporary_bytes(layer, n, *batch):
    together = layer.step_and_energy or functools.partial(both, layer)

    def loss(y):
        values = together(NO_WEIGHT, y, None), layer.energy(NO_WEIGHT, y, None)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(values))

    shape = jax.ShapeDtypeStruct((*batch, n, DIM), jnp.float32)
    program = jax.jit(jax.grad(loss)).lower(shape).compile()
    return program.memory_analysis().temp_size_in_bytes


@nightly
@pytest.mark.parametrize(
    "layer",
    [
        uj.attention(form="softmax", block=16),
        uj.attention(rho="log", block=16),
        uj.causal_attention(block=16),
    ],
)
def test_memory_is_that_of_a_block(layer):
    memory = {n: temporary_bytes(layer, n) for n in (1024, 4096)}
    assert memory[4096] < 5 * memory[1024]  # 16 for the square
    assert memory[4096] < 4 * 4096**2 / 8
    assert temporary_bytes(layer, 1024, 3) < 3.5 * memory[1024]


@nightly
def test_long_sequences_are_taken_in_blocks_unasked():
    layer = uj.attention(form="softmax")
    assert temporary_bytes(layer, 8192) < 4 * 8192**2 / 2
    assert temporary_bytes(layer, 1024, 32) < 4 * 32 * 1024**2 / 2
