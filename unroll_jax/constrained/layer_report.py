"""Layers under constraints: a report on held-out data, a share that can be met, and warnings about a run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import FINITE, POSITIVE, at_least, checked, require
from unroll_jax.arrays import check_shape
from unroll_jax.constrained.lagrangian import optimal_slacks
from unroll_jax.constrained.layer_bounds import LayerConstraints, relative_excess
from unroll_jax.constrained.samples import Reduction
from unroll_jax.constrained.trees import as_losses, as_numbers, as_samples, signed
from unroll_jax.summaries import plot_layers, summary

__all__ = ["FeasibilityReport", "descent_warnings", "feasibility_report", "suggest_alpha"]

Numbers = Sequence[float] | np.ndarray | Array
# A start at the loss of chance wanders by some percent; a readout that is given up on rises by factors.
RISE = 1.2
MOST = 1.0  # a mean of multipliers above it is too large: the objective has the weight 1


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
    constraints: LayerConstraints,
    *,
    tolerance: float = 0.05,
    resilience: float | None = None,
    reduction: Reduction | None = None,
) -> FeasibilityReport:
    """Checks descent constraints on held-out data.

    The constraints bind the mean losses, as in training; shares and ratios are over single samples, for which training
    promises nothing. With a ``reduction``, such as `tail_mean`, they bind what that makes of the samples' violations.

    Args:
      sample_losses: loss of every sample at every layer, (N, L + 1).
      multipliers: lambda at the end of training.
      constraints: of `descent_constraints` or `level_constraints`.
      tolerance: relative excess over a bound that still counts as satisfied, unitless.
      resilience: beta of the training, for the slacks.
      reduction: of the samples' violations, if training had one; bounds remain on the means.

    Returns:
      A `FeasibilityReport`. A ValueError says if shapes do not fit, or a known multiplier or the tolerance is negative.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> losses = jnp.array([[4.0, 2.0, 1.0], [2.0, 2.0, 2.0]])
      >>> report = feasibility_report(losses, jnp.zeros(2), unroll_jax.descent_constraints(0.3))
      >>> report.layer_losses.tolist(), report.satisfied.tolist(), bool(report.feasible)
      ([3.0, 2.0, 1.5], [True, False], False)
    """
    losses = as_samples(sample_losses)
    means = jnp.mean(losses, axis=0)
    violations = constraints(means)
    multipliers = as_losses("multipliers", multipliers)
    check_shape("multipliers", multipliers, violations.shape, ", one a constraint")
    multipliers = signed(multipliers, "at_most")
    bounds = constraints.bounds(means)
    if reduction is not None:
        violations = reduction(constraints(losses))
    satisfied = relative_excess(violations, bounds, form=constraints.form) <= tolerance
    slacks = jnp.zeros_like(violations) if resilience is None else optimal_slacks(multipliers, resilience)
    return FeasibilityReport(
        layer_losses=means,
        violations=violations,
        bounds=bounds,
        satisfied=satisfied,
        feasible=jnp.all(satisfied),
        descending=jnp.mean(_descends(losses), axis=0),
        ratios=_mean_ratios(losses),
        multipliers=multipliers,
        slacks=slacks,
        complementary_slackness=multipliers * (violations - slacks),
    )


@checked(reference=POSITIVE, slack=at_least(0.0))
def suggest_alpha(plain_layer_losses: Numbers, *, reference: float | None = None, slack: float = 0.1) -> float:
    r"""The largest alpha whose cumulative bounds end where plain training does, give or take a slack.

    .. math:: f_{ref} (1 - \alpha)^L = (1 + s) f_L \quad \Rightarrow \quad
        \alpha = 1 - \Bigl( \frac{(1 + s) f_L}{f_{ref}} \Bigr)^{1/L} .

    Args:
      plain_layer_losses: f_0..f_L at the end of a plain run, best on held-out data.
      reference: f_ref of the constraints, such as the loss of chance, log(classes); None takes f_0 of the plain run.
      slack: s >= 0, share by which the last layer may miss its plain loss.

    Returns:
      alpha, in (0, 1), for ``descent_constraints(alpha, reference=reference, bounds="cumulative")``. A ValueError says
      if losses are not positive, or the plain run does not end below the reference.

    Source: feasibility of the last cumulative bound, see `descent_constraints`.

    Example:
      >>> round(suggest_alpha([8.0, 9.0, 7.0, 1.0], slack=0.0), 6)
      0.5
    """
    losses = as_numbers("plain_layer_losses", np.asarray(plain_layer_losses), POSITIVE, each="layer")
    require(losses.ndim == 1 and losses.size >= 2, "plain_layer_losses", "hold f_0..f_L with L >= 1", losses)
    first = float(losses[0]) if reference is None else float(reference)
    share = (1.0 + slack) * float(losses[-1]) / first
    below = f"end below the reference, {first:g}, by more than the slack"
    require(share < 1.0, "plain_layer_losses", below, f"f_L = {losses[-1]:g}", "take a larger reference")
    return 1.0 - share ** (1.0 / (losses.size - 1))


def descent_warnings(
    layer_losses: Numbers,
    multipliers: Numbers,
    *,
    constraints: Any = None,
    start_losses: Numbers | None = None,
    plain_losses: Numbers | None = None,
) -> list[str]:
    """Warnings that layer constraints hurt training, each with a way out; empty if none.

    Args:
      layer_losses: f_0..f_L, at the end; all losses are finite, and alike in number.
      multipliers: lambda at the end, one for each constraint. Before bounds are met, multipliers may be far larger in
        runs that end well.
      constraints: of the run, from `descent_constraints` or `level_constraints`; None leaves their bounds out.
      start_losses: f_0..f_L at the start, to see if f_0 rose, also above f_0 of the plain run if there is one.
      plain_losses: f_0..f_L at the end of a plain run, to see bounds that are exceeded and that plain training does not
        reach at its last layer either.

    Source: failures seen in runs, see the guide to constraints.

    Example:
      >>> import unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.5, reference=4.0, bounds="cumulative")
      >>> lines = descent_warnings([9.0, 2.0, 1.0], [6.0, 0.0, 3.0], constraints=constraints, start_losses=[4.0] * 3)
      >>> print("\\n".join(lines))
      Multipliers end at 3 in the mean, above 1: constraints outweigh the objective; lower alpha or raise the floor.
      f_0 rose from 4 to 9: a layer may gain from a larger loss; pass proxy=True, cumulative bounds, or a reference.
    """
    now, prices, lines = _finite("layer_losses", layer_losses), _finite("multipliers", multipliers), []
    start_losses = None if start_losses is None else _finite("start_losses", start_losses, now)
    plain_losses = None if plain_losses is None else _finite("plain_losses", plain_losses, now)
    starts = [float(losses[0]) for losses in (start_losses, plain_losses) if losses is not None]
    if (mean := float(np.mean(prices))) > MOST:
        lines.append(
            f"Multipliers end at {mean:.3g} in the mean, above {MOST:g}: constraints outweigh the objective; "
            "lower alpha or raise the floor."
        )
    if start_losses is not None and now[0] > RISE * (before := max(starts)):
        lines.append(
            f"f_0 rose from {before:.3g} to {now[0]:.3g}: a layer may gain from a larger loss; "
            "pass proxy=True, cumulative bounds, or a reference."
        )
    if constraints is not None and plain_losses is not None:
        bounds, reached = np.asarray(constraints.bounds(jnp.asarray(now))), float(plain_losses[-1])
        bounded = now[now.size - bounds.size :]
        low = int(np.argmin(np.where(bounded > bounds, bounds, np.inf)))
        if bounded[low] > bounds[low] and bounds[low] < reached * (1.0 - 1e-3):
            layer = now.size - bounds.size + low
            lines.append(
                f"The bound {bounds[low]:.3g} of layer {layer} is not met and lies below {reached:.3g}, where plain "
                "training ends: it may be out of reach; lower alpha (suggest_alpha) or pass that loss as the floor."
            )
    return lines


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


def _descends(losses: Float[Array, "samples layers_and_one"]) -> Float[Array, "samples layers"]:
    """1 where a layer lowers the loss, 0 where it does not, NaN where a loss is NaN."""
    before, after = losses[:, :-1], losses[:, 1:]
    unknown = jnp.isnan(before) | jnp.isnan(after)
    return jnp.where(unknown, jnp.nan, (after < before).astype(losses.dtype))


def _mean_ratios(losses: Float[Array, "samples layers_and_one"]) -> Float[Array, "layers"]:
    positive = ~(losses[:, :-1] <= 0.0)
    ratios = losses[:, 1:] / jnp.where(positive, losses[:, :-1], 1.0)
    return jnp.sum(ratios, axis=0, where=positive) / jnp.sum(positive, axis=0)


def _finite(name: str, values: Any, like: np.ndarray | None = None) -> np.ndarray:
    """Finite numbers, as many as ``like`` has."""
    numbers = np.atleast_1d(as_numbers(name, np.asarray(values), FINITE, each="layer"))
    require(like is None or like.shape == numbers.shape, name, "have as many entries as layer_losses", numbers.size)
    return numbers
