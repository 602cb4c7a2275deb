"""Norms of states, and of linear maps and Jacobians from vector products."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.numerics import powers_of_two
from unroll_jax.steps import full_precision

__all__ = ["inner", "jacobian_penalty", "jacobian_radius", "norm", "random_like", "scale", "spectral_norm", "unit"]


@checked(num_steps=at_least(1))
@full_precision()
def spectral_norm(
    apply: Callable[[Any], Any], like: Any, *, num_steps: int = 100, key: jax.Array | None = None, batch_ndim: int = 0
) -> Float[Array, "*batch"]:
    r"""The largest singular value of a linear map A, by power iteration on :math:`A^T A`; never above the true value.

    Differentiable in what ``apply`` closes over: the gradient is that of :math:`|A v|` at the vector v found, u v^T.

    Args:
      apply: the linear map, of pytrees shaped as ``like``; one map per example where there are batch axes.
      like: a pytree of arrays, or of their shapes and dtypes, in the domain.
      num_steps: products with A and with its transpose.
      key: of the random start; None is a fixed one.
      batch_ndim: how many leading axes of ``like`` are batch axes.

    Returns:
      One number per example, below the norm by a share that falls as log(D) / num_steps at worst.

    Source: Kuczynski and Wozniakowski (1992) for the rate.

    Example:
      >>> import jax.numpy as jnp
      >>> A = jnp.array([[3.0, 0.0], [0.0, 1.0]])
      >>> round(float(spectral_norm(lambda v: A @ v, jnp.zeros(2))), 3)
      3.0
    """
    start = random_like(like, key)
    transpose = jax.linear_transpose(apply, start)

    def step(v: Any, _: None) -> tuple[Any, None]:
        return unit(transpose(apply(v))[0], batch_ndim), None

    v, _ = jax.lax.scan(step, unit(start, batch_ndim), length=num_steps)
    return norm(apply(jax.lax.stop_gradient(v)), batch_ndim)


@checked(num_steps=at_least(2))
@full_precision()
def jacobian_radius(
    step: Callable[[Any], Any], z: Any, *, num_steps: int = 200, key: jax.Array | None = None, batch_ndim: int = 0
) -> Float[Array, "*batch"]:
    r"""The spectral radius of the Jacobian J of ``step`` at z, per example: the rate at which iterations end up going.

    It takes the growth of norms, which is right for asymmetric J too, and products with the transpose only: a step may
    have a `custom_vjp` inside.

    .. math:: r = ( |(J^T)^{2 k} v| / |(J^T)^k v| )^{1 / k} , \qquad k = num\_steps / 2 .

    Args:
      step: ``z -> z'``, from pytrees shaped as z to such pytrees.
      z: where, usually at the equilibrium.
      num_steps: products with J^T, at least 2.
      key: of the random start; None is a fixed one.
      batch_ndim: how many leading axes of z are batch axes.

    Returns:
      One number per example; an estimate, from neither side, and exactly 0 where powers of J vanish.

    Source: Gelfand's formula, with the growth of the start divided out.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(jacobian_radius(jnp.cos, jnp.array([0.739085]))), 2)  # at its fixed point, |sin z|
      0.67
    """
    _, pull = jax.vjp(step, z)

    def grow(v: Any, _: None) -> tuple[Any, Array]:
        moved = pull(v)[0]
        return unit(moved, batch_ndim), norm(moved, batch_ndim)

    _, growths = jax.lax.scan(grow, unit(random_like(z, key), batch_ndim), length=num_steps)
    return jnp.exp(jnp.mean(jnp.log(growths[num_steps // 2 :]), axis=0))


@checked(num_probes=at_least(1))
def jacobian_penalty(
    step: Callable[[Array], Array], z: Float[Array, "..."], key: jax.Array, *, num_probes: int = 1, batch_ndim: int = 0
) -> Float[Array, "*batch"]:
    r"""Hutchinson's estimate of :math:`|J|_F^2 / m`, J the Jacobian of ``step`` at z and m the entries of an example.

    .. math:: \frac{1}{m k} \sum_{i=1}^k |J^T v_i|^2 , \qquad v_i \sim N(0, 1) .

    Unbiased; differentiable in what ``step`` closes over and in z. Added to the loss it keeps equilibria easy to find.

    Args:
      step: ``z -> z'``, from arrays shaped as z to such arrays.
      z: where, usually at the equilibrium.
      key: of the probes; take a new one at every training step.
      num_probes: k, at least 1.
      batch_ndim: how many leading axes of z are batch axes.

    Returns:
      One number per example.

    Source: Bai, Koltun, Kolter (2021), "Stabilizing equilibrium models by Jacobian regularization", eq. 6.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> penalty = jacobian_penalty(lambda z: 3.0 * z, jnp.zeros(4), jax.random.key(0), num_probes=1000)
      >>> abs(float(penalty) - 9.0) < 1.0  # |3 I|_F^2 / 4 = 9
      True
    """
    _, pull = jax.vjp(step, z)
    probes = jax.random.normal(key, (num_probes, *z.shape), z.dtype)
    pulled = jax.vmap(lambda v: pull(v)[0])(probes)
    axes = tuple(range(batch_ndim + 1, pulled.ndim))
    return jnp.mean(jnp.mean(pulled**2, axis=axes), axis=0)


def norm(v: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The Euclidean norm over all leaves and all axes behind the first ``batch_ndim``; its derivative at 0 is 0."""
    largest = _total(jnp.maximum, jnp.max, jax.tree.map(jnp.abs, jax.lax.stop_gradient(v)), batch_ndim, initial=0.0)
    smaller, back = powers_of_two(largest)  # squares of entries leave the range of float32 beyond 1e19, below 1e-23
    square = _total(jnp.add, jnp.sum, jax.tree.map(jnp.square, scale(smaller, v)), batch_ndim)
    # The inner `where` keeps the derivative finite at 0; NaN stays NaN.
    return back * jnp.where(square == 0.0, 0.0, jnp.sqrt(jnp.where(square == 0.0, 1.0, square)))


def inner(a: Any, b: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The inner product over all leaves and all axes behind the first ``batch_ndim``."""
    return _total(jnp.add, jnp.sum, jax.tree.map(jnp.multiply, a, b), batch_ndim)


def unit(v: Any, batch_ndim: int = 0) -> Any:
    """Each example of a pytree over its norm; zeros stay zeros."""
    size = norm(v, batch_ndim)
    return jax.tree.map(lambda leaf: leaf / _widened(jnp.where(size == 0.0, 1.0, size), leaf), v)


def scale(factor: Float[Array, "*batch"], v: Any) -> Any:
    """Each example of a pytree times its own number."""
    return jax.tree.map(lambda leaf: _widened(factor, leaf) * leaf, v)


def _widened(numbers: Array, leaf: Array) -> Array:
    return jnp.expand_dims(numbers, tuple(range(numbers.ndim, leaf.ndim)))


def _total(join: Callable, reduction: Callable, v: Any, batch_ndim: int, **options: Any) -> Array:
    """A reduction over all leaves and all axes behind the first ``batch_ndim``."""
    leaves = [reduction(leaf, axis=tuple(range(batch_ndim, leaf.ndim)), **options) for leaf in jax.tree.leaves(v)]
    return functools.reduce(join, leaves)


def random_like(like: Any, key: jax.Array | None) -> Any:
    """Standard normal numbers in the shapes and dtypes of a pytree; a key of None is a fixed one."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, jnp.shape(leaf), jnp.result_type(leaf)) for k, leaf in zip(keys, leaves, strict=True)]
    )
