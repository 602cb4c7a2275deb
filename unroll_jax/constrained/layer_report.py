"""Layers under constraints: a report on held-out data, a share that can be met, and
warnings about a run."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import FINITE, POSITIVE, at_least, checked, require
from unroll_jax.arrays import check_shape
from unroll_jax.constrained.layer_bounds import (
    LEAST_BOUND,
    LayerConstraints,
    constraint_names,
    relative_excess,
)
from unroll_jax.constrained.report import ConstraintReport, constraint_report
from unroll_jax.constrained.samples import Reduction
from unroll_jax.constrained.trees import as_losses, as_numbers, as_samples

__all__ = ["descent_warnings", "feasibility_report", "suggest_alpha"]

Numbers = Sequence[float] | np.ndarray | Array
# A start at the loss of chance wanders by some percent; a readout that is given up on
# rises by factors.
RISE = 1.2
# a mean of multipliers above it is too large: the objective has the weight 1
MOST = 1.0


@checked(tolerance=at_least(0.0))
def feasibility_report(
    sample_losses: Float[Array | np.ndarray, "samples layers_and_one"],
    multipliers: Float[Array | np.ndarray, "constraints"],
    constraints: LayerConstraints,
    gradient: PyTree = None,
    *,
    tolerance: float = 0.05,
    reduction: Reduction | None = None,
    least_price: float = 1e-4,
    gradient_tolerance: float = 1e-2,
    units: Any = "",
) -> ConstraintReport:
    """Judges layers by their losses on held-out data, in units of the losses.

    The constraints bind the mean losses, or with a ``reduction`` such as `tail_mean`
    the samples' reduced violations.

    Args:
      sample_losses: loss of every sample at every layer, (N, L + 1), not traced.
      multipliers: lambda at the end of training; prices are per unit of the loss.
      constraints: of `descent_constraints` or `level_constraints`.
      gradient: as in `constraint_report`.
      tolerance: relative excess over a bound that still counts as met, unitless.
      reduction: of the samples' violations, if training had one; bounds remain on the
        means.
      least_price, gradient_tolerance, units: as in `constraint_report`.

    Returns:
      A `ConstraintReport`, a group per constraint. A ValueError names unfit shapes, a
      negative multiplier or tolerance.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> losses = jnp.array([[4.0, 2.0, 1.0], [2.0, 2.0, 2.0]])
      >>> report = feasibility_report(
      ...     losses, jnp.zeros(2), unroll_jax.descent_constraints(0.3)
      ... )
      >>> (
      ...     report.feasible,
      ...     [(group.name, group.value, group.status) for group in report.groups],
      ... )
      (False, [('layer 1', 2.0, 'idle'), ('layer 2', 1.5, 'violated')])
    """
    losses = as_samples(sample_losses)
    means = jnp.mean(losses, axis=0)
    violations, bounds = constraints(means), constraints.bounds(means)
    prices = as_losses("multipliers", multipliers)
    check_shape("multipliers", prices, violations.shape, ", one a constraint")
    if reduction is not None:
        violations = reduction(constraints(losses))
    size = jnp.maximum(jnp.abs(bounds), LEAST_BOUND)
    if constraints.form != "difference":
        violations, prices = (
            size * relative_excess(violations, bounds, form=constraints.form),
            prices / size,
        )
    names = constraint_names(means.size - 1, reference=bounds.size == means.size)[
        -bounds.size :
    ]
    by_name = lambda values: OrderedDict(zip(names, values, strict=True))
    # not where a loss that is NaN or infinite sets the bound
    known = jnp.isfinite(size)
    violations, allowed = (
        jnp.where(known, violations, jnp.nan),
        tolerance * jnp.where(known, size, 0.0),
    )
    options = {
        "least_price": least_price,
        "gradient_tolerance": gradient_tolerance,
        "units": units,
    }
    stated = {"bounds": by_name(bounds), "tolerance": by_name(allowed)}
    return constraint_report(
        by_name(violations), by_name(prices), gradient, **stated, **options
    )


@checked(reference=POSITIVE, slack=at_least(0.0))
def suggest_alpha(
    plain_layer_losses: Numbers, *, reference: float | None = None, slack: float = 0.1
) -> float:
    r"""The largest alpha whose cumulative bounds end where plain training does, give or
    take a slack.

    .. math:: f_{ref} (1 - \alpha)^L = (1 + s) f_L \quad \Rightarrow \quad
        \alpha = 1 - \Bigl( \frac{(1 + s) f_L}{f_{ref}} \Bigr)^{1/L} .

    Args:
      plain_layer_losses: f_0..f_L at the end of a plain run, best on held-out data.
      reference: f_ref of the constraints, such as the loss of chance, log(classes);
        None takes f_0 of the plain run.
      slack: s >= 0, share by which the last layer may miss its plain loss.

    Returns:
      alpha, in (0, 1), for
      ``descent_constraints(alpha, reference=reference, bounds="cumulative")``. A
      ValueError says if losses are not positive, or the plain run does not end below
      the reference.

    Source: feasibility of the last cumulative bound, see `descent_constraints`.

    Example:
      >>> round(suggest_alpha([8.0, 9.0, 7.0, 1.0], slack=0.0), 6)
      0.5
    """
    losses = as_numbers(
        "plain_layer_losses", np.asarray(plain_layer_losses), POSITIVE, each="layer"
    )
    require(
        losses.ndim == 1 and losses.size >= 2,
        "plain_layer_losses",
        "hold f_0..f_L with L >= 1",
        losses,
    )
    first = float(losses[0]) if reference is None else float(reference)
    share = (1.0 + slack) * float(losses[-1]) / first
    below = f"end below the reference, {first:g}, by more than the slack"
    require(
        share < 1.0,
        "plain_layer_losses",
        below,
        f"f_L = {losses[-1]:g}",
        "take a larger reference",
    )
    return 1.0 - share ** (1.0 / (losses.size - 1))


def descent_warnings(
    layer_losses: Numbers,
    multipliers: Numbers,
    *,
    constraints: Any = None,
    start_losses: Numbers | None = None,
    plain_losses: Numbers | None = None,
) -> list[str]:
    """Warnings that layer constraints hurt training, each with a way out; empty if
    none.

    Args:
      layer_losses: f_0..f_L, at the end; all losses are finite, and alike in number.
      multipliers: lambda at the end, one per constraint; before bounds are met, far
        larger ones may be healthy.
      constraints: of the run, from `descent_constraints` or `level_constraints`; None
        leaves their bounds out.
      start_losses: f_0..f_L at the start, to see if f_0 rose, also above f_0 of the
        plain run if there is one.
      plain_losses: f_0..f_L at the end of a plain run, to see exceeded bounds that its
        last layer exceeds too.

    Source: failures seen in runs, see the guide to constraints.

    Example:
      >>> import unroll_jax
      >>> constraints = unroll_jax.descent_constraints(
      ...     0.5, reference=4.0, bounds="cumulative"
      ... )
      >>> lines = descent_warnings(
      ...     [9.0, 2.0, 1.0],
      ...     [6.0, 0.0, 3.0],
      ...     constraints=constraints,
      ...     start_losses=[4.0] * 3,
      ... )
      >>> print("\\n".join(lines))
      Multipliers end at 3 in the mean, above 1: constraints outweigh the objective; lower alpha or raise the floor.
      f_0 rose from 4 to 9: a layer may gain from a larger loss; pass proxy=True, cumulative bounds, or a reference.
    """
    now, prices, lines = (
        _finite("layer_losses", layer_losses),
        _finite("multipliers", multipliers),
        [],
    )
    start_losses = (
        None if start_losses is None else _finite("start_losses", start_losses, now)
    )
    plain_losses = (
        None if plain_losses is None else _finite("plain_losses", plain_losses, now)
    )
    starts = [
        float(losses[0])
        for losses in (start_losses, plain_losses)
        if losses is not None
    ]
    if (mean := float(np.mean(prices))) > MOST:
        lines.append(
            f"Multipliers end at {mean:.3g} in the mean, above {MOST:g}: constraints"
            " outweigh the objective; lower alpha or raise the floor."
        )
    if start_losses is not None and now[0] > RISE * (before := max(starts)):
        lines.append(
            f"f_0 rose from {before:.3g} to {now[0]:.3g}: a layer may gain from a"
            " larger loss; pass proxy=True, cumulative bounds, or a reference."
        )
    if constraints is not None and plain_losses is not None:
        bounds, reached = (
            np.asarray(constraints.bounds(jnp.asarray(now))),
            float(plain_losses[-1]),
        )
        bounded = now[now.size - bounds.size :]
        low = int(np.argmin(np.where(bounded > bounds, bounds, np.inf)))
        if bounded[low] > bounds[low] and bounds[low] < reached * (1.0 - 1e-3):
            layer = now.size - bounds.size + low
            lines.append(
                f"The bound {bounds[low]:.3g} of layer {layer} is not met and lies"
                f" below {reached:.3g}, where plain training ends: it may be out of"
                " reach; lower alpha (suggest_alpha) or pass that loss as the floor."
            )
    return lines


def _finite(name: str, values: Any, like: np.ndarray | None = None) -> np.ndarray:
    """Finite numbers, as many as ``like`` has."""
    numbers = np.atleast_1d(as_numbers(name, np.asarray(values), FINITE, each="layer"))
    require(
        like is None or like.shape == numbers.shape,
        name,
        "have as many entries as layer_losses",
        numbers.size,
    )
    return numbers
