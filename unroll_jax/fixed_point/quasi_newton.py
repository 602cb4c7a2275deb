"""Anderson acceleration, an example at a time in parallel."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, in_interval
from unroll_jax.fixed_point.flat_states import filled, norm, put
from unroll_jax.fixed_point.problem import Point, Problem, Solver

__all__ = ["anderson"]


class AndersonMemory(NamedTuple):
    """The last differences of residuals, scaled to unit length, those of images in the same scale, the point before.

    ``gram`` holds the inner products of the former.
    """

    residual_differences: Float[Array, "b w m"]
    image_differences: Float[Array, "b w m"]
    residual: Float[Array, "b m"]
    image: Float[Array, "b m"]
    gram: Float[Array, "b w w"]


@checked(window=at_least(1), ridge=at_least(0.0), mixing=in_interval("(0, 1]"))
def anderson(window: int = 5, *, ridge: float | None = None, mixing: float = 1.0) -> Solver:
    r"""Anderson acceleration: the combination of the last images whose linearised residual is least.

    With g = f(z) - z, dG and dF the differences of the last residuals and images,

    .. math:: z' = f(z) - dF c - (1 - \beta) (g - dG c) , \qquad c = \arg\min |g - dG c|^2 + \mu |c|^2 .

    The columns of dG are scaled to unit length (and those of dF with them), so that the ridge mu is relative to the
    mean of the Gram matrix's diagonal and means the same at every scale. Mixing starts at the second step.

    Args:
      window: how many differences w are kept, at least 1.
      ridge: mu >= 0; None is 10 epsilons of the dtype, a little over the round-off of the Gram matrix.
      mixing: beta in (0, 1].

    Raises:
      ValueError: if an argument is out of range.

    Source: Anderson (1965); Walker and Ni (2011), type II.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step = lambda weight, z, x: jnp.tanh(weight * z + x)
      >>> z, info = unroll_jax.equilibrium(step, 0.9, jnp.zeros((4, 3)), 0.1, solver=anderson(window=3), batch_ndim=1)
      >>> bool(info.converged.all())
      True
    """

    def init(z: Array) -> AndersonMemory:
        history = jnp.repeat(jnp.zeros_like(z)[:, None], window, axis=1)
        gram = filled(z, 0.0)[:, None, None] * jnp.zeros((window, window), z.dtype)
        return AndersonMemory(history, history, jnp.zeros_like(z), jnp.zeros_like(z), gram)

    def update(problem: Problem, point: Point, memory: AndersonMemory) -> tuple[Array, AndersonMemory]:
        residual = point.fz - point.z
        first = point.number == 0
        place = jnp.where(first, 0, (point.number - 1) % window)
        change, image_change = residual - memory.residual, point.fz - memory.image
        length = jax.lax.stop_gradient(norm(change))[:, None]
        # A difference of zero, or one that is not there yet, is a column of zeros: a 1 on the diagonal, no weight.
        usable = ~first & (length > 0.0)
        scale = jnp.where(usable, length, 1.0)
        column = jnp.where(usable, change / scale, 0.0)
        residuals = put(memory.residual_differences, column, place)
        images = put(memory.image_differences, jnp.where(usable, image_change / scale, 0.0), place)
        products = jnp.einsum("bim,bm->bi", residuals, column)
        gram = put(put(memory.gram, products, place).mT, products, place)
        least = 10.0 * float(jnp.finfo(gram.dtype).eps) if ridge is None else ridge
        empty = jnp.diagonal(gram, axis1=1, axis2=2) == 0.0
        system = gram + (least + empty[:, :, None]) * jnp.eye(window, dtype=gram.dtype)
        weights = _solve_small(system, jnp.einsum("bim,bm->bi", residuals, residual))
        moved = point.fz - jnp.einsum("bi,bim->bm", weights, images)
        if mixing < 1.0:
            moved = moved - (1.0 - mixing) * (residual - jnp.einsum("bi,bim->bm", weights, residuals))
        return moved, AndersonMemory(residuals, images, residual, point.fz, gram)

    return Solver(init=init, update=update)


def _solve_small(system: Float[Array, "b w w"], right: Float[Array, "b w"]) -> Float[Array, "b w"]:
    """Gauss-Jordan elimination of small positive definite systems, all rows at once."""
    table = jnp.concatenate([system, right[..., None]], axis=-1)
    for i in range(system.shape[-1]):
        pivot = table[:, i] / table[:, i, i, None]
        table = (table - table[:, :, i, None] * pivot[:, None]).at[:, i].set(pivot)
    return table[..., -1]
