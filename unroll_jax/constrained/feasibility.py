"""Feasibility of a trained model: tests that its layers descend, from per-sample losses on held-out data."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import at_least, checked, require
from unroll_jax.constrained.constraints import Constraints, optimal_slacks
from unroll_jax.constrained.forms import constraint_bounds, relative_excess
from unroll_jax.constrained.losses import as_losses, as_multipliers, check_samples
from unroll_jax.constrained.samples import Reduction
from unroll_jax.summaries import plot_layers, summary

__all__ = ["FeasibilityReport", "feasibility_report"]


class FeasibilityReport(NamedTuple):
    """Constraint by constraint and layer by layer, over N samples.

    Attributes:
      layer_losses: (L + 1,) mean losses f_0..f_L.
      violations: (C,) mean violations c; positive is violated.
      bounds: (C,) upper bounds of the constrained losses.
      satisfied: (C,) whether the violation is at most ``tolerance`` times the bound.
      feasible: scalar, whether every constraint is satisfied.
      descending: (L,) share of samples with f_l < f_{l-1}.
      ratios: (L,) mean of f_l / f_{l-1} over the samples with f_{l-1} > 0; NaN if there are none.
      multipliers: (C,) lambda.
      slacks: (C,) lambda / beta under resilience, else 0.
      complementary_slackness: (C,) lambda (c - s), 0 at a saddle point.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> losses = jnp.array([[4.0, 2.0], [2.0, 2.0]])  # two samples, one layer
      >>> report = feasibility_report(losses, jnp.ones(1), unroll_jax.descent_constraints(0.5))
      >>> report.bounds.tolist(), report.violations.tolist(), report.descending.tolist()
      ([1.5], [0.5], [0.5])
    """

    layer_losses: Float[Array, "layers_and_one"]
    violations: Float[Array, "constraints"]
    bounds: Float[Array, "constraints"]
    satisfied: Bool[Array, "constraints"]
    feasible: Bool[Array, ""]
    descending: Float[Array, "layers"]
    ratios: Float[Array, "layers"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"]
    complementary_slackness: Float[Array, "constraints"]

    def __repr__(self) -> str:
        return summary(self, lambda: _lines(self))

    def plot(self, axes: Any = None) -> Any:
        """Draws the mean loss of every layer and the bounds of those that have one; returns the matplotlib axes."""
        axes = plot_layers(self.layer_losses, label="mean loss", axes=axes)
        first = len(self.layer_losses) - len(self.bounds)
        axes.plot(range(first, len(self.layer_losses)), self.bounds, "_", color="C3", markersize=18, label="bound")
        axes.legend()
        return axes


@checked(tolerance=at_least(0.0))
def feasibility_report(
    sample_losses: Float[Array, "samples layers_and_one"],
    multipliers: Float[Array, "constraints"],
    constraints: Constraints,
    *,
    tolerance: float = 0.05,
    resilience: float | None = None,
    reduction: Reduction | None = None,
    layer_axis: int = -1,
    form: str | None = None,
) -> FeasibilityReport:
    """Checks descent constraints on held-out data.

    The constraints bind the mean losses, as in training; shares and ratios are over single samples, for which training
    promises nothing. With a ``reduction``, such as `tail_mean`, they bind what that makes of the samples' violations.

    Args:
      sample_losses: loss of every sample at every layer, (N, L + 1); or (L + 1, N), as a scan over layers stacks them,
        with ``layer_axis=0``.
      multipliers: lambda at the end of training.
      constraints: ``layer_losses -> violations``.
      tolerance: relative excess over a bound that still counts as satisfied, unitless.
      resilience: beta of the training, for the slacks.
      reduction: of the samples' violations, if training had one; bounds remain those of the means.
      layer_axis: the axis of ``sample_losses`` that runs over layers, -1 or 0.
      form: of the constraints, as in `descent_constraints`; None for the ``form`` of the constraints, or "difference".

    Returns:
      A `FeasibilityReport`.

    Raises:
      ValueError: if sample_losses is not (N, L + 1) with N >= 1, there is not one multiplier for each constraint,
        tolerance is negative, or the form is unknown.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> losses = jnp.array([[4.0, 2.0, 1.0], [2.0, 2.0, 2.0]])
      >>> report = feasibility_report(losses, jnp.zeros(2), unroll_jax.descent_constraints(0.3))
      >>> report.layer_losses.tolist(), report.satisfied.tolist(), bool(report.feasible)
      ([3.0, 2.0, 1.5], [True, False], False)
    """
    losses = as_losses("sample_losses", sample_losses)
    form = str(getattr(constraints, "form", "difference")) if form is None else form
    require(layer_axis in (-1, 0), "layer_axis", "be -1 or 0", layer_axis)
    if layer_axis == 0 and losses.ndim == 2:
        losses = losses.T
    check_samples(losses)
    means = jnp.mean(losses, axis=0)
    violations = constraints(means)
    multipliers = as_multipliers(multipliers, violations.shape)
    bounds = constraint_bounds(means[means.shape[0] - violations.shape[0] :], violations, form=form)
    if reduction is not None:
        violations = reduction(constraints(losses))
    satisfied = relative_excess(violations, bounds, form=form) <= tolerance
    slacks = jnp.zeros_like(violations) if resilience is None else optimal_slacks(multipliers, resilience)
    return FeasibilityReport(
        layer_losses=means,
        violations=violations,
        bounds=bounds,
        satisfied=satisfied,
        feasible=jnp.all(satisfied),
        descending=jnp.mean(losses[:, 1:] < losses[:, :-1], axis=0, dtype=losses.dtype),
        ratios=_mean_ratios(losses),
        multipliers=multipliers,
        slacks=slacks,
        complementary_slackness=multipliers * (violations - slacks),
    )


class RatioHistogram(NamedTuple):
    """Distribution of f_l / f_{l-1} over samples, layer by layer."""

    edges: np.ndarray  # of the bins; the last one is open
    counts: np.ndarray  # (L, bins)
    share_descending: float  # of all steps
    mean: float | None  # of all ratios; None without one


def ratio_histogram(sample_losses: Float[np.ndarray, "samples layers_and_one"]) -> RatioHistogram:
    """Counts the ratios of losses of single samples, for which training promises nothing, in bins from 0 to 2."""
    before, after = sample_losses[:, :-1], sample_losses[:, 1:]
    edges = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)
    ratios = np.divide(after, before, out=np.full_like(after, np.nan), where=before > 0.0)
    counts = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in ratios.T])
    known = ratios[np.isfinite(ratios)]
    return RatioHistogram(edges, counts, float(np.mean(after < before)), float(np.mean(known)) if known.size else None)


def _lines(report: FeasibilityReport) -> list[str]:
    first = len(report.layer_losses) - len(report.bounds)
    lines = [f"feasible: {bool(report.feasible)}", "layer  loss      bound     multiplier  descend"]
    for layer, loss in enumerate(np.asarray(report.layer_losses)):
        row = f"{layer:>5}  {loss:<8.4g}"
        if layer >= first:
            place = layer - first
            mark = "" if report.satisfied[place] else "  violated"
            row += f"  {report.bounds[place]:<8.4g}  {report.multipliers[place]:<10.4g}"
        else:
            mark, row = "", row + " " * 22
        lines.append(f"{row}  {report.descending[layer - 1]:.0%}{mark}" if layer else row.rstrip() + mark)
    return lines


def _mean_ratios(losses: Float[Array, "samples layers_and_one"]) -> Float[Array, "layers"]:
    positive = losses[:, :-1] > 0.0
    ratios = losses[:, 1:] / jnp.where(positive, losses[:, :-1], 1.0)
    return jnp.sum(ratios, axis=0, where=positive) / jnp.sum(positive, axis=0)
