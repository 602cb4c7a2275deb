"""The parts of a nonlinearity: a convex penalty, its proximal operator and its Moreau envelope."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.energies.tokens import blank_absent
from unroll_jax.numerics import compute_dtype

__all__ = ["Proximal", "moreau_envelope", "penalty_of_present", "prox_of_present"]


class Proximal(NamedTuple):
    r"""A convex penalty phi, separable over tokens, and its proximal operator.

    Attributes:
      penalty: ``y (*batch, n, d) -> phi(y) (*batch,)``; infinite outside phi's domain.
      prox: ``(y, step_size) -> argmin_z phi(z) + |z - y|^2 / (2 step_size)``, same shape and dtype as y. The entries of
        `PROXIMALS` take an array of any shape; `jax.tree.map` takes one to a pytree.

    Example:
      >>> import jax.numpy as jnp
      >>> square = Proximal(lambda y: 0.5 * jnp.sum(y**2, (-2, -1)), lambda y, step_size: y / (1.0 + step_size))
      >>> square.prox(jnp.array([[2.0, -4.0]]), 1.0).tolist()  # any layer takes it: transformer(..., phi=square)
      [[1.0, -2.0]]
    """

    penalty: Callable[[Float[Array, "*batch n d"]], Float[Array, "*batch"]]
    prox: Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


@checked(step_size=POSITIVE)
def moreau_envelope(phi: Proximal, y: Float[Array, "*batch n d"], step_size: float) -> Float[Array, "*batch"]:
    r"""The smoothed penalty :math:`M(y) = \min_z \phi(z) + \frac{1}{2 s} |z - y|_F^2`, with s = step_size.

    It is finite and convex, lies below phi and has phi's minimisers. Its gradient is
    :math:`(y - prox_{s \phi}(y)) / s`, 1 / s-Lipschitz; autodiff returns it here, also where phi has no gradient.

    Args:
      phi, y: the penalty and its prox; tokens as rows.
      step_size: s > 0; the envelope is differentiable in y, not in s.

    Source: Parikh and Boyd (2014), Section 3.1; the envelopes of Xie et al. (2021), Corollary 1, are these.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import soft_threshold
      >>> moreau_envelope(soft_threshold(1.0), jnp.array([[3.0, 0.5]]), 1.0).item()  # Huber: 3 - 1/2, and 0.5^2 / 2
      2.625
    """

    @jax.custom_jvp
    def envelope(y: Array) -> Array:
        nearest = phi.prox(y, step_size)
        gap = (nearest - y).astype(compute_dtype(y))
        return phi.penalty(nearest) + 0.5 / step_size * jnp.sum(gap**2, axis=(-2, -1))

    @envelope.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (y,), (tangent,) = primals, tangents
        gradient = (y - phi.prox(y, step_size)).astype(compute_dtype(y)) / step_size
        return envelope(y), jnp.sum(gradient * tangent, axis=(-2, -1))

    return envelope(y)


def penalty_of_present(phi: Proximal, y: Any, present: Any) -> Array:
    """phi of the tokens that are there; ``present`` is a boolean (*batch, n), or None if all are."""
    if present is None:
        return phi.penalty(y)
    each = phi.penalty(blank_absent(y, present)[..., None, :])
    return jnp.sum(jnp.where(present, each, 0.0), axis=-1)


def prox_of_present(phi: Proximal, y: Any, step_size: float, present: Any) -> Any:
    """The prox of the tokens that are there; the others stay as they are."""
    if present is None:
        return phi.prox(y, step_size)
    return jnp.where(present[..., None], phi.prox(blank_absent(y, present), step_size), y)
