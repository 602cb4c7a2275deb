"""Loops of one tied block, an argument of the call: gradients, random numbers of loops, constraints and measures.

Example:
  >>> GRADIENTS, DISTRIBUTIONS
  (('unrolled', 'implicit'), ('uniform', 'log_normal_poisson'))
"""

from unroll_jax.looped.draws import DISTRIBUTIONS, sample_far_start, sample_loops, sample_segment
from unroll_jax.looped.loops import GRADIENTS, Loops, last_loops, run_loops
from unroll_jax.looped.objectives import (
    all_loops_loss,
    never_rise,
    path_independence,
    progressive_loss,
)

__all__ = [
    "DISTRIBUTIONS",
    "GRADIENTS",
    "Loops",
    "all_loops_loss",
    "last_loops",
    "never_rise",
    "path_independence",
    "progressive_loss",
    "run_loops",
    "sample_far_start",
    "sample_loops",
    "sample_segment",
]
