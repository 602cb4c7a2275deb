"""Loops of one tied block, an argument of the call: gradients, random numbers of loops, constraints and measures.

Example:
  >>> GRADIENTS, DISTRIBUTIONS
  (('unrolled', 'implicit', 'none'), ('uniform', 'log_normal_poisson'))
"""

from unroll_jax.looped.draws import DISTRIBUTIONS, sample_far_start, sample_loops, sample_segment
from unroll_jax.looped.exits import exit_loops, exit_threshold, state_changes
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
    "exit_loops",
    "exit_threshold",
    "last_loops",
    "never_rise",
    "path_independence",
    "progressive_loss",
    "run_loops",
    "sample_far_start",
    "sample_loops",
    "sample_segment",
    "state_changes",
]
