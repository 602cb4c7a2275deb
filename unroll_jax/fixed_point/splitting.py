"""Monotone operator equilibria by operator splitting: forward-backward and Peaceman-Rachford."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from unroll_jax.arguments import POSITIVE, checked, one_of
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.fixed_point.implicit import EquilibriumInfo, equilibrium
from unroll_jax.fixed_point.monotone_operator import monotone_product, monotone_resolvent
from unroll_jax.fixed_point.problem import Adjoint, Solver, Unrolled
from unroll_jax.norm_bounds import matrix_norm_bound

__all__ = ["SPLITTINGS", "forward_backward", "monotone_equilibrium", "peaceman_rachford"]


def forward_backward(
    W: Inexact[Array, "..."], z: Array, x: Array, *, activation: Proximal, step_size: float | Float[Array, ""]
) -> Array:
    r"""One step of forward-backward splitting, :math:`z' = prox_{\alpha f}((1 - \alpha) z + \alpha (W z + x))`.

    Its fixed points are the equilibria :math:`z = \sigma(W z + x)`, :math:`\sigma = prox_f`. It contracts for
    :math:`\alpha < 2 m / |I - W|^2`, at best by :math:`\sqrt{1 - m^2 / |I - W|^2}`.

    Args:
      W: of `monotone_weight`.
      z: (*batch, m) or (*batch, height, width, c).
      x: the input added to W z, of the same shape.
      activation: sigma, as the `Proximal` f.
      step_size: alpha.

    Returns:
      z', of the shape of z.

    Source: Winston and Kolter (2020), Section 3.3 and Theorem A.1.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import relu
      >>> W, z, x = jnp.zeros((2, 2)), jnp.ones(2), jnp.array([1.0, -3.0])
      >>> forward_backward(W, z, x, activation=relu(), step_size=0.5).tolist()  # relu((z + x) / 2)
      [1.0, 0.0]
    """
    return _prox(activation, (1.0 - step_size) * z + step_size * (monotone_product(W, z) + x), step_size)


def peaceman_rachford(
    V: Inexact[Array, "..."], u: Array, x: Array, *, activation: Proximal, step_size: float | Float[Array, ""]
) -> Array:
    r"""One step of Peaceman-Rachford splitting, two reflections after one another:

    .. math:: z = prox_{\alpha f}(u) , \quad v = 2 z - u , \quad u' = 2 V (v + \alpha x) - v , \qquad
              V = (I + \alpha (I - W))^{-1} .

    At a fixed point u, z is the equilibrium :math:`z = \sigma(W z + x)`. It converges for every alpha > 0.

    Args:
      V: of `monotone_resolvent`, with the same alpha.
      u: (*batch, m) or (*batch, height, width, c).
      x: the input added to W z, of the same shape.
      activation: sigma, as the `Proximal` f.
      step_size: alpha.

    Returns:
      u', of the shape of u.

    Source: Winston and Kolter (2020), Section 3.3.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import relu
      >>> V, u, x = 0.5 * jnp.eye(2), jnp.ones(2), jnp.array([1.0, -3.0])  # of W = 0, alpha = 1
      >>> peaceman_rachford(V, u, x, activation=relu(), step_size=1.0).tolist()  # x, and relu(x) solves z = relu(x)
      [1.0, -3.0]
    """
    reflected = 2.0 * _prox(activation, u, step_size) - u
    return 2.0 * monotone_product(V, reflected + step_size * x) - reflected


#: Splitting methods of `monotone_equilibrium` by name.
SPLITTINGS: dict[str, Callable[..., Array]] = {
    "forward_backward": forward_backward,
    "peaceman_rachford": peaceman_rachford,
}


@checked(splitting=one_of(SPLITTINGS), step_size=POSITIVE)
def monotone_equilibrium(
    W: Inexact[Array, "..."],
    x: Float[Array, "..."],
    *,
    splitting: str = "peaceman_rachford",
    step_size: float | None = None,
    margin: float = 1.0,
    activation: str | Proximal = "relu",
    solver: str | Solver = "picard",
    adjoint: str | Adjoint | Unrolled | None = None,
    tol: float = 1e-5,
    max_steps: int = 200,
    on_failure: str = "warn",
) -> tuple[Float[Array, "..."], EquilibriumInfo]:
    r"""The equilibrium :math:`z = \sigma(W z + x)` of a monotone operator network, with implicit gradients.

    There is one, for every x, if :math:`I - W \succeq m I` with m > 0 and sigma is nondecreasing and 1-Lipschitz.

    Args:
      W: of `monotone_weight`.
      x: (*batch, m), or images (*batch, height, width, c) of the size that W was made for.
      splitting: a name of `SPLITTINGS`.
      step_size: alpha > 0; None is 1 for Peaceman-Rachford, and the best that is known to contract for
        forward-backward, :math:`m / |I - W|^2`.
      margin: m that W was made with, for that.
      activation: sigma, a name of `PROXIMALS` or a `Proximal` whose prox at step size 1 is sigma.
      solver: of `equilibrium`, on the splitting's step; "picard" is the splitting itself.
      adjoint: as in `equilibrium`.
      tol: of `equilibrium`; relative to the splitting's own state, which is not z but u for Peaceman-Rachford.
      max_steps: as in `equilibrium`.
      on_failure: as in `equilibrium`.

    Returns:
      ``(z, info)``; ``info`` is of the splitting's iteration.

    Raises:
      ValueError: if an option is out of range, or W and x do not fit.
      TypeError: if activation, solver or adjoint is neither a name nor of its kind.

    Source: Winston and Kolter (2020), Section 3. They solve the backward pass by the same splitting; here it is any
    linear solver of `ADJOINTS`, on the splitting's step.

    Example:
      >>> import jax.numpy as jnp
      >>> z, info = monotone_equilibrium(-jnp.eye(2), jnp.array([2.0, -2.0]))  # z = relu(x - z)
      >>> [round(value, 3) for value in z.tolist()], bool(info.converged)
      ([1.0, 0.0], True)
    """
    _check_shapes(W, x)
    sigma = resolve_proximal(activation)
    forward = splitting == "forward_backward"
    length = step_size or (margin / _size(W) ** 2 if forward else 1.0)
    operator = W if forward else monotone_resolvent(W, length)
    event = 1 if W.ndim == 2 else 3

    def step(operators: tuple[Any, Any], state: Array, x: Array) -> Array:
        matrix, length = operators
        return SPLITTINGS[splitting](matrix, state, x, activation=sigma, step_size=length)

    state, info = equilibrium(
        step,
        (operator, length),
        jnp.zeros_like(x),
        x,
        solver=solver,
        adjoint=adjoint,
        tol=tol,
        max_steps=max_steps,
        on_failure=on_failure,
        batch_ndim=x.ndim - event,
    )
    return (state if forward else _prox(sigma, state, length)), info


def _prox(activation: Proximal, z: Array, step_size: Any) -> Array:
    """The prox of a penalty that is separable over rows, for a state of any rank."""
    return activation.prox(z.reshape(-1, z.shape[-1]), step_size).reshape(z.shape)


def _size(W: Inexact[Array, "..."]) -> Float[Array, ""]:
    """An upper bound of |I - W|, a number of the step size alone: no gradient passes."""
    norms = matrix_norm_bound(jnp.eye(W.shape[-1], dtype=W.dtype) - W)
    return jax.lax.stop_gradient(jnp.max(norms))


def _check_shapes(W: Array, x: Array) -> None:
    # Of an image's width, W tells no more than half.
    state_shape = (W.shape[-1],) if W.ndim == 2 else (*W.shape[:2], W.shape[-1])
    shape = tuple(x.shape)
    event = shape if len(state_shape) == 1 else (*shape[:-2], shape[-2] // 2 + 1, shape[-1]) if len(shape) > 2 else ()
    if event[len(event) - len(state_shape) :] != state_shape or x.ndim < len(state_shape):
        what = f"vectors of width {state_shape[0]}" if len(state_shape) == 1 else "images of the size and channels"
        raise ValueError(f"x must hold {what} that W was made for, got x of shape {shape} and W of shape {W.shape}")
