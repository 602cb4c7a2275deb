"""Energies and the steps that lower them; `DESCENTS` names every system."""

from unroll_jax.descent import Entry
from unroll_jax.energies import examples
from unroll_jax.energies.activations import activation, elu, leaky_relu, sigmoid, softplus, softsign, tanh
from unroll_jax.energies.double_width import AsymmetricLayer, SymmetricEmbedding, symmetric_embedding
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
    "AsymmetricLayer",
    "AttentionParams",
    "DustParams",
    "FeedForwardParams",
    "HopfieldParams",
    "ListaParams",
    "Proximal",
    "Rho",
    "SymmetricEmbedding",
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
}
