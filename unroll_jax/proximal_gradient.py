"""Proximal and projected gradient steps as a `Descent`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import POSITIVE, check
from unroll_jax.descent import Descent
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.step_checks import check_step

__all__ = ["prox_gradient"]


def prox_gradient(
    smooth: Callable[[Any, Any, Any], Array],
    prox: str | Proximal | Callable[[Any, Any, Any], Any] | None = None,
    *,
    step_size: Any,
    penalty: Callable[[Any, Any], Array] | None = None,
) -> Descent:
    r"""Proximal gradient descent on :math:`h(\theta, z, x) + \phi(\theta, z)`.

    .. math:: z' = prox_{s \phi}(z - s \nabla_z h(\theta, z, x)) .

    Every step descends for convex h with an L-Lipschitz gradient and s <= 1/L. The
    fixed points are the minimisers for any s. `equilibrium` finds one, with implicit
    gradients. ``solver=accelerated_gradient(proximal=True)`` is FISTA with restarts.
    `unroll` takes a given number of steps.

    Args:
      smooth: ``(params, z, x) -> (*batch,)``, h of each example. Its rank is the number
        of batch axes of z.
      prox: ``(params, z, step_size) -> z``, such as
        ``lambda weight, z, s: soft_threshold(weight).prox(z, s)`` or one of
        `optax.projections`. Also a `Proximal` or a name of `PROXIMALS`, for states
        (*batch, n, d). None is plain descent.
      step_size: s, a positive number or array, or ``(params, x) -> s``, such as 1/L of
        the data.
      penalty: ``(params, z) -> (*batch,)``, phi of each example, which the energy adds.
        None is 0, or the penalty of a `Proximal`.

    Returns:
      A `Descent` on pytrees z. Its ``init`` gives None: the parameters are yours.

    Raises:
      ValueError: if a known step size is not positive and finite, or the prox changes
        the state's structure or shapes.
      TypeError: if smooth or prox is not a function.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 4.2. Beck and
    Teboulle (2009) for FISTA.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> from unroll_jax.energies import soft_threshold
      >>> smooth = lambda weight, z, x: 0.5 * jnp.sum((z - x) ** 2)
      >>> prox = lambda weight, z, s: soft_threshold(weight).prox(z, s)
      >>> layer = prox_gradient(smooth, prox, step_size=0.5)
      >>> z, info = equilibrium(layer, 1.0, jnp.zeros(2), jnp.array([3.0, 0.5]))
      >>> [round(entry, 3) for entry in z.tolist()]
      [2.0, 0.0]
    """
    for name, function in (("smooth", smooth), ("penalty", penalty)):
        if not callable(function) and (name == "smooth" or function is not None):
            raise TypeError(f"{name} must be a function, got {function!r}")
    if not callable(step_size) and not isinstance(step_size, jax.Array):
        check("step_size", step_size, POSITIVE)
    apply, phi = _resolve(prox)
    phi = penalty or phi

    def energy(params: Any, z: Any, x: Any) -> Array:
        value = smooth(params, z, x)
        return value if phi is None else value + phi(params, z)

    def step(params: Any, z: Any, x: Any) -> Any:
        size: Any = step_size(params, x) if callable(step_size) else step_size
        slope = jax.grad(lambda z: jnp.sum(smooth(params, z, x)))(z)

        def descend(z: Array, slope: Array) -> Array:
            return (z - size * slope).astype(z.dtype)

        after = jax.tree.map(descend, z, slope)
        if apply is None:
            return after
        near = apply(params, after, size)
        check_step(after, near, what="prox")
        return near

    return Descent(
        init=lambda key: None, energy=energy, step=step, smooth=phi and smooth
    )


def _resolve(prox: Any) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Returns the prox and the penalty as functions that also take params, or None."""
    if prox is None:
        return None, None
    if isinstance(prox, str | Proximal):
        pair = resolve_proximal(prox)

        def apply(params: Any, z: Any, size: Any) -> Any:
            return pair.prox(z, size)

        def penalise(params: Any, z: Any) -> Array:
            return pair.penalty(z)

        return apply, penalise
    if not callable(prox):
        raise TypeError(
            "prox must be a function (params, z, step_size) -> z, a Proximal or a"
            f" name, got {prox!r}"
        )
    return prox, None
