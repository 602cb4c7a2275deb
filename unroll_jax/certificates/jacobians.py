"""Radii and sizes of the Jacobian of a step, from vector products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.keys import threefry_keys
from unroll_jax.numerics import full_precision
from unroll_jax.spectral import norm, random_like, unit

__all__ = ["jacobian_penalty", "jacobian_radius"]


@checked(num_steps=at_least(2))
@full_precision()
def jacobian_radius(
    step: Callable[[Any], Any],
    z: Any,
    *,
    num_steps: int = 200,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""The spectral radius of the Jacobian J of ``step`` at z, per example.

    It is the asymptotic rate of iterations. J need not be symmetric. The estimate is
    the growth of norms under products with J^T, so a step may have a `custom_vjp`.

    .. math:: r = ( |(J^T)^{2 k} v| / |(J^T)^k v| )^{1 / k} ,
              \qquad k = num\_steps / 2 .

    Args:
      step: ``z -> z'``, from pytrees shaped as z to such pytrees.
      z: where, usually at the equilibrium.
      num_steps: products with J^T, at least 2.
      key: of the random start. None is a fixed one.
      batch_ndim: how many leading axes of z are batch axes.

    Returns:
      One number per example. It is an estimate, neither an upper nor a lower bound, and
      exactly 0 if powers of J vanish.

    Source: Gelfand's formula, with the growth of the start divided out.

    Example:
      >>> import jax.numpy as jnp
      >>> radius = jacobian_radius(jnp.cos, jnp.array([0.739085]))
      >>> round(float(radius), 2)  # at the fixed point of cos, |sin z|
      0.67
    """
    _, pull = jax.vjp(step, z)

    def grow(v: Any, _: None) -> tuple[Any, Array]:
        (image,) = pull(v)
        return unit(image, batch_ndim), norm(image, batch_ndim)

    start = unit(random_like(z, key), batch_ndim)
    _, growths = jax.lax.scan(grow, start, length=num_steps)
    # The geometric mean of the later half.
    return jnp.exp(jnp.mean(jnp.log(growths[num_steps // 2 :]), axis=0))


@checked(num_probes=at_least(1))
def jacobian_penalty(
    step: Callable[[Array], Array],
    z: Float[Array, "..."],
    key: jax.Array,
    *,
    num_probes: int = 1,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""Hutchinson's estimate of :math:`|J|_F^2 / m`, J the Jacobian of ``step`` at z.

    m is the number of entries of an example.

    .. math:: \frac{1}{m k} \sum_{i=1}^k |J^T v_i|^2 , \qquad v_i \sim N(0, 1) .

    It is unbiased, and differentiable in z and in everything that ``step`` closes over.
    As a term of the loss it keeps equilibria easy to find.

    Args:
      step, z, batch_ndim: as in `jacobian_radius`, z an array.
      key: of the probes. Take a new one at every training step.
      num_probes: k, at least 1.

    Source: Bai, Koltun, Kolter (2021), "Stabilizing equilibrium models by Jacobian
    regularization", eq. 6.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step, key = lambda z: 3.0 * z, jax.random.key(0)
      >>> penalty = jacobian_penalty(step, jnp.zeros(4), key, num_probes=1000)
      >>> abs(float(penalty) - 9.0) < 1.0  # |3 I|_F^2 / 4 = 9
      True
    """
    _, pull = jax.vjp(step, z)
    probes = jax.random.normal(threefry_keys(key), (num_probes, *z.shape), z.dtype)
    pulled = jax.vmap(lambda v: pull(v)[0])(probes)
    axes = tuple(range(batch_ndim + 1, pulled.ndim))
    return jnp.mean(jnp.mean(pulled**2, axis=axes), axis=0)
