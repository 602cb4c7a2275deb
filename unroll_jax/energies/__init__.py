"""Energies and the steps that lower them. `DESCENTS` names every system.

A known number out of range, or an array that does not fit, is a ValueError or TypeError
that names the argument. CONTRIBUTING.md says how to add a system.

Example:
  >>> import jax
  >>> descent, y, x = DESCENTS["softmax_attention"].example(jax.random.key(0), (2,))
  >>> params = jax.jit(descent.init)(jax.random.key(1))
  >>> energy, step = jax.jit(descent.energy), jax.jit(descent.step)
  >>> before, after = energy(params, y, x), energy(params, step(params, y, x), x)
  >>> bool((after <= before).all())
  True
  >>> sorted(REGULARISERS)
  ['absolute', 'decorrelation', 'half_square', 'inverse_square']
  >>> sorted(MONOTONES)[:2], "softmax" in RHOS, "relu" in PROXIMALS
  (['identity', 'leaky_relu'], True, True)
"""

from unroll_jax.descent import Entry
from unroll_jax.energies.attention.causal import (
    causal_attention,
    causal_attention_example,
)
from unroll_jax.energies.attention.heads import (
    HeadsParams,
    multihead_attention,
    multihead_attention_example,
)
from unroll_jax.energies.attention.pairwise import (
    AttentionParams,
    attention,
    attention_example,
    softmax_attention_example,
)
from unroll_jax.energies.attention.rho import RHOS, Rho
from unroll_jax.energies.convex_equilibrium import (
    convex_equilibrium,
    convex_equilibrium_example,
)
from unroll_jax.energies.convex_potential import (
    ConvexPotentialParams,
    convex_potential,
    convex_potential_conv,
    convex_potential_conv_example,
    convex_potential_example,
)
from unroll_jax.energies.cosine import cosine_dictionary
from unroll_jax.energies.crate import CrateParams, crate, crate_example
from unroll_jax.energies.double_width import (
    AsymmetricLayer,
    SymmetricEmbedding,
    symmetric_embedding,
)
from unroll_jax.energies.dust import DustParams, dust, dust_descends, dust_example
from unroll_jax.energies.energy_transformer import (
    EnergyTransformerParams,
    energy_transformer,
    energy_transformer_example,
)
from unroll_jax.energies.equilibrium.deep_opteq import (
    deep_opteq,
    deep_opteq_example,
    multi_block,
)
from unroll_jax.energies.equilibrium.monotone import MONOTONES, Monotone
from unroll_jax.energies.equilibrium.opteq import (
    opteq,
    opteq_conv,
    opteq_conv_example,
    opteq_example,
)
from unroll_jax.energies.equilibrium.opteq_objective import (
    deep_opteq_objective,
    opteq_objective,
)
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.energies.equilibrium.regularisers import (
    REGULARISERS,
    Regulariser,
    absolute,
    decorrelation,
    half_square,
    inverse_square,
    regularised,
)
from unroll_jax.energies.fast_weights import (
    delta_rule,
    fast_weights,
    fast_weights_example,
    proximal_fast_weights_example,
)
from unroll_jax.energies.feedforward import (
    FeedForwardParams,
    clip_spectrum,
    feedforward,
    feedforward_example,
)
from unroll_jax.energies.hopfield import (
    HopfieldParams,
    cross_attention_example,
    hopfield,
    hopfield_example,
)
from unroll_jax.energies.hyper_set import HyperSetParams, hyper_set, hyper_set_example
from unroll_jax.energies.layer_norm import layer_norm, layer_norm_example
from unroll_jax.energies.lista import (
    ListaLayerParams,
    ListaParams,
    lista,
    lista_example,
    lista_layer,
)
from unroll_jax.energies.mesa import MesaState, mesa
from unroll_jax.energies.proximal.activations import (
    activation,
    leaky_relu,
    sigmoid,
    softplus,
    tanh,
)
from unroll_jax.energies.proximal.operators import (
    PROXIMALS,
    box,
    elastic_net,
    group_shrinkage,
    identity,
    nonnegative_soft_threshold,
    relu,
    soft_threshold,
)
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.energies.safeguard import safeguarded
from unroll_jax.energies.transformer import (
    residual_transformer_descends,
    residual_transformer_example,
    transformer,
    transformer_descends,
    transformer_example,
)
from unroll_jax.energies.transformer_parts import (
    TransformerParams,
    TransformerParts,
    transformer_parts,
)
from unroll_jax.energies.unrolled_layer import UnrolledLayerParams, unrolled_layer

__all__ = [
    "DESCENTS",
    "MONOTONES",
    "PROXIMALS",
    "REGULARISERS",
    "RHOS",
    "AsymmetricLayer",
    "AttentionParams",
    "ConvexPotentialParams",
    "CrateParams",
    "DustParams",
    "EnergyTransformerParams",
    "FeedForwardParams",
    "HeadsParams",
    "HopfieldParams",
    "HyperSetParams",
    "ListaLayerParams",
    "ListaParams",
    "MesaState",
    "Monotone",
    "OptEqParams",
    "Proximal",
    "Regulariser",
    "Rho",
    "SymmetricEmbedding",
    "TransformerParams",
    "TransformerParts",
    "UnrolledLayerParams",
    "absolute",
    "activation",
    "attention",
    "box",
    "causal_attention",
    "clip_spectrum",
    "convex_equilibrium",
    "convex_potential",
    "convex_potential_conv",
    "cosine_dictionary",
    "crate",
    "decorrelation",
    "deep_opteq",
    "deep_opteq_objective",
    "delta_rule",
    "dust",
    "elastic_net",
    "energy_transformer",
    "fast_weights",
    "feedforward",
    "group_shrinkage",
    "half_square",
    "hopfield",
    "hyper_set",
    "identity",
    "inverse_square",
    "layer_norm",
    "leaky_relu",
    "lista",
    "lista_layer",
    "mesa",
    "multi_block",
    "multihead_attention",
    "nonnegative_soft_threshold",
    "opteq",
    "opteq_conv",
    "opteq_objective",
    "regularised",
    "relu",
    "safeguarded",
    "sigmoid",
    "soft_threshold",
    "softplus",
    "symmetric_embedding",
    "tanh",
    "transformer",
    "transformer_parts",
    "unrolled_layer",
]

#: Every system by name: factory, example, and condition for descent.
DESCENTS: dict[str, Entry] = {
    "attention": Entry(attention, attention_example),
    "softmax_attention": Entry(attention, softmax_attention_example),
    "multihead_attention": Entry(multihead_attention, multihead_attention_example),
    "causal_attention": Entry(causal_attention, causal_attention_example),
    "feedforward": Entry(feedforward, feedforward_example),
    "layer_norm": Entry(layer_norm, layer_norm_example),
    "transformer": Entry(transformer, transformer_example, transformer_descends),
    "residual_transformer": Entry(
        transformer, residual_transformer_example, residual_transformer_descends
    ),
    "hopfield": Entry(hopfield, hopfield_example),
    "cross_attention": Entry(hopfield, cross_attention_example),
    "energy_transformer": Entry(energy_transformer, energy_transformer_example),
    "crate": Entry(crate, crate_example),
    "hyper_set": Entry(hyper_set, hyper_set_example),
    "fast_weights": Entry(fast_weights, fast_weights_example),
    "proximal_fast_weights": Entry(fast_weights, proximal_fast_weights_example),
    "lista": Entry(lista, lista_example),
    "dust": Entry(dust, dust_example, dust_descends),
    "opteq": Entry(opteq, opteq_example, event_ndim=1),
    "opteq_conv": Entry(opteq_conv, opteq_conv_example, event_ndim=3),
    "deep_opteq": Entry(deep_opteq, deep_opteq_example, event_ndim=1),
    "convex_potential": Entry(convex_potential, convex_potential_example, event_ndim=1),
    "convex_potential_conv": Entry(
        convex_potential_conv, convex_potential_conv_example, event_ndim=3
    ),
    "convex_equilibrium": Entry(
        convex_equilibrium, convex_equilibrium_example, event_ndim=1
    ),
}
