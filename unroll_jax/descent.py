"""The one type everything is built from: an energy and the step that lowers it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["Descent", "Entry", "Params", "check_tokens", "compute_dtype"]

Params = Any  # a pytree of arrays


class Descent(NamedTuple):
    """An energy and a step that lowers it, as pure functions of (params, y, x).

    Attributes:
      init: ``key -> params``, a pytree of arrays.
      energy: ``(params, y, x) -> (*batch,)``, one number per example; ``y`` is ``(*batch, n, d)``, ``x`` the input of
        the system (its meaning is the factory's) or None.
      step: ``(params, y, x) -> y'``, same shape and dtype as ``y``.
    """

    init: Callable[[jax.Array], Params]
    energy: Callable[[Params, Any, Any], Float[Array, "*batch"]]
    step: Callable[[Params, Any, Any], Any]


class Entry(NamedTuple):
    """A row of `DESCENTS`: how to make the system, and a point where its step must lower its energy.

    Attributes:
      factory: the public factory of the system.
      example: ``(key, batch) -> (descent, y, x)`` with ``y`` of shape ``(*batch, n, d)`` drawn where the condition that
        the factory's docstring states for descent holds for ``descent.init(key)``.
    """

    factory: Callable[..., Descent]
    example: Callable[[jax.Array, tuple[int, ...]], tuple[Descent, Array, Array | None]]


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """Checks that ``y`` holds floating tokens (*batch, n, d) and that the anchor ``x`` broadcasts to it.

    Raises:
      TypeError: if ``y`` or ``x`` is not of a floating dtype.
      ValueError: if the ranks or widths do not fit.
    """
    for name, value in (("y", y), ("x", x)):
        if value is not None and not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(f"{name} must have a floating dtype, got {jnp.result_type(value)}; cast it first")
    shape = jnp.shape(y)
    if len(shape) < 2:
        raise ValueError(f"y must be (*batch, n, d) with at least two axes, got shape {shape}")
    if dim is not None and shape[-1] != dim:
        raise ValueError(f"y must have tokens of width dim={dim}, got shape {shape}")
    if x is not None and not _broadcasts(jnp.shape(x), shape):
        raise ValueError(f"x must broadcast to y's shape {shape}, got shape {jnp.shape(x)}")


def compute_dtype(*arrays: Any) -> jnp.dtype:
    """The dtype energies and reductions are computed in: float32 at least, float64 if an input is."""
    return jnp.promote_types(jnp.result_type(*(a for a in arrays if a is not None)), jnp.float32)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(padded) == len(target) and all(a in (1, b) for a, b in zip(padded, target, strict=True))
