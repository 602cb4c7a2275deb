"""Value and gradient of the unrolled transformer and of attention, of any size."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.constrained_step.problems import UnrolledSizes, unrolled_transformer
from benchmarks.plain_layers import pair_weights
from unroll_jax.energies import AttentionParams

__all__ = [
    "MODELS",
    "Case",
    "Sizes",
    "attention_energy",
    "attention_layers",
    "dense_energy",
    "transformer",
]


class Sizes(NamedTuple):
    """Sizes of a model and its batch."""

    layers: int
    dim: int
    tokens: int
    batch: int


class Case(NamedTuple):
    """A jitted ``function(*arguments)``, and operations of its matrix products."""

    function: jax.stages.Wrapped
    arguments: tuple[Any, ...]
    flops: float


def transformer(sizes: Sizes) -> Case:
    """The loss of the last layer, and its gradient in the weights."""
    problem = unrolled_transformer(UnrolledSizes(*sizes))
    # compiles no program for the key, which would be counted
    shapes = jax.eval_shape(lambda: problem.init(jax.random.key(0)))
    draw = np.random.default_rng(0)
    scale = 0.5 / sizes.dim**0.5
    # nor does NumPy's float32
    params = jax.tree.map(
        lambda leaf: np.float32(scale * draw.normal(size=leaf.shape)), shapes
    )
    params = jax.device_put(params)
    function = jax.jit(jax.value_and_grad(problem.last_loss))
    return Case(function, (params, problem.batch), problem.flops[0])


def attention_energy(sizes: Sizes) -> Case:
    """The softmax pair energy, in blocks, and its gradient in the tokens.

    They take two products of n x n x d.
    """
    layer = unroll_jax.attention()
    return _energy_case(lambda z: layer.energy(AttentionParams(None), z, None), sizes)


def dense_energy(sizes: Sizes) -> Case:
    """The same arithmetic in one expression.

    It is -1/2 sum over u != v of exp(-|z_u - z_v|^2 / 2).
    """

    def energy(z: jax.Array) -> jax.Array:
        others = 1.0 - jnp.eye(z.shape[-2])
        return -0.5 * jnp.sum(pair_weights(z, z) * others, (-2, -1))

    return _energy_case(energy, sizes)


def attention_layers(sizes: Sizes) -> Case:
    """The mean square after tied attention steps, and its gradient in the tokens.

    A step takes two products, and its gradient four.
    """
    layer = unroll_jax.attention()
    params = AttentionParams(None)

    def loss(y: jax.Array) -> jax.Array:
        options = {"num_layers": sizes.layers, "record": None}
        last, _ = unroll_jax.unroll(layer, params, y, **options)
        return jnp.mean(last**2)

    function = jax.jit(jax.value_and_grad(loss))
    return Case(function, (_tokens(sizes),), 3.0 * sizes.layers * _pair_flops(sizes))


MODELS: dict[str, Callable[[Sizes], Case]] = {
    "transformer": transformer,
    "attention_energy": attention_energy,
    "attention_layers": attention_layers,
    "dense_energy": dense_energy,
}


def _energy_case(energy: Callable[[jax.Array], jax.Array], sizes: Sizes) -> Case:
    function = jax.jit(jax.value_and_grad(lambda z: jnp.sum(energy(z))))
    return Case(function, (_tokens(sizes),), _pair_flops(sizes))


def _pair_flops(sizes: Sizes) -> float:
    """Operations of the logits of all pairs, and of weights times tokens."""
    return 4.0 * sizes.batch * sizes.tokens**2 * sizes.dim


def _tokens(sizes: Sizes) -> jax.Array:
    """Tokens of shape (batch, tokens, dim), or (tokens, dim) for a batch of one.

    Users write dense expressions for one example without the axis of the batch.
    """
    shape = (sizes.batch, sizes.tokens, sizes.dim)[sizes.batch == 1 :]
    values = np.random.default_rng(0).normal(size=shape)
    return jax.device_put(np.float32(values / sizes.dim**0.5))
