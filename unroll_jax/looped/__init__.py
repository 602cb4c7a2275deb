"""Loops of one tied block: random numbers of loops, far starts, measures of states."""

from unroll_jax.looped.draws import sample_far_start, sample_loops, sample_segment
from unroll_jax.looped.loops import run_loops
from unroll_jax.looped.objectives import path_independence, step_sizes

__all__ = [
    "path_independence",
    "run_loops",
    "sample_far_start",
    "sample_loops",
    "sample_segment",
    "step_sizes",
]
