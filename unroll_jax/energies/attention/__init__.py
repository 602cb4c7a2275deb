"""Attention as descent: pairwise energies with one head or several, the graphs and slopes they take, and the sums."""

from unroll_jax.energies.attention.causal import (
    causal_attention,
    causal_attention_example,
    sweep_attention,
    sweep_attention_example,
)
from unroll_jax.energies.attention.graphs import band, block_sparse, edges, star
from unroll_jax.energies.attention.heads import (
    HeadsParams,
    multihead_attention,
    multihead_attention_example,
    orthonormal_heads,
)
from unroll_jax.energies.attention.pairwise import (
    AttentionParams,
    attention,
    attention_example,
    softmax_attention_example,
)
from unroll_jax.energies.attention.rho import RHOS, Rho

__all__ = [
    "RHOS",
    "AttentionParams",
    "HeadsParams",
    "Rho",
    "attention",
    "attention_example",
    "band",
    "block_sparse",
    "causal_attention",
    "causal_attention_example",
    "edges",
    "multihead_attention",
    "multihead_attention_example",
    "orthonormal_heads",
    "softmax_attention_example",
    "star",
    "sweep_attention",
    "sweep_attention_example",
]
