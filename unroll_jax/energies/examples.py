"""A small example of every system in the table, and the condition under which its step must lower its energy."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from unroll_jax.descent import Descent
from unroll_jax.energies.causal import causal_attention, sweep_attention
from unroll_jax.energies.deep_opteq import deep_opteq
from unroll_jax.energies.dust import DustParams, dust, lista
from unroll_jax.energies.feedforward import feedforward
from unroll_jax.energies.heads import multihead_attention
from unroll_jax.energies.hopfield import hopfield
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.opteq import opteq, opteq_conv
from unroll_jax.energies.pairwise import AttentionParams, attention
from unroll_jax.energies.transformer import TransformerParams, TransformerParts, transformer, transformer_parts
from unroll_jax.energies.unit_layer import unit_layer

__all__ = [
    "DIM",
    "TOKENS",
    "attention_example",
    "causal_attention_example",
    "cross_attention_example",
    "deep_opteq_example",
    "dust_descends",
    "dust_example",
    "feedforward_example",
    "hopfield_example",
    "layer_norm_example",
    "lista_example",
    "multihead_attention_example",
    "normal",
    "opteq_conv_example",
    "opteq_example",
    "residual_transformer_descends",
    "residual_transformer_example",
    "softmax_attention_example",
    "sweep_attention_example",
    "transformer_descends",
    "transformer_example",
    "unit_layer_example",
]

TOKENS, DIM = 5, 4  # small, so that the conformance test is quick

# 1 / L of these layers is about 0.04: L is n |W_a|_2^2 (about 20) and a little.
TRANSFORMER: dict[str, Any] = {"step_size": 0.02}
RESIDUAL: dict[str, Any] = {
    "step_size": 0.02,
    "attention_step_size": 0.5,
    "form": "jacobi",
    "ridge": 0.5,
    "anchor": "row",
    "phi": "tanh",
}

ATOMS = 6
# L of this layer is about 7: |D|_2^2 is below 2.3, and n |V|_2^2 is 5.
DUST: dict[str, Any] = {"curvature": 8.0}

Example = tuple[Descent, Array, Array | None]


def attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Attention with a low-rank W_a and a ridge."""
    y, x = normal(key, 2, batch)
    return attention(ridge=0.5, dim=DIM, rank=2), y, x


def softmax_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Softmax attention of the tokens themselves."""
    return attention(form="softmax"), normal(key, 1, batch)[0], None


def multihead_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two heads that together see all of a token, and a ridge."""
    y, x = normal(key, 2, batch)
    return multihead_attention(DIM, num_heads=2, ridge=0.5), y, x


def causal_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Causal softmax attention; x is the context that its energy holds."""
    y, x = normal(key, 2, batch)
    return causal_attention(form="softmax"), y, x


def sweep_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Attention token by token, with a ridge."""
    y, x = normal(key, 2, batch)
    return sweep_attention(ridge=0.5), y, x


def feedforward_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The feed-forward layer; its condition holds for every ``init``."""
    y, x = normal(key, 2, batch)
    return feedforward(DIM), y, x


def layer_norm_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Layer normalisation."""
    return layer_norm(DIM), normal(key, 1, batch)[0], None


def transformer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The whole layer on nonnegative tokens that spread about a consensus, over three orders of magnitude."""
    y, x = _spread(key, batch)
    return transformer(DIM, **TRANSFORMER), jnp.abs(y), x


def transformer_descends(params: TransformerParams, y: Array, x: Array | None) -> Bool[Array, "*batch"]:
    """The condition of `transformer` for `transformer_example`."""
    return _descends(transformer_parts(DIM, **TRANSFORMER), params, y, x, ridge=0.0)


def residual_transformer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The whole layer, damped, anchored in both halves and with a smooth activation."""
    y, x = _spread(key, batch)
    return transformer(DIM, **RESIDUAL), jnp.tanh(y), x


def residual_transformer_descends(params: TransformerParams, y: Array, x: Array | None) -> Bool[Array, "*batch"]:
    """The condition of `transformer` for `residual_transformer_example`, and that tokens lie where phi is finite."""
    inside = jnp.all(jnp.abs(y) <= 1.0, axis=(-2, -1))
    return inside & _descends(transformer_parts(DIM, **RESIDUAL), params, y, x, ridge=RESIDUAL["ridge"])


def hopfield_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Learned patterns, and an anchor."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, num_patterns=3, inverse_temperature=2.0), y, x


def cross_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The same with the input for patterns, damped."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, step_size=0.7), y, x[..., :3, :]


def unit_layer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The unit layer, wider than its tokens, with an input and a skip connection."""
    y, x = normal(key, 2, batch)
    return unit_layer(DIM, 2 * DIM, DIM - 1, skip=0.8), y, x[..., : DIM - 1]


def lista_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of single tokens; its condition holds for every D."""
    key_y, key_x = jax.random.split(key)
    y = jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return lista(DIM, ATOMS), y, normal(key_x, 1, batch)[0]


def dust_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of a sequence: codes that spread about a consensus, and a signal they do not explain."""
    key_consensus, key_spread, key_y, key_x = jax.random.split(key, 4)
    spread = 10.0 ** jax.random.uniform(key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0)
    y = jax.random.normal(key_consensus, (*batch, 1, ATOMS))
    y = y + spread * jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return dust(DIM, ATOMS, **DUST), y, 10.0 * normal(key_x, 1, batch)[0]


def dust_descends(params: DustParams, y: Array, x: Array | None) -> Bool[Array, "*batch"]:
    """The condition of `dust` for `dust_example`."""
    pair, W_a, c = attention(form="softmax", dim=ATOMS), AttentionParams(params.V.T), DUST["curvature"]
    gradient = jax.grad(lambda y: jnp.sum(pair.energy(W_a, y, None)))(y)
    left = (pair.step(W_a, y, None) - y) @ (jnp.eye(ATOMS, dtype=y.dtype) - params.D @ params.D.T / c)
    error = jnp.linalg.norm(gradient / c + left, axis=(-2, -1))
    # |M|_2^2 is at most |M|_1 |M|_inf, which needs no decomposition.
    bounds = [jnp.linalg.norm(M, 1) * jnp.linalg.norm(M, jnp.inf) for M in (params.D, params.V)]
    room = 1.0 - (bounds[0] + y.shape[-2] * bounds[1]) / (2.0 * c)
    moved = jnp.linalg.norm(dust(DIM, ATOMS, **DUST).step(params, y, x) - y, axis=(-2, -1))
    return error <= room * moved


def opteq_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """OptEq with more hidden units than its state has, and a skip connection."""
    key_z, key_x = jax.random.split(key)
    z, x = jax.random.normal(key_z, (*batch, DIM)), jax.random.normal(key_x, (*batch, DIM - 1))
    return opteq(DIM, 2 * DIM, DIM - 1, skip=0.8), z, x


def opteq_conv_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Convolutional OptEq on small images, with a smooth activation."""
    key_z, key_x = jax.random.split(key)
    z, x = jax.random.normal(key_z, (*batch, 4, 3, 2)), jax.random.normal(key_x, (*batch, 4, 3, 1))
    return opteq_conv(2, 3, 1, activation="tanh"), z, x


def deep_opteq_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two layers, of which the second alone sees the input; initial weights have norms below 1."""
    _, z, x = opteq_example(key, batch)
    return deep_opteq([opteq(DIM, DIM), opteq(DIM, 2 * DIM, DIM - 1, skip=0.8)]), z, x


def normal(key: jax.Array, count: int, batch: tuple[int, ...]) -> Array:
    """``count`` draws of standard normal tokens."""
    return jax.random.normal(key, (count, *batch, TOKENS, DIM))


def _spread(key: jax.Array, batch: tuple[int, ...]) -> tuple[Array, Array]:
    """Tokens about a consensus, and anchors elsewhere; attention then has little to do, or much."""
    key_y, key_spread, key_tokens, key_x = jax.random.split(key, 4)
    consensus = 2.0 + jax.random.uniform(key_y, (*batch, 1, DIM))
    spread = 10.0 ** jax.random.uniform(key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0)
    y = consensus + spread * normal(key_tokens, 1, batch)[0]
    return y, jax.random.uniform(key_x, (*batch, TOKENS, DIM))


def _descends(parts: TransformerParts, params: TransformerParams, y: Array, x: Array | None, *, ridge: float) -> Array:
    """Norms are bounded by Frobenius's, which needs no decomposition."""
    W_a, W_f, step_size = params.W_a, params.W_f, parts.step_size
    smoothness = (y.shape[-2] + ridge) * jnp.sum(W_a**2) + jnp.linalg.norm(W_f) + 1.0
    gradient = jax.grad(lambda y: jnp.sum(parts.attention.energy(params, y, x)))(y)
    attended = parts.attention.step(params, y, x)
    mixing = (1.0 - step_size) * jnp.eye(W_f.shape[0], dtype=y.dtype) - step_size * 0.5 * (W_f + W_f.T)
    stepped = parts.phi.prox(parts.feedforward.step(params, attended, x), step_size)
    error = jnp.linalg.norm(step_size * gradient + (attended - y) @ mixing, axis=(-2, -1))
    return (step_size * smoothness <= 1.0) & (error <= 0.5 * jnp.linalg.norm(stepped - y, axis=(-2, -1)))
