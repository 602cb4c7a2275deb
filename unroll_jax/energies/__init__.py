"""Energies and the steps that lower them; `DESCENTS` names every system."""

import jax
from jaxtyping import Array

from unroll_jax.descent import Descent, Entry
from unroll_jax.energies.activations import activation, elu, leaky_relu, sigmoid, softplus, softsign, tanh
from unroll_jax.energies.dust import DustParams, ListaParams, cosine_dictionary, dust, lista
from unroll_jax.energies.feedforward import (
    FeedForwardParams,
    clip_spectrum,
    feedforward,
    feedforward_smoothness,
    step_is_guaranteed,
)
from unroll_jax.energies.hopfield import HopfieldParams, hopfield
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.pairwise import AttentionParams, attention
from unroll_jax.energies.penalty import Proximal, moreau_envelope
from unroll_jax.energies.proximal import (
    PROXIMALS,
    box,
    group_shrinkage,
    identity,
    nonnegative_soft_threshold,
    relu,
    soft_threshold,
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
from unroll_jax.energies.unit_layer import UnitLayerParams, unit_layer

__all__ = [
    "DESCENTS",
    "PROXIMALS",
    "RHOS",
    "AttentionParams",
    "DustParams",
    "FeedForwardParams",
    "HopfieldParams",
    "ListaParams",
    "Proximal",
    "Rho",
    "TransformerParams",
    "TransformerParts",
    "UnitLayerParams",
    "UnrolledLayerParams",
    "activation",
    "attention",
    "box",
    "clip_spectrum",
    "cosine_dictionary",
    "dust",
    "elu",
    "feedforward",
    "feedforward_smoothness",
    "group_shrinkage",
    "hopfield",
    "identity",
    "layer_norm",
    "leaky_relu",
    "lista",
    "moreau_envelope",
    "nonnegative_soft_threshold",
    "relu",
    "sigmoid",
    "soft_threshold",
    "softplus",
    "softsign",
    "step_is_guaranteed",
    "tanh",
    "transformer",
    "transformer_parts",
    "unit_layer",
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
