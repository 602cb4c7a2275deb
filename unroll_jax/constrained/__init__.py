"""Training under constraints: violations, Lagrangian, multipliers, resilience and the report on held-out data.

Example:
  >>> import jax.numpy as jnp
  >>> constraints, losses = descent_constraints(0.25), jnp.array([4.0, 2.0, 2.0])  # f_0, f_1, f_2
  >>> init, update = dual_ascent(dual_optimizer("sgd", 1.0))
  >>> multipliers = update(init(2), constraints(losses)).multipliers
  >>> multipliers.tolist(), layer_weights(multipliers, constraints, num_layers=2).tolist()
  ([0.0, 0.5], [0.0, -0.375, 1.5])
  >>> sorted(DUAL_OPTIMIZERS), sorted(FORMS)
  (['adam', 'nu_pi', 'pi', 'sgd'], ['difference', 'log_ratio', 'ratio'])
"""

from unroll_jax.constrained.constraints import (
    Constraints,
    constraint_names,
    descent_constraints,
    initial_sizes,
    named_figures,
    optimal_slacks,
    relaxed_violations,
    scaled_constraints,
)
from unroll_jax.constrained.controllers import DUAL_OPTIMIZERS, NuPIState, dual_optimizer, nu_pi, proportional_integral
from unroll_jax.constrained.cross_entropy import CountedPositions, chunked_cross_entropy, counted_positions
from unroll_jax.constrained.duals import DualAscent, DualState, dual_ascent
from unroll_jax.constrained.feasibility import FeasibilityReport, feasibility_report
from unroll_jax.constrained.forms import FORMS, constraint_bounds, relative_excess
from unroll_jax.constrained.lagrangian import augmented_lagrangian, lagrangian, layer_weights
from unroll_jax.constrained.losses import LossMean, add_losses, empty_mean
from unroll_jax.constrained.samples import (
    Reduction,
    mean_of_samples,
    positive_part,
    sample_constraints,
    tail_bound,
    tail_mean,
)
from unroll_jax.constrained.slacks import SlackDescent, SlackState, resilient_lagrangian, slack_descent

__all__ = [
    "DUAL_OPTIMIZERS",
    "FORMS",
    "Constraints",
    "CountedPositions",
    "DualAscent",
    "DualState",
    "FeasibilityReport",
    "LossMean",
    "NuPIState",
    "Reduction",
    "SlackDescent",
    "SlackState",
    "add_losses",
    "augmented_lagrangian",
    "chunked_cross_entropy",
    "constraint_bounds",
    "constraint_names",
    "counted_positions",
    "descent_constraints",
    "dual_ascent",
    "dual_optimizer",
    "empty_mean",
    "feasibility_report",
    "initial_sizes",
    "lagrangian",
    "layer_weights",
    "mean_of_samples",
    "named_figures",
    "nu_pi",
    "optimal_slacks",
    "positive_part",
    "proportional_integral",
    "relative_excess",
    "relaxed_violations",
    "resilient_lagrangian",
    "sample_constraints",
    "scaled_constraints",
    "slack_descent",
    "tail_bound",
    "tail_mean",
]
