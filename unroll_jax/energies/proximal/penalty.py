"""The parts of a nonlinearity: a convex penalty and its proximal operator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.energies.tokens import sum_present, zero_masked

__all__ = [
    "Proximal",
    "check_number",
    "nonnegative",
    "penalty_of_present",
    "prox_of_present",
]


class Proximal(NamedTuple):
    r"""A convex penalty phi, separable over tokens, and its proximal operator.

    Attributes:
      penalty: ``y (*batch, n, d) -> phi(y) (*batch,)``, infinite outside phi's domain.
      prox: ``(y, step_size) -> argmin_z phi(z) + |z - y|^2 / (2 step_size)``, same
        shape and dtype as y. The entries of `PROXIMALS` take arrays of any shape. Use
        `jax.tree.map` for a pytree.

    Example:
      >>> import jax.numpy as jnp
      >>> square = Proximal(
      ...     lambda y: 0.5 * jnp.sum(y**2, (-2, -1)),
      ...     lambda y, step_size: y / (1.0 + step_size),
      ... )
      >>> square.prox(jnp.array([[2.0, -4.0]]), 1.0).tolist()
      [[1.0, -2.0]]

    Any layer takes it, as in ``transformer(..., phi=square)``.
    """

    penalty: Callable[[Float[Array, "*batch n d"]], Float[Array, "*batch"]]
    prox: Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


def nonnegative(name: str, value: Any) -> Any:
    """Returns the number or array, which must be finite and at least 0.

    Out of range a known value is a ValueError, and a traced one becomes NaN.
    """
    check_number(name, value)
    if isinstance(value, Tracer):
        return jnp.where((value >= 0.0) & (value < jnp.inf), value, jnp.nan)
    known = np.asarray(value)
    in_range = np.all((known >= 0.0) & np.isfinite(known))
    require(in_range, name, "be finite and at least 0", value)
    return value


def check_number(name: str, value: Any) -> None:
    """A TypeError unless the value is a number or an array of real numbers."""
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    if not real:
        raise TypeError(
            f"{name} must be a number or an array of numbers, got {value!r}"
        )


def penalty_of_present(phi: Proximal, y: Any, present: Any) -> Array:
    """Returns phi of the tokens present.

    ``present`` is a boolean (*batch, n), or None if all are.
    """
    if present is None:
        return phi.penalty(y)
    # Each token as a state of one row.
    per_token = phi.penalty(zero_masked(y, present)[..., None, :])
    return sum_present(per_token, present)


def prox_of_present(phi: Proximal, y: Any, step_size: float, present: Any) -> Any:
    """Returns the prox of the tokens present. The others stay as they are."""
    if present is None:
        return phi.prox(y, step_size)
    after = phi.prox(zero_masked(y, present), step_size)
    return jnp.where(present[..., None], after, y)
