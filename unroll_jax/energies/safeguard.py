"""Any step as a descent step, shortened until its energy does not rise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import at_least, checked
from unroll_jax.descent import Descent

__all__ = ["safeguarded"]


@checked(halvings=at_least(1))
def safeguarded(descent: Descent, *, halvings: int = 10) -> Descent:
    r"""Shortens the step of every example until its energy does not rise.

    .. math:: y' = y + t (step(y) - y) , \qquad
              t = \max \{ 1, \tfrac12, \dots, 2^{-halvings}, 0 : E(y') \le E(y) \} .

    No step raises the energy, for any weights. If step(y) - y points downhill at y, t
    is positive for enough halvings. Otherwise t may be 0, and the example stays. A
    layer that always descends costs one or two more energies per step.

    Args:
      descent: a layer whose y is one array. NaN energies of y' count as risen. Where
        the energy of y is NaN, so is y'.
      halvings: how often a step is halved before it is left out, at least 1.

    Returns:
      A `Descent` with the same params and energy. Derivatives of its step hold t
      constant.

    Source: backtracking (Armijo 1966) without a slope.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import Descent
      >>> energy = lambda params, y, x: 0.5 * jnp.sum(y**2, (-2, -1))
      >>> too_long = lambda params, y, x: -6.0 * y  # 7 times the gradient
      >>> layer = safeguarded(Descent(lambda key: None, energy, too_long))
      >>> layer.step(None, jnp.array([[1.0]])).tolist()  # 1 - 7 / 4
      [[-0.75]]
    """

    def step(params, y, x=None):
        stepped = descent.step(params, y, x)
        length = _step_length(descent, params, y, x, stepped, halvings)
        return _shorten(y, stepped, jax.lax.stop_gradient(length))

    return descent._replace(step=step)


def _step_length(descent: Descent, params, y, x, stepped, halvings: int) -> Array:
    """Returns t of each example, (*batch,), or NaN where the energy of y is NaN."""
    before = descent.energy(params, y, x)

    def rises(length: Array) -> Array:
        after = descent.energy(params, _shorten(y, stepped, length), x)
        # Not `after > before`: a NaN counts as risen.
        return ~(after <= before) & ~jnp.isnan(before)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        number, _, risen = carry
        return jnp.any(risen) & (number < halvings)

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, length, risen = carry
        length = jnp.where(risen, 0.5 * length, length)
        return number + 1, length, rises(length)

    full = jnp.ones_like(before)
    start = jnp.int32(0), full, rises(full)
    _, length, risen = jax.lax.while_loop(unfinished, halve, start)
    # No length of this example kept its energy down: it stays.
    length = jnp.where(risen, 0.0, length)
    return jnp.where(jnp.isnan(before), jnp.nan, length)


def _shorten(y: Array, stepped: Array, length: Array) -> Array:
    """Returns y + length (stepped - y), unrounded at a length of 0 or 1."""
    axes = (1,) * (jnp.ndim(y) - length.ndim)
    length = length.reshape(*length.shape, *axes).astype(y.dtype)
    # 0 times an infinite step would be NaN, and so would inf - inf of an absent token
    # at infinity.
    stays = (length == 0.0) | (jnp.isinf(y) & (stepped == y))
    shortened = y + length * jnp.where(stays, 0.0, stepped - y)
    return jnp.where(length == 1.0, stepped, shortened)
