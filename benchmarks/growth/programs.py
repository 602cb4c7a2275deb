"""Programs of any size: value and gradient of the unrolled transformer and of
attention."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.constrained_step.problems import UnrolledSizes, unrolled_transformer
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
    """The loss of the last layer of the unrolled transformer, and its gradient in
    the weights."""
    problem = unrolled_transformer(
        UnrolledSizes(sizes.layers, sizes.dim, sizes.tokens, sizes.batch)
    )
    shapes = jax.eval_shape(lambda: problem.init(jax.random.key(0)))
    draw = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: draw.normal(size=leaf.shape) / (2.0 * sizes.dim**0.5), shapes
    )
    params = jax.device_put(jax.tree.map(np.float32, params))
    return Case(
        jax.jit(jax.value_and_grad(problem.last_loss)),
        (params, problem.batch),
        problem.flops[0],
    )


def attention_energy(sizes: Sizes) -> Case:
    """The softmax pair energy of examples, in blocks, and its gradient in the
    tokens: two products of n x n x d."""
    return _energy_case(
        lambda z: unroll_jax.attention().energy(AttentionParams(None), z, None), sizes
    )


def dense_energy(sizes: Sizes) -> Case:
    """The same arithmetic in one expression: -1/2 sum over u != v of exp(-|z_u -
    z_v|^2 / 2)."""

    def energy(z: jax.Array) -> jax.Array:
        halves = 0.5 * jnp.sum(z**2, axis=-1)
        distances = halves[..., :, None] + halves[..., None, :] - z @ z.mT
        others = ~jnp.eye(z.shape[-2], dtype=bool)
        return -0.5 * jnp.sum(jnp.where(others, jnp.exp(-distances), 0.0), (-2, -1))

    return _energy_case(energy, sizes)


def attention_layers(sizes: Sizes) -> Case:
    """The mean square after tied attention steps and its gradient in the tokens; of
    a step, two products and four."""
    layer = unroll_jax.attention()

    def loss(y: jax.Array) -> jax.Array:
        last, _ = unroll_jax.unroll(
            layer, AttentionParams(None), y, num_layers=sizes.layers, record=None
        )
        return jnp.mean(last**2)

    return Case(
        jax.jit(jax.value_and_grad(loss)),
        (_tokens(sizes),),
        3.0 * sizes.layers * _pair_flops(sizes),
    )


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
    """Returns the operations of the logits of all pairs, and of the products of
    weights and tokens."""
    return 4.0 * sizes.batch * sizes.tokens**2 * sizes.dim


def _tokens(sizes: Sizes) -> jax.Array:
    """(batch, tokens, dim); of one example without the axis of the batch, which
    dense expressions do without too."""
    values = (
        np.random.default_rng(0).normal(size=(sizes.batch, sizes.tokens, sizes.dim))
        / sizes.dim**0.5
    )
    return jax.device_put(np.float32(values[0] if sizes.batch == 1 else values))
