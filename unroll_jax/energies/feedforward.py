"""The quadratic energy of a token's features, and the linear layer that lowers it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.descent import Descent, check_tokens, compute_dtype
from unroll_jax.energies.proximal import Proximal, resolve_proximal

__all__ = ["FeedForwardParams", "feedforward"]

# Spectral norm of W_f at initialisation: sym(W_f) then has no eigenvalue above it, the upper end of the interval
# that the paper's experiments clip to.
INITIAL_NORM = 0.95


class FeedForwardParams(NamedTuple):
    """W_f (d, d); only its symmetric part counts."""

    W_f: Float[Array, "d d"]


def feedforward(dim: int, *, step_size: float = 0.5, phi: str | Proximal = "identity") -> Descent:
    r"""Feed-forward layer as a (proximal) gradient step on a quadratic energy.

    .. math:: E(Y) = \tfrac12 Tr(Y W_f Y^T) + \tfrac12 |Y - B|_F^2 + \phi(Y) , \qquad
              Y' = prox_{a \phi}( Y - a ( Y W_f^+ + Y - B ) ) , \quad W_f^+ = (W_f + W_f^T) / 2 ,

    with B = x (0 when x is None). For the identity this is :math:`Y W_f^s + a B` with
    :math:`W_f^s = (1 - a) I - a W_f^+`. The step never raises E when :math:`a \le 1 / L`,
    :math:`L = \max(0, \lambda_{max}(W_f^+)) + 1`; at initialisation L is at most 1.95, so the default step qualifies.

    Args:
      dim: width d of the tokens.
      step_size: a > 0, the length of the gradient step (not a multiple of 1/L).
      phi: a name of `PROXIMALS`, or a `Proximal`.

    Returns:
      A `Descent` with params `FeedForwardParams`; ``x`` is B, broadcastable to y, or None.

    Raises:
      ValueError: if dim < 1, step_size is not positive and finite, or phi is unknown; while tracing, if y or x do not
        fit.
      TypeError: while tracing, if y or x is not floating.

    Source: Yang, Huang, Wipf (2022), eqs. 14 to 16 and 20 with prox scaled by the step size, as proximal descent needs.

    Example:
      >>> import jax
      >>> layer = feedforward(3, phi="relu")
      >>> params, y = layer.init(jax.random.key(0)), jax.random.uniform(jax.random.key(1), (5, 3))
      >>> bool(layer.energy(params, layer.step(params, y, None), None) < layer.energy(params, y, None))
      True
    """
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    if not (step_size > 0.0 and math.isfinite(step_size)):
        raise ValueError(f"step_size must be positive and finite, got {step_size}")
    proximal = resolve_proximal(phi)

    def init(key: jax.Array) -> FeedForwardParams:
        W_f = jax.nn.initializers.xavier_normal()(key, (dim, dim))
        return FeedForwardParams(W_f * (INITIAL_NORM / jnp.linalg.norm(W_f, 2)))

    def energy(params: FeedForwardParams, y: Array, x: Array | None = None) -> Float[Array, "*batch"]:
        check_tokens(y, x, dim=dim)
        dtype = compute_dtype(y, params.W_f)
        wide, W_f = y.astype(dtype), params.W_f.astype(dtype)
        distance = wide if x is None else wide - x.astype(dtype)
        quadratic = 0.5 * jnp.sum((wide @ W_f) * wide + distance**2, axis=(-2, -1))
        return quadratic + proximal.penalty(y)

    def step(params: FeedForwardParams, y: Array, x: Array | None = None) -> Array:
        check_tokens(y, x, dim=dim)
        dtype = compute_dtype(y, params.W_f)
        symmetric = 0.5 * (params.W_f + params.W_f.T).astype(dtype)
        mixing = (1.0 - step_size) * jnp.eye(dim, dtype=dtype) - step_size * symmetric
        moved = y.astype(dtype) @ mixing
        if x is not None:
            moved = moved + step_size * x.astype(dtype)
        return proximal.prox(moved, step_size).astype(y.dtype)

    return Descent(init=init, energy=energy, step=step)
