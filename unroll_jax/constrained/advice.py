"""Advice on constraints of layers: an alpha that can be met, and warnings."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array

from unroll_jax.arguments import FINITE, POSITIVE, at_least, checked, require
from unroll_jax.constrained.trees import as_numbers

__all__ = ["descent_warnings", "suggest_alpha"]

Numbers = Sequence[float] | np.ndarray | Array
# f_0 at the loss of chance varies by some percent. Where a layer gains from a larger
# loss, it rises by factors.
RISE = 1.2
# a mean of multipliers above it is too large: the objective has the weight 1
MOST = 1.0


@checked(reference=POSITIVE, slack=at_least(0.0))
def suggest_alpha(
    plain_layer_losses: Numbers, *, reference: float | None = None, slack: float = 0.1
) -> float:
    r"""Returns the alpha whose last cumulative bound is what plain training reaches.

    .. math:: f_{ref} (1 - \alpha)^L = (1 + s) f_L \quad \Rightarrow \quad
        \alpha = 1 - \Bigl( \frac{(1 + s) f_L}{f_{ref}} \Bigr)^{1/L} .

    Args:
      plain_layer_losses: f_0..f_L at the end of a plain run, best on held-out data.
      reference: f_ref of the constraints, such as the loss of chance, log(classes).
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
    bounds: Numbers | None = None,
    start_losses: Numbers | None = None,
    plain_losses: Numbers | None = None,
) -> list[str]:
    """Returns warnings that layer constraints hurt training, each with a way out.

    Args:
      layer_losses: f_0..f_L, at the end. All losses are finite, and alike in number.
      multipliers: lambda at the end, one per constraint, the last layer's at the end.
        That one bounds the objective itself and may be large. Before bounds are met,
        far larger ones may be healthy.
      bounds: of the last of the layer losses, in their units. None leaves them out.
      start_losses: f_0..f_L at the start, to see if f_0 rose, also above f_0 of the
        plain run if there is one.
      plain_losses: f_0..f_L at the end of a plain run, to see exceeded bounds that its
        last layer exceeds too.

    Source: failures seen in runs, see the guide to constraints.

    Example:
      >>> descent_warnings([9.0, 2.0], [0.0], start_losses=[4.0, 4.0])[0][:20]
      'f_0 rose from 4 to 9'
    """
    now = _as_finite("layer_losses", layer_losses)
    prices = _as_finite("multipliers", multipliers)[:-1]
    start = (
        None if start_losses is None else _as_finite("start_losses", start_losses, now)
    )
    plain = (
        None if plain_losses is None else _as_finite("plain_losses", plain_losses, now)
    )
    lines = []

    if prices.size and np.mean(prices) > MOST:
        lines.append(
            f"Multipliers of layers before the last end at {np.mean(prices):.3g} in the"
            f" mean, above {MOST:g}: constraints outweigh the objective; lower alpha or"
            " raise the floor."
        )
    if start is not None:
        before = start[0] if plain is None else max(start[0], plain[0])
        if now[0] > RISE * before:
            lines.append(
                f"f_0 rose from {before:.3g} to {now[0]:.3g}: a layer may gain from a"
                " larger loss; pass proxy=True, cumulative bounds, or a reference."
            )
    if bounds is not None and plain is not None:
        lines += _out_of_reach(now, _as_finite("bounds", bounds), float(plain[-1]))
    return lines


def _out_of_reach(now: np.ndarray, bounds: np.ndarray, reached: float) -> list[str]:
    """Returns a line on the lowest unmet bound, if plain training misses it, too."""
    bounded = now[now.size - bounds.size :]
    lowest = int(np.argmin(np.where(bounded > bounds, bounds, np.inf)))
    bound = bounds[lowest]
    if not (bounded[lowest] > bound and bound < reached * (1.0 - 1e-3)):
        return []
    layer = now.size - bounds.size + lowest
    return [
        f"The bound {bound:.3g} of layer {layer} is not met and lies below"
        f" {reached:.3g}, where plain training ends: it may be out of reach; lower"
        " alpha (suggest_alpha) or pass that loss as the floor."
    ]


def _as_finite(
    name: str, values: Numbers, like: np.ndarray | None = None
) -> np.ndarray:
    """Finite numbers, as many as ``like`` has."""
    numbers = np.atleast_1d(as_numbers(name, np.asarray(values), FINITE, each="layer"))
    require(
        like is None or like.shape == numbers.shape,
        name,
        "have as many entries as layer_losses",
        numbers.size,
    )
    return numbers
