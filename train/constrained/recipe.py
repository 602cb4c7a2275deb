"""What is said of a step, and how a validation is judged by the stated constraints."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from train.constrained.state import Metrics
from train.metrics import numbers
from train.recipe import INFEASIBLE, require_finite
from unroll_jax.constrained import Constraints

__all__ = ["describe_step", "judge_losses"]


def describe_step(step: int, values: Metrics) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of a step for metrics.jsonl, and a few words for the progress bar.

    Raises:
      UserError: if a loss or the gradient is not finite.
    """
    require_finite(step, values.layer_losses, "loss", each="layer")
    require_finite(step, values.grad_norm, "gradient")
    row = {
        "loss": float(values.layer_losses[-1]),
        "lagrangian": float(values.lagrangian),
        "layer_losses": values.layer_losses.tolist(),
        "violations": numbers(values.violations, length=values.layer_losses.size),
        "multipliers": numbers(values.multipliers, length=values.layer_losses.size),
        "grad_norm": float(values.grad_norm),
    }
    return row, {"loss": f"{values.layer_losses[-1]:.3f}", "worst_violation": f"{values.violations.max():+.3f}"}


def judge_losses(config: Any, constraints: Constraints, losses: np.ndarray, step: int) -> tuple[dict[str, Any], float]:
    """The row of a validation from its mean losses (L + 1,), and its checkpoint's score: feasible first, then by loss.

    Raises:
      UserError: if a loss is not finite.
    """
    require_finite(step, losses, "validation loss", each="layer")
    violations = np.asarray(constraints(jnp.asarray(losses)))
    bounds = losses[losses.size - violations.size :] - violations
    # A bound may be 0: that on layer 1 is where an input has no loss.
    excess = float(np.max(violations / np.maximum(bounds, 1e-9)))
    feasible = excess <= config.constraints.tolerance
    score = -float(losses[-1]) if feasible or config.method == "erm" else INFEASIBLE - excess
    row = {
        "layer_losses": losses.tolist(),
        "violations": numbers(violations, length=losses.size),
        "worst_excess": excess,
        "feasible": feasible,
    }
    return row, score
