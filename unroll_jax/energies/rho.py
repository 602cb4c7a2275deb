"""Concave functions of half the squared distance of two tokens, from which attention weights come."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["RHOS", "Rho", "log", "resolve_rho", "softmax"]

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]


class Rho(NamedTuple):
    """A concave, nondecreasing function rho on [0, inf) and its slope rho', both elementwise.

    Attributes:
      value: ``z -> rho(z)``.
      slope: ``z -> rho'(z)``, at least 0 (and finite at 0 for ``form="softmax"`` or tokens that coincide); None derives
        it with `jax.grad`.
      log_slope: ``z -> log rho'(z)``. Attention normalises in the log domain, so that with a formula of its own tokens
        far apart do not underflow; None takes the logarithm of the slope.
    """

    value: Elementwise
    slope: Elementwise | None = None
    log_slope: Elementwise | None = None


def softmax() -> Rho:
    """rho(z) = -exp(-z), slope exp(-z): softmax attention (Yang et al. 2022, eq. 10)."""
    return Rho(value=lambda z: -jnp.exp(-z), slope=lambda z: jnp.exp(-z), log_slope=jnp.negative)


def log(shift: float = 1.0) -> Rho:
    """rho(z) = log(z + shift), slope 1 / (z + shift).

    With unit-norm tokens z = 1 - y_i.y_j, so ``shift=1`` gives the weights 1 / (2 - y_i.y_j) of Yang et al. (2022),
    Section 7 (printed there beside log(z + 2), which gives 1 / (3 - y_i.y_j)).

    Raises:
      ValueError: if shift is not a positive finite number.
    """
    if not (shift > 0.0 and math.isfinite(shift)):
        raise ValueError(f"shift must be positive and finite, got {shift}")
    return Rho(
        value=lambda z: jnp.log(z + shift), slope=lambda z: 1.0 / (z + shift), log_slope=lambda z: -jnp.log(z + shift)
    )


RHOS: dict[str, Callable[..., Rho]] = {
    "softmax": softmax,
    "log": log,
}


def resolve_rho(rho: str | Rho) -> Rho:
    """The `Rho` a name of `RHOS` or a `Rho` stands for, with both slopes filled in.

    Raises:
      ValueError: if the name is not in `RHOS`.
      TypeError: if it is neither a name nor a `Rho`.
    """
    if isinstance(rho, str):
        if rho not in RHOS:
            raise ValueError(f"rho must be one of {sorted(RHOS)} or a Rho, got {rho!r}")
        rho = RHOS[rho]()
    if not isinstance(rho, Rho):
        raise TypeError(f"rho must be one of {sorted(RHOS)} or a Rho, got {type(rho).__name__}")
    if rho.slope is None:
        rho = rho._replace(slope=_derive(rho.value))
    if rho.log_slope is None and rho.slope is not None:
        rho = rho._replace(log_slope=_logarithm(rho.slope))
    return rho


def _derive(value: Elementwise) -> Elementwise:
    def slope(z: Float[Array, "..."]) -> Float[Array, "..."]:
        return jax.vmap(jax.grad(value))(z.ravel()).reshape(z.shape)

    return slope


def _logarithm(slope: Elementwise) -> Elementwise:
    def log_slope(z: Float[Array, "..."]) -> Float[Array, "..."]:
        value = slope(z)
        # The inner `where` keeps the derivative finite where the slope is 0.
        return jnp.where(value == 0.0, -jnp.inf, jnp.log(jnp.where(value == 0.0, 1.0, value)))

    return log_slope
