"""Energies and the steps that lower them; `DESCENTS` names every system."""

from unroll_jax.descent import Entry
from unroll_jax.energies import examples
from unroll_jax.energies.activations import activation, elu, leaky_relu, sigmoid, softplus, softsign, tanh
from unroll_jax.energies.causal import causal_attention, sweep_attention
from unroll_jax.energies.deep_opteq import deep_opteq, multi_block
from unroll_jax.energies.double_width import AsymmetricLayer, SymmetricEmbedding, symmetric_embedding
from unroll_jax.energies.dust import DustParams, ListaParams, cosine_dictionary, dust, lista
from unroll_jax.energies.feedforward import (
    FeedForwardParams,
    clip_spectrum,
    feedforward,
    feedforward_smoothness,
    step_is_guaranteed,
)
from unroll_jax.energies.graphs import band, block_sparse, edges, star
from unroll_jax.energies.heads import HeadsParams, multihead_attention, orthonormal_heads
from unroll_jax.energies.hopfield import HopfieldParams, hopfield
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.monotone import MONOTONES, Monotone
from unroll_jax.energies.opteq import opteq, opteq_conv, opteq_potential
from unroll_jax.energies.opteq_objective import deep_opteq_objective, opteq_objective
from unroll_jax.energies.opteq_params import OptEqParams
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
from unroll_jax.energies.transformer import TransformerParams, TransformerParts, transformer, transformer_parts
from unroll_jax.energies.unit_layer import UnitLayerParams, unit_layer
from unroll_jax.energies.unrolled_layer import UnrolledLayerParams, unrolled_layer

__all__ = [
    "DESCENTS",
    "MONOTONES",
    "PROXIMALS",
    "REGULARISERS",
    "RHOS",
    "AsymmetricLayer",
    "AttentionParams",
    "DustParams",
    "FeedForwardParams",
    "HeadsParams",
    "HopfieldParams",
    "ListaParams",
    "Monotone",
    "OptEqParams",
    "Proximal",
    "Regulariser",
    "Rho",
    "SymmetricEmbedding",
    "TransformerParams",
    "TransformerParts",
    "UnitLayerParams",
    "UnrolledLayerParams",
    "absolute",
    "activation",
    "attention",
    "band",
    "block_sparse",
    "box",
    "causal_attention",
    "clip_spectrum",
    "cosine_dictionary",
    "decorrelation",
    "deep_opteq",
    "deep_opteq_objective",
    "dust",
    "edges",
    "elu",
    "feedforward",
    "feedforward_smoothness",
    "group_shrinkage",
    "half_square",
    "hopfield",
    "identity",
    "inverse_square",
    "layer_norm",
    "leaky_relu",
    "lista",
    "moreau_envelope",
    "multi_block",
    "multihead_attention",
    "nonnegative_soft_threshold",
    "opteq",
    "opteq_conv",
    "opteq_objective",
    "opteq_potential",
    "orthonormal_heads",
    "regularised",
    "relu",
    "sigmoid",
    "soft_threshold",
    "softplus",
    "softsign",
    "star",
    "step_is_guaranteed",
    "sweep_attention",
    "symmetric_embedding",
    "tanh",
    "transformer",
    "transformer_parts",
    "unit_layer",
    "unrolled_layer",
]

DESCENTS: dict[str, Entry] = {
    "attention": Entry(attention, examples.attention_example),
    "softmax_attention": Entry(attention, examples.softmax_attention_example),
    "multihead_attention": Entry(multihead_attention, examples.multihead_attention_example),
    "causal_attention": Entry(causal_attention, examples.causal_attention_example),
    "sweep_attention": Entry(sweep_attention, examples.sweep_attention_example),
    "feedforward": Entry(feedforward, examples.feedforward_example),
    "layer_norm": Entry(layer_norm, examples.layer_norm_example),
    "transformer": Entry(transformer, examples.transformer_example, examples.transformer_descends),
    "residual_transformer": Entry(
        transformer, examples.residual_transformer_example, examples.residual_transformer_descends
    ),
    "hopfield": Entry(hopfield, examples.hopfield_example),
    "cross_attention": Entry(hopfield, examples.cross_attention_example),
    "unit_layer": Entry(unit_layer, examples.unit_layer_example),
    "lista": Entry(lista, examples.lista_example),
    "dust": Entry(dust, examples.dust_example, examples.dust_descends),
    "opteq": Entry(opteq, examples.opteq_example, event_ndim=1),
    "opteq_conv": Entry(opteq_conv, examples.opteq_conv_example, event_ndim=3),
    "deep_opteq": Entry(deep_opteq, examples.deep_opteq_example, event_ndim=1),
}
