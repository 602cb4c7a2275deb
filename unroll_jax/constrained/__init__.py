"""Optimisation under constraints: violations, Lagrangian, multipliers, ready-made constraints and reports.

Example:
  >>> import jax.numpy as jnp
  >>> constraints, losses = descent_constraints(0.25), jnp.array([4.0, 2.0, 2.0])  # f_0, f_1, f_2
  >>> init, update = dual_ascent(dual_optimizer("sgd", 1.0))
  >>> multipliers = update(init(2), constraints(losses)).multipliers
  >>> multipliers.tolist(), layer_weights(multipliers, constraints, num_layers=2).tolist()
  ([0.0, 0.5], [0.0, -0.375, 1.5])
  >>> sorted(DUAL_OPTIMIZERS), sorted(FORMS)
  (['adam', 'nu_pi', 'pi', 'sgd'], ['difference', 'log_ratio', 'ratio'])
  >>> BOUNDS, KINDS, ORDERS
  (('stepwise', 'cumulative'), ('at_most', 'equal'), ('simultaneous', 'primal_dual', 'dual_primal', 'extragradient'))
"""

from unroll_jax.constrained.advice import descent_warnings, suggest_alpha
from unroll_jax.constrained.budgets import (
    calibration_gap,
    cost_budget,
    expected_gates,
    kl_budget,
    norm_bound,
    sample_gates,
)
from unroll_jax.constrained.constraints import (
    Constraints,
    constraint_names,
    initial_sizes,
    named_figures,
    optimal_slacks,
    relaxed_violations,
    scaled_constraints,
)
from unroll_jax.constrained.controllers import DUAL_OPTIMIZERS, NuPIState, dual_optimizer, nu_pi, proportional_integral
from unroll_jax.constrained.cross_entropy import CountedPositions, chunked_cross_entropy, counted_positions
from unroll_jax.constrained.duals import DualAscent, DualState, dual_ascent
from unroll_jax.constrained.exit_weights import EXIT_CURRICULA, EXIT_WEIGHTS, exit_curriculum, exit_weights
from unroll_jax.constrained.feasibility import FeasibilityReport, feasibility_report
from unroll_jax.constrained.forms import FORMS, constraint_bounds, relative_excess
from unroll_jax.constrained.groups import KINDS
from unroll_jax.constrained.implicit import ImplicitDuals, ImplicitState, implicit_dual_ascent
from unroll_jax.constrained.lagrangian import augmented_lagrangian, lagrangian, layer_weights
from unroll_jax.constrained.layer_bounds import BOUNDS, LayerConstraints, descent_constraints, level_constraints
from unroll_jax.constrained.losses import LossMean, add_losses, empty_mean
from unroll_jax.constrained.penalties import (
    PenaltyRule,
    balancing_penalty,
    bertsekas_penalty,
    constant_penalty,
    growing_penalty,
)
from unroll_jax.constrained.plots import plot_feasibility, plot_multipliers
from unroll_jax.constrained.rates import (
    ProxyConstraint,
    demographic_parity,
    equal_opportunity,
    equalised_odds,
    positive_rate,
    worst_class_loss,
)
from unroll_jax.constrained.report import ConstraintReport, GroupReport, constraint_report
from unroll_jax.constrained.rows import take_rows
from unroll_jax.constrained.samples import (
    Reduction,
    mean_of_samples,
    positive_part,
    sample_constraints,
    tail_bound,
    tail_mean,
)
from unroll_jax.constrained.slacks import SlackDescent, SlackState, resilient_lagrangian, slack_descent
from unroll_jax.constrained.stochastic import SmoothingState, proximal_smoothing, switching_objective
from unroll_jax.constrained.transformation import ORDERS, PrimalDualState, multipliers_of, primal_dual

__all__ = [
    "BOUNDS",
    "DUAL_OPTIMIZERS",
    "EXIT_CURRICULA",
    "EXIT_WEIGHTS",
    "FORMS",
    "KINDS",
    "ORDERS",
    "ConstraintReport",
    "Constraints",
    "CountedPositions",
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
    "balancing_penalty",
    "bertsekas_penalty",
    "calibration_gap",
    "chunked_cross_entropy",
    "constant_penalty",
    "constraint_bounds",
    "constraint_names",
    "constraint_report",
    "cost_budget",
    "counted_positions",
    "demographic_parity",
    "descent_constraints",
    "descent_warnings",
    "dual_ascent",
    "dual_optimizer",
    "empty_mean",
    "equal_opportunity",
    "equalised_odds",
    "exit_curriculum",
    "exit_weights",
    "expected_gates",
    "feasibility_report",
    "growing_penalty",
    "implicit_dual_ascent",
    "initial_sizes",
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
    "plot_multipliers",
    "positive_part",
    "positive_rate",
    "primal_dual",
    "proportional_integral",
    "proximal_smoothing",
    "relative_excess",
    "relaxed_violations",
    "resilient_lagrangian",
    "sample_constraints",
    "sample_gates",
    "scaled_constraints",
    "slack_descent",
    "suggest_alpha",
    "switching_objective",
    "tail_bound",
    "tail_mean",
    "take_rows",
    "worst_class_loss",
]
