"""Optimisation under constraints: violations, Lagrangian, multipliers, ready-made constraints and reports.

Example:
  >>> import jax.numpy as jnp
  >>> constraints, losses = descent_constraints(0.25), jnp.array([4.0, 2.0, 2.0])  # f_0, f_1, f_2
  >>> init, update = dual_ascent(dual_optimizer("sgd", 1.0))
  >>> multipliers = update(init(2), constraints(losses)).multipliers
  >>> multipliers.tolist(), layer_weights(multipliers, constraints, num_layers=2).tolist()
  ([0.0, 0.5], [0.0, -0.375, 1.5])
  >>> BOUNDS
  ('stepwise', 'cumulative')
"""

from unroll_jax.constrained.advice import descent_warnings, suggest_alpha
from unroll_jax.constrained.budgets import kl_budget, norm_bound
from unroll_jax.constrained.constraints import (
    Constraints,
    constraint_names,
    named_figures,
    optimal_slacks,
    relaxed_violations,
)
from unroll_jax.constrained.controllers import NuPIState, dual_optimizer, nu_pi, proportional_integral
from unroll_jax.constrained.cross_entropy import chunked_cross_entropy
from unroll_jax.constrained.duals import DualAscent, DualState, dual_ascent
from unroll_jax.constrained.feasibility import FeasibilityReport, feasibility_report
from unroll_jax.constrained.forms import constraint_bounds, relative_excess
from unroll_jax.constrained.implicit import ImplicitDuals, ImplicitState, implicit_dual_ascent
from unroll_jax.constrained.lagrangian import augmented_lagrangian, lagrangian, layer_weights
from unroll_jax.constrained.layer_bounds import BOUNDS, LayerConstraints, descent_constraints, level_constraints
from unroll_jax.constrained.losses import LossMean, add_losses, empty_mean
from unroll_jax.constrained.penalties import PenaltyRule, bertsekas_penalty, growing_penalty
from unroll_jax.constrained.plots import plot_feasibility
from unroll_jax.constrained.rates import ProxyConstraint, demographic_parity, worst_class_loss
from unroll_jax.constrained.report import ConstraintReport, GroupReport, constraint_report
from unroll_jax.constrained.rows import take_rows
from unroll_jax.constrained.samples import Reduction, mean_of_samples, sample_constraints, tail_mean
from unroll_jax.constrained.slacks import SlackDescent, SlackState, resilient_lagrangian, slack_descent
from unroll_jax.constrained.stochastic import SmoothingState, proximal_smoothing, switching_objective
from unroll_jax.constrained.transformation import PrimalDualState, multipliers_of, primal_dual

__all__ = [
    "BOUNDS",
    "ConstraintReport",
    "Constraints",
    "DualAscent",
    "DualState",
    "FeasibilityReport",
    "GroupReport",
    "ImplicitDuals",
    "ImplicitState",
    "LayerConstraints",
    "LossMean",
    "NuPIState",
    "PenaltyRule",
    "PrimalDualState",
    "ProxyConstraint",
    "Reduction",
    "SlackDescent",
    "SlackState",
    "SmoothingState",
    "add_losses",
    "augmented_lagrangian",
    "bertsekas_penalty",
    "chunked_cross_entropy",
    "constraint_bounds",
    "constraint_names",
    "constraint_report",
    "demographic_parity",
    "descent_constraints",
    "descent_warnings",
    "dual_ascent",
    "dual_optimizer",
    "empty_mean",
    "feasibility_report",
    "growing_penalty",
    "implicit_dual_ascent",
    "kl_budget",
    "lagrangian",
    "layer_weights",
    "level_constraints",
    "mean_of_samples",
    "multipliers_of",
    "named_figures",
    "norm_bound",
    "nu_pi",
    "optimal_slacks",
    "plot_feasibility",
    "primal_dual",
    "proportional_integral",
    "proximal_smoothing",
    "relative_excess",
    "relaxed_violations",
    "resilient_lagrangian",
    "sample_constraints",
    "slack_descent",
    "suggest_alpha",
    "switching_objective",
    "tail_mean",
    "take_rows",
    "worst_class_loss",
]
