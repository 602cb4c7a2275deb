"""Bounds on the loss of every layer as constraints: stepwise, cumulative, or levels."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import (
    POSITIVE,
    at_least,
    checked,
    in_interval,
    one_of,
    require,
)
from unroll_jax.constrained import trees
from unroll_jax.constrained.constraint import Constraint, SharedColumns

__all__ = ["BOUNDS", "descent_constraints", "level_constraints"]

#: Bounds of `descent_constraints`: shares of the layer before, or of the reference.
BOUNDS = ("stepwise", "cumulative")
# a loss minus its bound, that over the bound, or the logarithm of their quotient
FORMS = ("difference", "ratio", "log_ratio")

Numbers = float | Sequence[float] | np.ndarray
Constraints = dict[str, Constraint]
# (..., L + 1) -> (..., C)
Violations = Callable[[Float[Array, "*batch layers_and_one"]], Float[Array, "*batch c"]]


@overload
def descent_constraints(
    alpha: Numbers, *, num_layers: int, **options: Any
) -> Constraints: ...
@overload
def descent_constraints(
    alpha: Numbers, *, num_layers: None = None, **options: Any
) -> Violations: ...


@checked(
    num_layers=at_least(1),
    reference=POSITIVE,
    form=one_of(FORMS),
    bounds=one_of(BOUNDS),
    floor=at_least(0.0),
)
def descent_constraints(
    alpha: Numbers,
    *,
    num_layers: int | None = None,
    reference: float | None = None,
    bounds: str = "stepwise",
    floor: float = 0.0,
    margin: Numbers = 0.0,
    form: str | None = None,
    proxy: bool | None = None,
    of_samples: bool = False,
) -> Constraints | Violations:
    r"""Constraints by which every layer lowers the loss.

    .. math:: f_l \le (1 - \alpha_l) f_{l-1} , \; l = 1..L ; \qquad f_0 \le f_{ref} .

    These are the paper's, ``bounds="stepwise"``. An early layer that does more than
    required tightens the next bound. With a trained readout a layer may be rewarded for
    a *larger* loss, which eases the next constraint. Bounds from the reference only do
    neither. They are the conclusion of Theorem 2. With ``bounds="cumulative"``

    .. math::
        f_l \le b_l = \max \Bigl( f_{ref} \prod_{k \le l} (1 - \alpha_k), \;
        \text{floor} \Bigr) .

    A violation is the difference :math:`f_l - b_l`, or without units, so that one rate
    of the multipliers serves losses of any size:

    .. math::
        \text{ratio: } \frac{f_l - b_l}{b_l} , \qquad
        \text{log\_ratio: } \log \frac{f_l}{b_l} .

    A bound of 0 (under 3e-10 in float32) has the violation 0 in these two. A known loss
    below 0 is an error there, a traced one NaN.

    Args:
      alpha: the share of the loss every layer must remove, in (0, 1), one or L untraced
        numbers (see `suggest_alpha`).
      num_layers: L. None for a function of the losses of any number of layers.
      reference: f_ref > 0, bound on the loss at the embedded input. None leaves it out.
        Cumulative bounds need it.
      bounds: one of `BOUNDS`.
      floor: least bound of layers 1..L, in units of the losses: one that plain training
        reaches at its end.
      margin: share by which the bounds of layers 1..L are lowered, in [0, 1), one or L
        numbers. Train with a margin, and the bounds without it hold on more new data.
      form: "difference", "ratio" or "log_ratio". None: "difference" for stepwise
        bounds, "ratio" for cumulative ones.
      proxy: take f_(l-1) for a constant in gradients. Then no layer is rewarded for a
        larger loss. Multipliers still see the true violations. None for True, but False
        for stepwise differences.
      of_samples: compare each sample's losses, and bind the mean: all samples count
        alike. None of it changes differences.

    Returns:
      `Constraint` by name, "f_0" and "layer 1" to "layer L". Their outputs are losses
      of samples, (samples, L + 1), or mean losses, (L + 1,), as of one sample. They
      read no batch. Without ``num_layers`` the function ``layer_losses -> violations``
      of these constraints: (..., L + 1) to (..., L), or (..., L + 1) with a reference.

    Raises:
      ValueError: if an option is out of range, cumulative bounds have no reference, or
        alpha does not fit the layers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, problem (4), Section 4 and Theorem 2. Its
    Tables 1, 2 and 5 print 1 - alpha. Ratios: Hadou, NaderiAlizadeh, Ribeiro, "Robust
    stochastically-descending unrolled networks" (2024). Proxies: Cotter et al.,
    "Two-player games for efficient non-convex constrained optimization" (2019).

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.constrained import batch_violations
      >>> constraints = descent_constraints(0.25, num_layers=2, reference=4.0)
      >>> losses = jnp.array([4.0, 2.0, 2.0])
      >>> smooth, _ = batch_violations(constraints, losses, None)
      >>> {name: float(violation) for name, violation in smooth.items()}
      {'f_0': 0.0, 'layer 1': -1.0, 'layer 2': 0.5}
      >>> descent_constraints(0.25, reference=4.0)(losses).tolist()
      [0.0, -1.0, 0.5]
      >>> descent_constraints(0.5, reference=4.0, bounds="cumulative")(losses).tolist()
      [0.0, 0.0, 1.0]
    """
    shares = trees.as_numbers("alpha", alpha, in_interval("(0, 1)"), each="layer")
    margins = trees.as_numbers("margin", margin, in_interval("[0, 1)"), each="layer")
    cumulative = bounds == "cumulative"
    given = "be a number with bounds='cumulative'"
    require(reference is not None or not cumulative, "reference", given, reference)
    form = form or ("ratio" if cumulative else "difference")
    proxy = (form != "difference") if proxy is None else proxy

    def make(depth: int) -> _Limits:
        kept = 1.0 - _for_each("alpha", shares, depth)
        lowered = 1.0 - _for_each("margin", margins, depth)
        if cumulative:
            levels = np.maximum((reference or 0.0) * np.cumprod(kept), floor) * lowered
            limits = _Limits(np.zeros(depth), levels)
        else:
            least = floor * lowered if floor > 0.0 else np.full(depth, -np.inf)
            limits = _Limits(kept * lowered, least, proxy)
        if reference is None:
            return limits
        return _Limits(
            np.append(0.0, limits.shares), np.append(reference, limits.least), proxy
        )

    if num_layers is None:
        return _violations(make, form)
    return _constraints(make(num_layers), num_layers, form, of_samples=of_samples)


@overload
def level_constraints(
    levels: Numbers, *, num_layers: int, **options: Any
) -> Constraints: ...
@overload
def level_constraints(
    levels: Numbers, *, num_layers: None = None, **options: Any
) -> Violations: ...


@checked(num_layers=at_least(1), form=one_of(FORMS))
def level_constraints(
    levels: Numbers, *, num_layers: int | None = None, form: str = "ratio"
) -> Constraints | Violations:
    r"""Constraints that bound layer losses by numbers, :math:`f_l \le b_l`.

    Args:
      levels: b > 0, in units of the losses: a number for layers 1..L, or a sequence of
        one for layer L, of L for layers 1..L, or of L + 1 for f_0 and layers 1..L.
        Numbers, not traced values.
      num_layers, form: as in `descent_constraints`.

    Returns:
      As `descent_constraints`. A ValueError names bad levels or a wrong number.

    Source: constraints (4) of Porras-Valenzuela, Hadou, Ribeiro with constants on their
    right sides.

    Example:
      >>> import jax.numpy as jnp
      >>> level_constraints([4.0, 2.0, 1.0])(jnp.array([4.0, 3.0, 0.5])).tolist()
      [0.0, 0.5, -0.5]
      >>> list(level_constraints([1.0], num_layers=3))
      ['layer 3']
    """
    numbers = trees.as_numbers("levels", levels, POSITIVE, each="layer")

    def make(depth: int) -> _Limits:
        fits = numbers.ndim == 0 or numbers.size in (1, depth, depth + 1)
        wanted = f"be 1, {depth} or {depth + 1} numbers, for f_0..f_{depth}"
        require(fits, "levels", wanted, numbers.size)
        each = np.broadcast_to(numbers, depth) if numbers.ndim == 0 else numbers
        return _Limits(np.zeros(each.size), each)

    if num_layers is None:
        return _violations(make, form)
    return _constraints(make(num_layers), num_layers, form)


class _Limits(NamedTuple):
    """Bounds on the losses of the last layers.

    Attributes:
      shares: (C,), shares of the loss of the layer before, 0 for a number as bound.
      least: (C,), these numbers, or the least bounds, -inf for none.
      proxy: whether the loss of the layer before is a constant in gradients.
    """

    shares: np.ndarray
    least: np.ndarray
    proxy: bool = True

    def of(self, losses: Array) -> Array:
        """Returns the bounds (..., C) at losses (..., L + 1)."""
        shares = self.shares.astype(losses.dtype)
        least = self.least.astype(losses.dtype)
        before = _before(losses)[..., -len(shares) :]
        return _bound(before, shares, least, self.proxy)


def _before(losses: Array) -> Array:
    """The loss before every layer. Nothing is before f_0, whose bound is a number."""
    return jnp.concatenate([losses[..., :1], losses[..., :-1]], axis=-1)


def _bound(before: Array, share: Any, least: Any, proxy: bool) -> Array:
    before = jax.lax.stop_gradient(before) if proxy else before
    raised = share * before
    if np.any(np.greater(least, -np.inf)):
        raised = jnp.maximum(raised, least)
    return jnp.where(share > 0.0, raised, least)


def _constraints(
    limits: _Limits, depth: int, form: str, *, of_samples: bool = False
) -> Constraints:
    """Constraints on the last layers of ``depth``."""
    of_samples = of_samples and form != "difference"
    sums = functools.partial(_sums, limits, depth, form, of_samples)
    first = depth + 1 - len(limits.shares)
    return {
        f"layer {first + index}" if first + index else "f_0": _constraint(
            SharedColumns(sums, index), limits, form, of_samples
        )
        for index in range(len(limits.shares))
    }


def _constraint(
    columns: SharedColumns, limits: _Limits, form: str, of_samples: bool
) -> Constraint:
    share = limits.shares[columns.place].item()
    least = limits.least[columns.place].item()

    def bound(means: dict[str, Array]) -> Array:
        if share:
            return _bound(means["before"], share, least, limits.proxy)
        return jnp.asarray(least, means["loss"].dtype)

    if of_samples:
        at_most = 1.0 if form == "ratio" else 0.0
        return Constraint(columns, lambda means: means["quotient"], at_most)
    if form == "log_ratio":
        return Constraint(
            columns,
            lambda means: _log(means["loss"]),
            lambda means: _log(bound(means)),
            scale=lambda means: jnp.where(_is_zero(bound(means)), jnp.inf, 1.0),
        )
    scale = 1.0 if form == "difference" else lambda means: _scale(bound(means))
    # a number stays one, for the reader of a constraint
    stated: Any = bound if share else least
    return Constraint(columns, lambda means: means["loss"], stated, scale=scale)


def _sums(
    limits: _Limits,
    depth: int,
    form: str,
    of_samples: bool,
    places: Sequence[int],
    outputs: Any,
    batch: Any,
) -> dict[int, dict[str, tuple[Array, int]]]:
    """The columns of the constraints at some places."""
    losses = jnp.atleast_2d(trees.widen("layer_losses", outputs))
    start, end = min(places), max(places) + 1
    last = depth + end - len(limits.shares)
    fits = losses.ndim == 2 and losses.shape[1] > last
    wanted = f"be (samples, L + 1) or (L + 1,) with L of at least {last}"
    require(fits, "layer_losses", wanted, f"shape {losses.shape}")
    limits = limits._replace(
        shares=limits.shares[start:end], least=limits.least[start:end]
    )
    count = end - start
    relative = np.any(limits.shares)
    losses = losses[:, max(last + 1 - count - relative, 0) : last + 1]
    if form != "difference":
        losses = trees.within("layer_losses", losses, trees.NOT_NEGATIVE)
    each = {"loss": losses[:, -count:]}
    if of_samples:
        each = {"quotient": _quotient(each["loss"], limits.of(losses), form)}
    elif relative:
        each["before"] = _before(losses)[:, -count:]
    sums = {name: jnp.unstack(jnp.sum(one, axis=0)) for name, one in each.items()}
    return {
        place: {name: (one[place - start], len(losses)) for name, one in sums.items()}
        for place in places
    }


def _quotient(losses: Array, bounds: Array, form: str) -> Array:
    """Losses over their bounds, or the logarithm of that."""
    zero = _is_zero(bounds)
    # over infinity, a loss that is NaN stays NaN
    if form == "ratio":
        return jnp.where(zero, 1.0, 0.0) + losses / _scale(bounds)
    return (_log(losses) - _log(bounds)) / jnp.where(zero, jnp.inf, 1.0)


def _is_zero(bounds: Array) -> Array:
    # The fourth root of the smallest number, 3e-10 in float32: no gradient of a
    # quotient overflows.
    return bounds <= _least(bounds)


def _scale(bounds: Array) -> Array:
    """The bounds, infinite where they are 0 and leave no share to remove."""
    return jnp.where(_is_zero(bounds), jnp.inf, bounds)


def _log(losses: Array) -> Array:
    return jnp.log(jnp.maximum(losses, _least(losses)))


def _least(losses: Array) -> float:
    return float(jnp.finfo(losses.dtype).tiny) ** 0.25


def _for_each(name: str, numbers: np.ndarray, count: int) -> np.ndarray:
    fits = numbers.ndim == 0 or numbers.size == count
    wanted = f"have one entry for each of L={count} layers"
    require(fits, name, wanted, numbers.size)
    return np.broadcast_to(numbers, count)


def _violations(make: Callable[[int], _Limits], form: str) -> Violations:
    """The violations as a function of the losses of any depth."""

    def violations(layer_losses: Any) -> Array:
        losses = trees.as_losses("layer_losses", layer_losses)
        several = losses.ndim >= 1 and losses.shape[-1] >= 2
        wanted = "hold f_0..f_L with L >= 1"
        require(several, "layer_losses", wanted, f"shape {losses.shape}")
        limits = make(losses.shape[-1] - 1)
        wide = trees.widen("layer_losses", losses)
        if form != "difference":
            wide = trees.within("layer_losses", wide, trees.NOT_NEGATIVE)
        bounds = limits.of(wide)
        of_layers = wide[..., -len(limits.shares) :]
        # infinite where a bound of 0 leaves nothing to remove: NaN stays NaN there
        scale = 1.0 if form == "difference" else _scale(bounds)
        if form == "log_ratio":
            of_layers, bounds = _log(of_layers), _log(bounds)
            scale = jnp.where(jnp.isinf(scale), jnp.inf, 1.0)
        return ((of_layers - bounds) / scale).astype(losses.dtype)

    return violations
