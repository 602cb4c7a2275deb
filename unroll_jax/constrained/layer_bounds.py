"""Constraints that bound the loss of every layer: stepwise, cumulatively, or at
levels."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

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
from unroll_jax.constrained.trees import as_losses, as_numbers, check_known, nan_unless

__all__ = [
    "BOUNDS",
    "FORMS",
    "Constraints",
    "LayerConstraints",
    "constraint_names",
    "descent_constraints",
    "level_constraints",
    "relative_excess",
]

#: Violations of constraints on layer losses: losses (..., L + 1) to violations (..., C); positive is violated.
Constraints = Callable[
    [Float[Array, "*batch layers_and_one"]], Float[Array, "*batch constraints"]
]

#: Bounds of `descent_constraints`: shares of the loss of the layer before, or of the reference.
BOUNDS = ("stepwise", "cumulative")

Losses = Float[Array, "*batch layers_and_one"]
Violations = Float[Array, "*batch constraints"]

LEAST_BOUND = 1e-9  # size of a bound of 0


def _ratio(losses: Violations, bounds: Violations) -> Violations:
    return _if_binding(bounds, losses, losses / _above_zero(bounds) - 1.0)


def _log_ratio(losses: Violations, bounds: Violations) -> Violations:
    return _if_binding(
        bounds, losses, jnp.log(_above_zero(losses)) - jnp.log(_above_zero(bounds))
    )


def _if_binding(
    bounds: Violations, losses: Violations, values: Violations
) -> Violations:
    """0 under a bound of 0, which leaves no share to remove; NaN for losses and
    bounds below 0, and for NaN."""
    values = jnp.where(bounds <= _least(bounds), 0.0 * losses, values)
    return nan_unless((losses >= 0.0) & (bounds >= 0.0), values)


def _above_zero(losses: Violations) -> Violations:
    return jnp.maximum(losses, _least(losses))


def _least(losses: Violations) -> float:
    # The fourth root of the smallest number, 3e-10 in float32: no gradient of a
    # quotient overflows.
    return float(jnp.finfo(losses.dtype).tiny) ** 0.25


#: Forms of `descent_constraints` by name: how a loss is compared with its bound.
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "difference": lambda losses, bounds: losses - bounds,
    "ratio": _ratio,
    "log_ratio": _log_ratio,
}


def relative_excess(violations: Any, bounds: Any, *, form: str) -> Array:
    """The share of its bound by which each constraint is exceeded, at least -1. A
    bound may be 0."""
    violations, bounds = jnp.asarray(violations), jnp.asarray(bounds)
    require(
        violations.shape == bounds.shape,
        "bounds",
        f"have shape {violations.shape}",
        bounds.shape,
    )
    if form == "difference":
        return jnp.maximum(violations / jnp.maximum(jnp.abs(bounds), LEAST_BOUND), -1.0)
    return violations if form == "ratio" else jnp.expm1(violations)


@dataclasses.dataclass(frozen=True)
class LayerConstraints:
    """Violations of bounds on the last of the layer losses, as a function of them.

    Attributes:
      bounds: ``layer_losses (..., L + 1) -> bounds (..., C)``, in units of the losses,
        of the last C of them.
      form: "difference", "ratio" or "log_ratio", by which a loss is compared with its
        bound.

    Example:
      >>> import jax.numpy as jnp
      >>> constraints, losses = (
      ...     level_constraints([3.0, 1.0]),
      ...     jnp.array([9.0, 4.5, 0.5]),
      ... )
      >>> constraints.bounds(losses).tolist(), constraints(losses).tolist()
      ([3.0, 1.0], [0.5, -0.5])
    """

    bounds: Callable[[Losses], Violations]
    form: str

    def __call__(self, layer_losses: Losses) -> Violations:
        """Returns the violations; positive entries are violated."""
        losses = as_losses("layer_losses", layer_losses)
        several = losses.ndim >= 1 and losses.shape[-1] >= 2
        require(
            several,
            "layer_losses",
            "hold f_0..f_L with L >= 1",
            f"shape {losses.shape}",
        )
        if self.form != "difference":
            check_known(
                "layer_losses",
                losses,
                lambda loss: ~(loss < 0.0),
                f"at least 0 with form {self.form!r}",
            )
        bounds = self.bounds(losses)
        return FORMS[self.form](
            losses[..., losses.shape[-1] - bounds.shape[-1] :], bounds
        )


@checked(
    reference=POSITIVE, form=one_of(FORMS), bounds=one_of(BOUNDS), floor=at_least(0.0)
)
def descent_constraints(
    alpha: float | Sequence[float] | np.ndarray,
    *,
    reference: float | None = None,
    bounds: str = "stepwise",
    floor: float = 0.0,
    form: str | None = None,
    proxy: bool | None = None,
) -> LayerConstraints:
    r"""Violations of the layerwise descent constraints.

    .. math:: c_l = f_l - (1 - \alpha_l) f_{l-1} \le 0 , \; l = 1..L ; \qquad c_0 = f_0 - f_{ref} \le 0 .

    These are the paper's, ``bounds="stepwise"``. An early layer that does more than
    required tightens the next bound. With a trained readout a layer may be rewarded for
    a *larger* loss, which eases the next constraint. Bounds from the reference only do
    neither. They are the conclusion of Theorem 2. With ``bounds="cumulative"``

    .. math:: f_l \le b_l = \max \Bigl( f_{ref} \prod_{k \le l} (1 - \alpha_k), \; \text{floor} \Bigr) .

    Two forms are shares of the bound, without units. So one rate of the multipliers
    serves losses of any size:

    .. math:: \text{ratio: } c_l = \frac{f_l}{b_l} - 1 , \qquad \text{log\_ratio: } c_l = \log \frac{f_l}{b_l} .

    Mean losses give ratios of means; with `sample_constraints` and ``tail_mean(0.0)``
    all samples count alike. A bound of 0 (under 3e-10 in float32) gives the violation
    0. A known loss below 0 is an error, a traced one NaN.

    Args:
      alpha: the share of the loss every layer must remove, in (0, 1), one or L untraced
        numbers (see `suggest_alpha`).
      reference: f_ref > 0, bound on the loss at the embedded input; None leaves c_0
        out. Cumulative bounds need it.
      bounds: one of `BOUNDS`.
      floor: least bound of layers 1..L, in units of the losses: one that plain training
        reaches at its end.
      form: "difference", "ratio" or "log_ratio"; None: "difference" for stepwise
        bounds, "ratio" for cumulative ones.
      proxy: take f_(l-1) for a constant in gradients. Then no layer is rewarded for a
        larger loss; multipliers still see the true violations. None for True, but False
        for stepwise differences.

    Returns:
      ``violations(layer_losses)``: layer losses f_0..f_L on the last axis, (..., L +
      1), give (..., L), or (..., L + 1) with c_0 first when there is a reference.
      Positive entries are violated.

    Raises:
      ValueError: if an option is out of range, cumulative bounds have no reference, or
        alpha does not fit the layers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, problem (4), Section 4 and Theorem 2. Its
    Tables 1, 2 and 5 print 1 - alpha. Ratios: Hadou, NaderiAlizadeh, Ribeiro, "Robust
    stochastically-descending unrolled networks" (2024). Proxies: Cotter et al.,
    "Two-player games for efficient non-convex constrained optimization" (2019).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> losses = jnp.array([4.0, 2.0, 2.0])
      >>> descent_constraints(0.25, reference=4.0)(losses).tolist()
      [0.0, -1.0, 0.5]
      >>> descent_constraints(0.5, reference=4.0, bounds="cumulative")(losses).tolist()
      [0.0, 0.0, 1.0]
      >>> [
      ...     jax.grad(lambda f: descent_constraints(0.25, proxy=proxy)(f)[1])(
      ...         losses
      ...     ).tolist()
      ...     for proxy in (False, True)
      ... ]
      [[0.0, -0.75, 1.0], [0.0, 0.0, 1.0]]
    """
    schedule = as_numbers("alpha", alpha, in_interval("(0, 1)"), each="layer")
    cumulative = bounds == "cumulative"
    require(
        reference is not None or not cumulative,
        "reference",
        "be a number with bounds='cumulative'",
        reference,
    )
    first = 0.0 if reference is None else float(reference)
    form = ("ratio" if cumulative else "difference") if form is None else form
    proxy = (form != "difference") if proxy is None else proxy

    def allowed(losses: Losses) -> Violations:
        layers = losses.shape[-1] - 1
        fits = schedule.ndim == 0 or schedule.size == layers
        require(
            fits,
            "alpha",
            f"have one entry for each of L={layers} layers",
            schedule.size,
        )
        shares = np.broadcast_to(1.0 - schedule, layers)
        if cumulative:
            before, shares = jnp.full_like(losses[..., 1:], first), np.cumprod(shares)
        else:
            before = (
                jax.lax.stop_gradient(losses[..., :-1]) if proxy else losses[..., :-1]
            )
        descent = jnp.asarray(shares, losses.dtype) * before
        descent = jnp.maximum(descent, floor) if floor > 0.0 else descent
        if reference is None:
            return descent
        return jnp.concatenate(
            [jnp.full_like(losses[..., :1], first), descent], axis=-1
        )

    return LayerConstraints(allowed, form)


@checked(form=one_of(FORMS))
def level_constraints(
    levels: float | Sequence[float] | np.ndarray, *, form: str = "ratio"
) -> LayerConstraints:
    r"""Violations of absolute bounds on layer losses, :math:`f_l / b_l - 1 \le 0`.

    Args:
      levels: b > 0, in units of the losses: a number for layers 1..L, or a sequence of
        one for layer L, of L for layers 1..L, or of L + 1 for f_0 and layers 1..L;
        numbers, not traced values.
      form: "difference", "ratio" or "log_ratio".

    Returns:
      ``violations(layer_losses)``, (..., L + 1) to (..., C). A ValueError names bad
      levels or a wrong number.

    Source: constraints (4) of Porras-Valenzuela, Hadou, Ribeiro with constants on their
    right sides.

    Example:
      >>> import jax.numpy as jnp
      >>> level_constraints([4.0, 2.0, 1.0])(jnp.array([4.0, 3.0, 0.5])).tolist()
      [0.0, 0.5, -0.5]
    """
    numbers = as_numbers("levels", levels, POSITIVE, each="layer")

    def allowed(losses: Losses) -> Violations:
        layers = losses.shape[-1] - 1
        fits = numbers.ndim == 0 or numbers.size in (1, layers, layers + 1)
        require(
            fits,
            "levels",
            f"be 1, {layers} or {layers + 1} numbers, for f_0..f_{layers}",
            numbers.size,
        )
        count = layers if numbers.ndim == 0 else numbers.size
        return jnp.broadcast_to(
            jnp.asarray(numbers, losses.dtype), (*losses.shape[:-1], count)
        )

    return LayerConstraints(allowed, form)


@checked(num_layers=at_least(1))
def constraint_names(
    num_layers: int, *, reference: bool | float | None = None
) -> list[str]:
    """Names of the constraints of `descent_constraints`, in its order.

    Args:
      num_layers: L, at least 1.
      reference: whether c_0 is there; the reference itself will do.

    Example:
      >>> constraint_names(2, reference=4.0), constraint_names(2)
      (['f_0', 'layer 1', 'layer 2'], ['layer 1', 'layer 2'])
    """
    first = [] if reference is None or reference is False else ["f_0"]
    return [*first, *(f"layer {layer}" for layer in range(1, num_layers + 1))]
