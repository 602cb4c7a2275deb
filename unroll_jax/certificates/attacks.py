"""Attacks by projected gradients, which bound certified accuracy from above."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, PRNGKeyArray

from unroll_jax.arguments import POSITIVE, at_least, checked
from unroll_jax.arrays import check_dtype
from unroll_jax.certificates.margins import as_places
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import norm, unit

__all__ = ["attack"]

# of the radius, by which a step moves
STEP = 1.0 / 8.0


@checked(radius=POSITIVE, num_steps=at_least(1))
def attack(
    logits: Callable[[Array], Float[Array, "batch classes"]],
    x: Float[Array, "batch *event"],
    labels: Integer[Array, " batch"],
    radius: float | Float[Array, ""],
    key: PRNGKeyArray | None = None,
    *,
    num_steps: int = 40,
) -> Float[Array, " batch"]:
    r"""The smallest margins that projected gradients find within a radius.

    .. math:: d \leftarrow P_r \Bigl( d - \frac r8 \frac{\nabla m(x + d)}
        {|\nabla m(x + d)|_2} \Bigr) , \qquad m = l_y - \max_{j \ne y} l_j ,

    where :math:`P_r` projects onto the ball of radius r around 0. A margin above 0 says
    that no point on the way is misclassified. The share of such samples is at least the
    certified accuracy at r (`certified_radius`), for the same network.

    Args:
      logits: ``x -> logits``, differentiable.
      x: inputs, (batch, *event). The Euclidean norm is of all entries of an event.
      labels: y, integers (batch,) in 0..classes - 1.
      radius: r, positive, in units of x.
      key: adds a second attack from a random start in the ball. None attacks from x.
      num_steps: steps of each attack, at least 1. All points on the way count.

    Returns:
      Margins in units of the logits, (batch,), of x and of all points tried. NaN where
      a logit is NaN or a traced label is no class. A ValueError names known ones.

    Source: Madry et al. (2018), "Towards deep learning models resistant to adversarial
    attacks", Section 2.1, on the margin.

    Example:
      >>> import jax.numpy as jnp
      >>> logits = lambda x: jnp.concatenate([x, -x], axis=-1)
      >>> attack(logits, jnp.array([[2.0]]), jnp.array([0]), 0.5).tolist()
      [3.0]
    """
    check_dtype("x", x)
    # a traced radius out of range moves x to NaN
    radius = jnp.where(radius > 0.0, radius, jnp.nan).astype(x.dtype)

    def margin(moved: Array) -> Array:
        outputs = logits(x + moved)
        outputs = outputs.astype(compute_dtype(outputs))
        places = as_places(labels, outputs)
        classes = outputs.shape[-1]
        chosen = places[:, None] == jnp.arange(classes, dtype=places.dtype)
        others = jnp.max(jnp.where(chosen, -jnp.inf, outputs), axis=-1)
        own = jnp.sum(jnp.where(chosen, outputs, 0.0), axis=-1)
        return jnp.where((places >= 0) & (places < classes), own - others, jnp.nan)

    def project(moved: Array) -> Array:
        length = norm(moved, batch_ndim=1).reshape(-1, *(1 for _ in x.shape[1:]))
        return jnp.where(length > radius, radius * unit(moved, batch_ndim=1), moved)

    def descend(carry: tuple[Array, Array], _: None) -> tuple[Any, None]:
        moved, least = carry
        (_, now), slope = jax.value_and_grad(_sum_and_each(margin), has_aux=True)(moved)
        moved = project(moved - STEP * radius * unit(slope, batch_ndim=1))
        return (moved, jnp.minimum(least, now)), None

    def least_from(start: Array) -> Array:
        none = jnp.full(len(x), jnp.inf, jax.eval_shape(margin, start).dtype)
        (moved, least), _ = jax.lax.scan(descend, (start, none), length=num_steps)
        return jnp.minimum(least, margin(moved))

    least = least_from(jnp.zeros_like(x))
    if key is None:
        return least
    random = jax.random.normal(key, x.shape, x.dtype)
    return jnp.minimum(least, least_from(radius * unit(random, batch_ndim=1)))


def _sum_and_each(margin: Callable[[Array], Array]) -> Callable[[Array], Any]:
    """The sum of margins, whose gradient is that of each sample, and the margins."""

    def both(moved: Array) -> tuple[Array, Array]:
        each = margin(moved)
        return jnp.sum(each), each

    return both
