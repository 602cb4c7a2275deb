"""Layers that are descent steps on an energy."""

from unroll_jax import certificates, constrained, energies
from unroll_jax.alternating import alternating
from unroll_jax.certificates import certify
from unroll_jax.constrained import (
    DualAscent,
    DualState,
    FeasibilityReport,
    descent_constraints,
    dual_ascent,
    feasibility_report,
    lagrangian,
    layer_weights,
)
from unroll_jax.descent import Anchor, Descent, Entry
from unroll_jax.energies import (
    DESCENTS,
    PROXIMALS,
    RHOS,
    Proximal,
    Rho,
    attention,
    causal_attention,
    clip_spectrum,
    dust,
    feedforward,
    hopfield,
    layer_norm,
    lista,
    moreau_envelope,
    multihead_attention,
    sweep_attention,
    symmetric_embedding,
    transformer,
    transformer_parts,
    unit_layer,
)
from unroll_jax.unrolling import Trace, unroll

__version__ = "0.1.0"

__all__ = [
    "DESCENTS",
    "PROXIMALS",
    "RHOS",
    "Anchor",
    "Descent",
    "DualAscent",
    "DualState",
    "Entry",
    "FeasibilityReport",
    "Proximal",
    "Rho",
    "Trace",
    "alternating",
    "attention",
    "causal_attention",
    "certificates",
    "certify",
    "clip_spectrum",
    "constrained",
    "descent_constraints",
    "dual_ascent",
    "dust",
    "energies",
    "feasibility_report",
    "feedforward",
    "hopfield",
    "lagrangian",
    "layer_norm",
    "layer_weights",
    "lista",
    "moreau_envelope",
    "multihead_attention",
    "sweep_attention",
    "symmetric_embedding",
    "transformer",
    "transformer_parts",
    "unit_layer",
    "unroll",
]
