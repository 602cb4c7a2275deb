"""Alternating inexact minimisation (AIM): a step on f, one on g, then a prox."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent, Params
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import (
    Proximal,
    penalty_of_present,
    prox_of_present,
)
from unroll_jax.energies.tokens import as_anchor
from unroll_jax.placement import vary_like

__all__ = ["alternating"]

Energy = Callable[[Params, Any, Any], Float[Array, "*batch"]]
Move = Callable[[Params, Any, Any], Any]


@checked(g_step_size=POSITIVE, f_step_size=POSITIVE)
def alternating(
    f: Energy,
    g: Energy,
    *,
    g_step_size: float,
    f_step_size: float | None = None,
    f_step: Move | None = None,
    phi: str | Proximal | None = None,
    init: Callable[[jax.Array], Params] | None = None,
) -> Descent:
    r"""Alternating (proximal) inexact minimisation of h + phi with h = f + g.

    .. math:: u = y - a_1 \nabla f(y) , \qquad v = u - a_2 \nabla g(u) , \qquad
              y' = prox_{a_2 \phi}(v) .

    The step does not descend everywhere: at the minimiser of h it moves, unless f and g
    agree there. By Theorems 4.1 and 5.1 it descends where the gradient of f is small
    beside that of h. `unroll_jax.certify` reports where, by layer.

    Args:
      f: ``(params, y, x) -> (*batch,)``, whose step comes first. ``y`` is a pytree of
        arrays with leading batch axes.
      g: likewise, whose gradient step follows.
      f_step_size, g_step_size: a1 > 0 and a2 > 0, the lengths of the gradient steps on
        f and g.
      f_step: ``(params, y, x) -> u``, a step on f that replaces the gradient step, such
        as the majorise-minimise step of `attention`. :math:`y - u` then replaces
        :math:`a_1 \nabla f(y)`. Give either f_step or f_step_size.
      phi: a name of `PROXIMALS` (for states (*batch, n, d)), a `Proximal` (for any
        state), or None. The step applies a named activation as it is: its penalty is
        the one of `activation` at a2, as in `transformer`.
      init: ``key -> params``. None is for f and g without parameters.

    Returns:
      A `Descent` with energy f + g + phi. f and g interpret ``x``. If x is an `Anchor`
      that marks absent tokens, phi leaves these out, and y must be an array (*batch, n,
      d).

    Source: Yang, Huang, Wipf (2022), Algorithms 1 and 2. The prox is scaled by a2 for
    Theorem 5.1. For ReLU this makes no difference.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> f = lambda params, y, x: 0.5 * jnp.sum(y**2, axis=-1)
      >>> g = lambda params, y, x: 0.5 * jnp.sum((y - 2.0) ** 2, axis=-1)
      >>> system = alternating(f, g, f_step_size=0.1, g_step_size=0.1)
      >>> before = jnp.full((5, 3), 7.0)
      >>> energy, step = jax.jit(system.energy), jax.jit(system.step)
      >>> after = step(None, before, None)
      >>> fall = energy(None, before, None) - energy(None, after, None)
      >>> bool(jnp.all(fall > 0.0))
      True
    """
    one_is_given = (f_step_size is None) != (f_step is None)
    got = f"f_step_size={f_step_size} and f_step={f_step}"
    require(one_is_given, "one of f_step_size and f_step", "be given", got)
    proximal = None if phi is None else resolve_proximal(phi, g_step_size)

    def smooth(params: Params, y: Any, x: Any = None) -> Float[Array, "*batch"]:
        return f(params, y, x) + g(params, y, x)

    def energy(params: Params, y: Any, x: Any = None) -> Float[Array, "*batch"]:
        value = smooth(params, y, x)
        if proximal is None:
            return value
        return value + penalty_of_present(proximal, y, as_anchor(x).present)

    def step(params: Params, y: Any, x: Any = None) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(y):
            check_dtype(f"y{jax.tree_util.keystr(path)}", leaf)
        if f_step is not None:
            u = f_step(params, y, x)
        else:
            u = _descend(f, f_step_size, params, y, x)
        v = _descend(g, g_step_size, params, u, x)
        if proximal is None:
            return v
        return prox_of_present(proximal, v, g_step_size, as_anchor(x).present)

    return Descent(
        init=init or (lambda key: None),
        energy=energy,
        step=step,
        smooth=smooth if proximal else None,
    )


def _descend(f: Energy, step_size: Any, params: Params, y: Any, x: Any) -> Any:
    """Returns a gradient step on f, of each example."""
    # No example enters the energy of another: the gradient of the sum is theirs.
    total = jax.grad(lambda y: jnp.sum(f(params, y, x)))
    gradient = total(vary_like(y, (params, x)))

    def move(leaf: Array, slope: Array) -> Array:
        return (leaf - step_size * slope).astype(leaf.dtype)

    return jax.tree.map(move, y, gradient)
