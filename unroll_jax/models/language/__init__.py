"""Decoders of language: layers, cache, generation, speculation with early exits, and low-rank changes."""

from unroll_jax.models.language.decoder import Decoder, decoder_logits, decoder_readout
from unroll_jax.models.language.decoder_parts import DecoderConfig, rms_norm
from unroll_jax.models.language.decoding import KeyValueCache, decode, empty_cache
from unroll_jax.models.language.draft_costs import Costs, expected_speedup, expected_tokens, weight_costs
from unroll_jax.models.language.drafts import Acceptance, DraftChoice, acceptance, choose_draft, tokens_a_call
from unroll_jax.models.language.generation import NO_TOKEN, Generated, generate
from unroll_jax.models.language.low_rank import low_rank_changes, merged_changes, with_changes
from unroll_jax.models.language.rotary import SCALINGS, RotaryScaling
from unroll_jax.models.language.sampling import Sampling
from unroll_jax.models.language.speculative import Speculated, speculate

__all__ = [
    "NO_TOKEN",
    "SCALINGS",
    "Acceptance",
    "Costs",
    "Decoder",
    "DecoderConfig",
    "DraftChoice",
    "Generated",
    "KeyValueCache",
    "RotaryScaling",
    "Sampling",
    "Speculated",
    "acceptance",
    "choose_draft",
    "decode",
    "decoder_logits",
    "decoder_readout",
    "empty_cache",
    "expected_speedup",
    "expected_tokens",
    "generate",
    "low_rank_changes",
    "merged_changes",
    "rms_norm",
    "speculate",
    "tokens_a_call",
    "weight_costs",
    "with_changes",
]
