"""The parts of a nonlinearity: a convex penalty and its proximal operator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.energies.tokens import zero_masked

__all__ = ["Proximal", "penalty_of_present", "prox_of_present"]


class Proximal(NamedTuple):
    r"""A convex penalty phi, separable over tokens, and its proximal operator.

    Attributes:
      penalty: ``y (*batch, n, d) -> phi(y) (*batch,)``; infinite outside phi's domain.
      prox: ``(y, step_size) -> argmin_z phi(z) + |z - y|^2 / (2 step_size)``, same
        shape and dtype as y. The entries of `PROXIMALS` take an array of any shape;
        `jax.tree.map` takes one to a pytree.

    Example:
      >>> import jax.numpy as jnp
      >>> square = Proximal(
      ...     lambda y: 0.5 * jnp.sum(y**2, (-2, -1)),
      ...     lambda y, step_size: y / (1.0 + step_size),
      ... )
      >>> square.prox(
      ...     jnp.array([[2.0, -4.0]]), 1.0
      ... ).tolist()  # any layer takes it: transformer(..., phi=square)
      [[1.0, -2.0]]
    """

    penalty: Callable[[Float[Array, "*batch n d"]], Float[Array, "*batch"]]
    prox: Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


def penalty_of_present(phi: Proximal, y: Any, present: Any) -> Array:
    """phi of the tokens that are there; ``present`` is a boolean (*batch, n), or
    None if all are."""
    if present is None:
        return phi.penalty(y)
    each = phi.penalty(zero_masked(y, present)[..., None, :])
    return jnp.sum(jnp.where(present, each, 0.0), axis=-1)


def prox_of_present(phi: Proximal, y: Any, step_size: float, present: Any) -> Any:
    """The prox of the tokens that are there; the others stay as they are."""
    if present is None:
        return phi.prox(y, step_size)
    return jnp.where(
        present[..., None], phi.prox(zero_masked(y, present), step_size), y
    )
