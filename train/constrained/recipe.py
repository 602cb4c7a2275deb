"""What is said of a step, and how a validation is judged by the stated constraints."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from train.constrained.bounds import Bounds
from train.constrained.duals import reduction, stated
from train.constrained.state import Metrics, TrainState
from train.metrics import numbers
from train.recipe import INFEASIBLE, require_finite
from unroll_jax.constrained import constraint_names, named_figures

__all__ = ["describe_step", "judge_losses"]


def describe_step(config: Any, step: int, values: Metrics) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of a step for metrics.jsonl, and a few words for the progress bar.

    Raises:
      UserError: if a number is not finite.
    """
    require_finite(step, values.layer_losses, "loss", each="layer")
    require_finite(step, values.multipliers, "multiplier", each="constraint")
    require_finite(step, values.lagrangian, "Lagrangian")
    require_finite(step, values.grad_norm, "gradient")
    count = values.layer_losses.size
    row = {
        "loss": float(values.layer_losses[-1]),
        "lagrangian": float(values.lagrangian),
        "layer_losses": values.layer_losses.tolist(),
        "violations": numbers(values.violations, length=count),
        "multipliers": numbers(values.multipliers, length=count),
        "grad_norm": float(values.grad_norm),
        **_named(
            config,
            count,
            violation=values.violations,
            multiplier=values.multipliers,
            slack=values.slacks,
            size=values.sizes,
        ),
    }
    return row, {"loss": f"{values.layer_losses[-1]:.3f}", "worst_violation": f"{values.violations.max():+.3f}"}


def judge_losses(
    config: Any, bounds: Bounds, sample_losses: np.ndarray, state: TrainState
) -> tuple[dict[str, Any], float]:
    """The row of a validation from its losses (N, L + 1), and its checkpoint's score: feasible first, then by loss.

    Checkpoints that are not feasible go by their worst excess over a bound where constraints are hard. Resilience
    lets every bound be exceeded at a cost, so there they go by the last layer's loss with that cost.

    Raises:
      UserError: if a loss is not finite.
    """
    losses = sample_losses.mean(axis=0)
    require_finite(int(state.step), losses, "validation loss", each="layer")
    bound = losses if reduction(config) is None else sample_losses
    violations = np.asarray(stated(config, bounds)(jnp.asarray(bound)))
    # What the means have to stay under, as `feasibility_report` has it, whatever is bound of the samples.
    allowed = losses[losses.size - violations.size :] - np.asarray(bounds.stated(jnp.asarray(losses)))
    # A bound may be 0: that on layer 1 is where an input has no loss.
    excess = float(np.max(violations / np.maximum(allowed, 1e-9)))
    feasible = excess <= config.constraints.tolerance
    relaxed = _relaxed_loss(config, losses, violations, state)
    score = -float(losses[-1])
    if not feasible and config.method != "erm":
        score = INFEASIBLE - (excess if relaxed is None else relaxed)
    row = {
        "layer_losses": losses.tolist(),
        "violations": numbers(violations, length=losses.size),
        "worst_excess": excess,
        "feasible": feasible,
        **({} if relaxed is None else {"relaxed_loss": relaxed}),
        **_named(config, losses.size, violation=violations),
    }
    return row, score


def _relaxed_loss(config: Any, losses: np.ndarray, violations: np.ndarray, state: TrainState) -> float | None:
    """f_L + beta/2 |[c]_+|^2: the least that the relaxed problem can give these losses; None without resilience."""
    if config.constraints.resilience is None:
        return None
    slacks = np.maximum(violations, 0.0) / (1.0 if state.sizes is None else np.asarray(state.sizes))
    return float(losses[-1] + 0.5 * config.constraints.resilience * np.sum(slacks**2))


def _named(config: Any, count: int, **figures: Any) -> dict[str, float | None]:
    """Figures of the constraints on so many layers, 0 among them, by name and layer."""
    names = constraint_names(count - 1, reference=config.constraints.reference)
    found = named_figures(names, **figures)
    return dict(zip(found, numbers(map(float, found.values())), strict=True))
