"""Any step made a descent step: shortened until its energy does not rise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import at_least, checked
from unroll_jax.descent import Descent

__all__ = ["safeguarded"]


@checked(halvings=at_least(1))
def safeguarded(descent: Descent, *, halvings: int = 10) -> Descent:
    r"""The same layer with every example's step shortened until its energy does not
    rise.

    .. math:: y' = y + t (step(y) - y) , \qquad
              t = \max \{ 1, \tfrac12, \dots, 2^{-halvings}, 0 : E(y') \le E(y) \} .

    No step raises the energy, for any weights. Where step(y) - y points downhill at y,
    t is positive for enough halvings; else t may be 0, and the example stays. A
    certified layer pays one or two more energies.

    Args:
      descent: a layer whose y is one array; NaN energies of y' count as risen. Where
        the energy of y is NaN, so is y'.
      halvings: at least 1, how often the step is halved before it is left out.

    Returns:
      A `Descent` with the same params and energy. Derivatives of its step hold t
      constant.

    Source: backtracking (Armijo 1966) without a slope.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import Descent
      >>> far = Descent(  # seven gradient steps of length 1 at once
      ...     init=lambda key: None,
      ...     energy=lambda params, y, x: 0.5 * jnp.sum(y**2, (-2, -1)),
      ...     step=lambda params, y, x: -6.0 * y,
      ... )
      >>> y = jnp.array([[1.0]])
      >>> (
      ...     float(far.step(None, y, None)[0, 0]),
      ...     float(safeguarded(far).step(None, y, None)[0, 0]),
      ... )
      (-6.0, -0.75)
    """

    def step(params, y, x=None):
        stepped = descent.step(params, y, x)
        length = jax.lax.stop_gradient(
            _length(descent, params, y, x, stepped, halvings)
        )
        length = length.reshape(
            length.shape + (1,) * (jnp.ndim(y) - length.ndim)
        ).astype(y.dtype)
        # At length 1 the step itself, unrounded; at 0 the state, even next to an
        # infinite step.
        shortened = y + length * jnp.where(length > 0.0, stepped - y, 0.0)
        return jnp.where(length == 1.0, stepped, shortened)

    return Descent(descent.init, descent.energy, step, smooth=descent.smooth)


def _length(descent: Descent, params, y, x, stepped, halvings: int) -> Array:
    """The share of the step that each example takes, (*batch,)."""
    before = descent.energy(params, y, x)

    def rises(length: Array) -> Array:
        share = length.reshape(
            length.shape + (1,) * (jnp.ndim(y) - length.ndim)
        ).astype(y.dtype)
        candidate = jnp.where(share == 1.0, stepped, y + share * (stepped - y))
        return ~(descent.energy(params, candidate, x) <= before) & ~jnp.isnan(before)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        number, _, risen = carry
        return jnp.any(risen) & (number < halvings)

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, length, risen = carry
        length = jnp.where(risen, 0.5 * length, length)
        return number + 1, length, rises(length)

    length = jnp.ones_like(before)
    _, length, risen = jax.lax.while_loop(
        unfinished, halve, (jnp.int32(0), length, rises(length))
    )
    return jnp.where(jnp.isnan(before), jnp.nan, jnp.where(risen, 0.0, length))
