"""Energies and the steps that lower them; `DESCENTS` names every system."""

import jax
from jaxtyping import Array

from unroll_jax.descent import Descent, Entry
from unroll_jax.energies.deep_opteq import deep_opteq, multi_block
from unroll_jax.energies.feedforward import FeedForwardParams, feedforward
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.monotone import MONOTONES, Monotone
from unroll_jax.energies.opteq import OptEqParams, opteq, opteq_conv, opteq_potential
from unroll_jax.energies.opteq_objective import deep_opteq_objective, opteq_objective
from unroll_jax.energies.pairwise import AttentionParams, attention
from unroll_jax.energies.proximal import (
    PROXIMALS,
    Proximal,
    box,
    identity,
    nonnegative_soft_threshold,
    relu,
    soft_threshold,
)
from unroll_jax.energies.regularisers import (
    REGULARISERS,
    Regulariser,
    absolute,
    decorrelation,
    half_square,
    inverse_square,
    regularised,
)
from unroll_jax.energies.rho import RHOS, Rho
from unroll_jax.energies.transformer import (
    TransformerParams,
    TransformerParts,
    UnrolledLayerParams,
    transformer,
    transformer_parts,
    unrolled_layer,
)

__all__ = [
    "DESCENTS",
    "MONOTONES",
    "PROXIMALS",
    "REGULARISERS",
    "RHOS",
    "AttentionParams",
    "FeedForwardParams",
    "Monotone",
    "OptEqParams",
    "Proximal",
    "Regulariser",
    "Rho",
    "TransformerParams",
    "TransformerParts",
    "UnrolledLayerParams",
    "absolute",
    "attention",
    "box",
    "decorrelation",
    "deep_opteq",
    "deep_opteq_objective",
    "feedforward",
    "half_square",
    "identity",
    "inverse_square",
    "layer_norm",
    "multi_block",
    "nonnegative_soft_threshold",
    "opteq",
    "opteq_conv",
    "opteq_objective",
    "opteq_potential",
    "regularised",
    "relu",
    "soft_threshold",
    "transformer",
    "transformer_parts",
    "unrolled_layer",
]

_TOKENS, _DIM = 5, 4  # small, so that the conformance test is quick

_Example = tuple[Descent, Array, Array | None]


def _attention_example(key: jax.Array, batch: tuple[int, ...]) -> _Example:
    key_y, key_x = jax.random.split(key)
    y, x = (jax.random.normal(k, (*batch, _TOKENS, _DIM)) for k in (key_y, key_x))
    return attention(ridge=0.5, dim=_DIM, rank=2), y, x


def _softmax_attention_example(key: jax.Array, batch: tuple[int, ...]) -> _Example:
    return attention(form="softmax"), jax.random.normal(key, (*batch, _TOKENS, _DIM)), None


def _feedforward_example(key: jax.Array, batch: tuple[int, ...]) -> _Example:
    key_y, key_x = jax.random.split(key)
    y, x = (jax.random.normal(k, (*batch, _TOKENS, _DIM)) for k in (key_y, key_x))
    return feedforward(_DIM), y, x


def _transformer_example(key: jax.Array, batch: tuple[int, ...]) -> _Example:
    key_y, key_spread, key_x = jax.random.split(key, 3)
    # Tokens near a consensus, far from the minimiser of the rest: there the stated condition holds.
    consensus = 2.0 + jax.random.uniform(key_y, (*batch, 1, _DIM))
    y = consensus + 0.01 * jax.random.uniform(key_spread, (*batch, _TOKENS, _DIM))
    return transformer(_DIM, step_size=0.05), y, jax.random.uniform(key_x, (*batch, _TOKENS, _DIM))


DESCENTS: dict[str, Entry] = {
    "attention": Entry(attention, _attention_example),
    "softmax_attention": Entry(attention, _softmax_attention_example),
    "feedforward": Entry(feedforward, _feedforward_example),
    "transformer": Entry(transformer, _transformer_example),
}
