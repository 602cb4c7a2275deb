"""Norms and inner products of states, and norms of linear maps from vector products."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.numerics import full_precision, over, powers_of_two

__all__ = ["inner", "norm", "random_like", "scale", "spectral_norm", "unit"]


@checked(num_steps=at_least(1))
@full_precision()
def spectral_norm(
    apply: Callable[[Any], Any],
    like: Any,
    *,
    num_steps: int = 100,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""The largest singular value of a linear map A, by power iteration on
    :math:`A^T A`; never above the true value.

    Differentiable in what ``apply`` closes over: the gradient of :math:`|A v|` at the
    final v, u v^T.

    Args:
      apply: the linear map, of pytrees shaped as ``like``; one map per example where
        there are batch axes.
      like: a pytree of arrays, or of their shapes and dtypes, in the domain.
      num_steps: products with A and with its transpose.
      key: of the random start; None is a fixed one.
      batch_ndim: how many leading axes of ``like`` are batch axes.

    Returns:
      One number per example, below the norm by a share that falls as log(D) / num_steps
      at worst.

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


def norm(v: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The Euclidean norm over all leaves and all axes behind the first
    ``batch_ndim``; its derivative at 0 is 0."""
    largest = _total(
        jnp.maximum,
        jnp.max,
        jax.tree.map(jnp.abs, jax.lax.stop_gradient(v)),
        batch_ndim,
        initial=0.0,
    )
    # squares of entries leave the range of float32 beyond 1e19, below 1e-23
    smaller, back = powers_of_two(largest)
    square = _total(
        jnp.add, jnp.sum, jax.tree.map(jnp.square, scale(smaller, v)), batch_ndim
    )
    # The inner `where` keeps the derivative finite at 0; NaN stays NaN.
    return back * jnp.where(
        square == 0.0, 0.0, jnp.sqrt(jnp.where(square == 0.0, 1.0, square))
    )


def inner(a: Any, b: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The inner product over all leaves and all axes behind the first
    ``batch_ndim``."""
    return _total(jnp.add, jnp.sum, jax.tree.map(jnp.multiply, a, b), batch_ndim)


def unit(v: Any, batch_ndim: int = 0) -> Any:
    """Each example of a pytree over its norm; zeros stay zeros."""
    size = norm(v, batch_ndim)
    return jax.tree.map(lambda leaf: over(leaf, _widened(size, leaf)), v)


def scale(factor: Float[Array, "*batch"], v: Any) -> Any:
    """Each example of a pytree times its own number."""
    return jax.tree.map(lambda leaf: _widened(factor, leaf) * leaf, v)


def _widened(numbers: Array, leaf: Array) -> Array:
    return jnp.expand_dims(numbers, tuple(range(numbers.ndim, leaf.ndim)))


def _total(
    join: Callable, reduction: Callable, v: Any, batch_ndim: int, **options: Any
) -> Array:
    """A reduction over all leaves and all axes behind the first ``batch_ndim``."""
    leaves = [
        reduction(leaf, axis=tuple(range(batch_ndim, leaf.ndim)), **options)
        for leaf in jax.tree.leaves(v)
    ]
    return functools.reduce(join, leaves)


def random_like(like: Any, key: jax.Array | None) -> Any:
    """Standard normal numbers in the shapes and dtypes of a pytree; a key of None is
    a fixed one."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(leaves))
    return structure.unflatten(
        [
            jax.random.normal(k, jnp.shape(leaf), jnp.result_type(leaf))
            for k, leaf in zip(keys, leaves, strict=True)
        ]
    )
