"""Advice on constraints of layers: a share that can be met, and warnings about a run."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unroll_jax.arguments import POSITIVE, at_least, checked, require
from unroll_jax.constrained.losses import as_numbers

__all__ = ["descent_warnings", "suggest_alpha"]

Numbers = Sequence[float] | np.ndarray | Array
# A start at the loss of chance wanders by some percent; a readout that is given up on rises by factors.
RISE = 1.2


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
      alpha, in (0, 1), for ``descent_constraints(alpha, reference=reference, bounds="cumulative")``.

    Raises:
      ValueError: if losses are not positive, or the plain run does not end below the reference.

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


@checked(most=POSITIVE)
def descent_warnings(
    layer_losses: Numbers,
    multipliers: Numbers,
    *,
    constraints: Any = None,
    start_losses: Numbers | None = None,
    plain_losses: Numbers | None = None,
    most: float = 1.0,
) -> list[str]:
    """Signs that constraints of layers do harm, one sentence each; none in a healthy run.

    Args:
      layer_losses: f_0..f_L, at the end.
      multipliers: lambda at the end, one for each constraint. On the way, while bounds are not met yet, they may be far
        larger in runs that end well.
      constraints: those of the run, from `descent_constraints` or `level_constraints`; None leaves their bounds out.
      start_losses: f_0..f_L at the start, to see whether f_0 rose, beyond that of the plain run if that is given.
      plain_losses: f_0..f_L at the end of a plain run, to see bounds that are exceeded and that plain training does not
        reach at its last layer either.
      most: size above which the mean of the multipliers is too large; the objective has the weight 1.

    Returns:
      Sentences, each with a way out.

    Raises:
      ValueError: if most is not positive.

    Source: failures seen in runs, see the guide to constraints.

    Example:
      >>> import unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.5, reference=4.0, bounds="cumulative")
      >>> lines = descent_warnings([9.0, 2.0, 1.0], [6.0, 0.0, 3.0], constraints=constraints, start_losses=[4.0] * 3)
      >>> print("\\n".join(lines))
      Multipliers end at 3 in the mean, above 1: constraints outweigh the objective; lower alpha or raise the floor.
      f_0 rose from 4 to 9: a layer may gain from a larger loss; pass proxy=True, cumulative bounds, or a reference.
    """
    now, lines = np.asarray(layer_losses, float), []
    starts = [float(np.asarray(losses)[0]) for losses in (start_losses, plain_losses) if losses is not None]
    if (mean := float(np.mean(np.asarray(multipliers, float)))) > most:
        lines.append(
            f"Multipliers end at {mean:.3g} in the mean, above {most:g}: constraints outweigh the objective; "
            "lower alpha or raise the floor."
        )
    if start_losses is not None and now[0] > RISE * (before := max(starts)):
        lines.append(
            f"f_0 rose from {before:.3g} to {now[0]:.3g}: a layer may gain from a larger loss; "
            "pass proxy=True, cumulative bounds, or a reference."
        )
    if constraints is not None and plain_losses is not None:
        bounds, reached = np.asarray(constraints.bounds(jnp.asarray(now))), float(np.asarray(plain_losses)[-1])
        bounded = now[now.size - bounds.size :]
        low = int(np.argmin(np.where(bounded > bounds, bounds, np.inf)))
        if bounded[low] > bounds[low] and bounds[low] < reached * (1.0 - 1e-3):
            layer = now.size - bounds.size + low
            lines.append(
                f"The bound {bounds[low]:.3g} of layer {layer} is not met and lies below {reached:.3g}, where plain "
                "training ends: it may be out of reach; lower alpha (suggest_alpha) or pass that loss as the floor."
            )
    return lines
