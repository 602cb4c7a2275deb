"""Conjugate gradients for many systems at once. Each row stops separately."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["continue_conjugate_gradient"]

# A linear map of each row, for all rows at once.
Linear = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]


class _CG(NamedTuple):
    number: Int[Array, ""]
    w: Array
    residual: Array
    direction: Array
    square: Array
    steps: Array


def continue_conjugate_gradient(
    product: Linear,
    w: Float[Array, "b m"],
    residual: Float[Array, "b m"],
    *,
    bound: Float[Array, " b"],
    max_steps: int | Int[Array, ""],
) -> tuple[Float[Array, "b m"], Float[Array, "b m"], Int[Array, " b"]]:
    """Continues conjugate gradients from w until |residual|^2 <= bound.

    ``product`` multiplies with each row's symmetric positive definite matrix. A row
    ends at a direction without positive curvature: its matrix is not positive definite.
    Squares too small to divide by also end a row.

    Returns:
      ``(w, residual, steps)``, where the residual is that of the recurrence.
    """
    limits = jnp.finfo(residual.dtype)
    bound = jnp.maximum(bound, limits.tiny / limits.eps)

    def dot(a: Array, b: Array) -> Array:
        return jnp.sum(a * b, axis=-1)

    def unfinished(carry: _CG) -> Array:
        return jnp.any(carry.square > bound) & (carry.number < max_steps)

    def body(carry: _CG) -> _CG:
        active = carry.square > bound
        image = product(carry.direction)
        curvature = dot(carry.direction, image)
        descends = active & (curvature > 0.0)
        length = carry.square / jnp.where(descends, curvature, 1.0)
        length = jnp.where(descends, length, 0.0)

        w = carry.w + length[:, None] * carry.direction
        residual = carry.residual - length[:, None] * image
        square = jnp.where(active, dot(residual, residual), carry.square)
        # 0 ends a row. NaN of a product stays NaN, and does too.
        square = jnp.where(active & (curvature <= 0.0), 0.0, square)

        # The next direction is conjugate to all before it.
        ratio = square / jnp.where(carry.square > 0.0, carry.square, 1.0)
        ratio = jnp.where(active, ratio, 0.0)
        direction = residual + ratio[:, None] * carry.direction
        return _CG(
            number=carry.number + 1,
            w=w,
            residual=residual,
            direction=direction,
            square=square,
            steps=carry.steps + active.astype(jnp.int32),
        )

    square = dot(residual, residual)
    none = jnp.zeros_like(square, jnp.int32)
    begin = _CG(
        number=jnp.zeros((), jnp.int32),
        w=w,
        residual=residual,
        direction=residual,
        square=square,
        steps=none,
    )
    end = jax.lax.while_loop(unfinished, body, begin)
    return end.w, end.residual, end.steps
