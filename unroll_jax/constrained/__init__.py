"""Optimisation under constraints: violations, Lagrangian, multipliers, ready-made
constraints and reports.

Example:
  >>> import jax.numpy as jnp, optax
  >>> constraints = descent_constraints(0.25)
  >>> losses = jnp.array([4.0, 2.0, 2.0])  # f_0, f_1, f_2
  >>> init, update = dual_ascent(optax.sgd(1.0))
  >>> multipliers = update(init(2), constraints(losses)).multipliers
  >>> multipliers.tolist()
  [0.0, 0.5]
  >>> float(lagrangian(losses[-1], constraints(losses), multipliers))
  2.25
  >>> BOUNDS
  ('stepwise', 'cumulative')
"""

from unroll_jax.constrained.advice import descent_warnings, suggest_alpha
from unroll_jax.constrained.constraint import (
    Constraint,
    batch_violations,
    column_means,
    column_sums,
    violations,
)
from unroll_jax.constrained.controllers import (
    PenaltyRule,
    growing_penalty,
    nu_pi,
    proportional_integral,
)
from unroll_jax.constrained.cross_entropy import chunked_cross_entropy
from unroll_jax.constrained.duals import DualAscent, DualState, dual_ascent
from unroll_jax.constrained.lagrangian import lagrangian
from unroll_jax.constrained.layer_bounds import (
    BOUNDS,
    descent_constraints,
    level_constraints,
)
from unroll_jax.constrained.points import take_rows
from unroll_jax.constrained.ready_made import class_losses, gap, kl, norm, rate
from unroll_jax.constrained.report import (
    ConstraintReport,
    constraint_report,
    held_out_report,
)
from unroll_jax.constrained.samples import tail_mean
from unroll_jax.constrained.transformation import multipliers_of, primal_dual

__all__ = [
    "BOUNDS",
    "Constraint",
    "ConstraintReport",
    "DualAscent",
    "DualState",
    "PenaltyRule",
    "batch_violations",
    "chunked_cross_entropy",
    "class_losses",
    "column_means",
    "column_sums",
    "constraint_report",
    "descent_constraints",
    "descent_warnings",
    "dual_ascent",
    "gap",
    "growing_penalty",
    "held_out_report",
    "kl",
    "lagrangian",
    "level_constraints",
    "multipliers_of",
    "norm",
    "nu_pi",
    "primal_dual",
    "proportional_integral",
    "rate",
    "suggest_alpha",
    "tail_mean",
    "take_rows",
    "violations",
]
