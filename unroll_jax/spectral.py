"""Norms and inner products of states, and norms of linear maps from vector products."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.keys import threefry_keys
from unroll_jax.numerics import (
    common_dtype,
    compute_dtype,
    full_precision,
    over,
    powers_of_two,
    safe_sqrt,
)

__all__ = ["inner", "norm", "random_like", "scale", "spectral_norm", "unit", "widen"]


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
    r"""The largest singular value of a linear map A, by power iteration.

    It iterates :math:`A^T A`. The value is never above the true one, except for
    rounding. It is differentiable in everything that ``apply`` closes over. The
    gradient is u v^T, that of :math:`|A v|` at the final v.

    Args:
      apply: the linear map, of pytrees shaped as ``like``. With batch axes it is one
        map per example.
      like: a pytree of arrays, or of their shapes and dtypes, in the domain.
      num_steps: products with A and with its transpose.
      key: of the random start. None is a fixed one.
      batch_ndim: how many leading axes of ``like`` are batch axes.

    Returns:
      One number per example, in float32 or wider. The relative error falls at least as
      fast as log(D) / num_steps, with D entries per example.

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
        # Both directions are unit vectors: squares of the norm leave the range of
        # float32 beyond 1e19, and below 1e-19.
        u = unit(apply(v), batch_ndim)
        return unit(transpose(u)[0], batch_ndim), None

    v, _ = jax.lax.scan(step, unit(start, batch_ndim), length=num_steps)
    v = jax.lax.stop_gradient(v)
    # The length of v is 1, up to the rounding of its dtype, or 0 if A is 0.
    length = norm(widen(v), batch_ndim)
    return norm(widen(apply(v)), batch_ndim) / jnp.where(length == 0.0, 1.0, length)


def norm(v: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The Euclidean norm over all leaves and all axes behind the first ``batch_ndim``.

    Its derivative at 0 is 0.
    """
    # Squares of entries leave the range of float32 beyond 1e19, and below 1e-23.
    sizes = jax.tree.map(jnp.abs, jax.lax.stop_gradient(v))
    largest = _total(jnp.maximum, jnp.max, sizes, batch_ndim, initial=0.0)
    down, up = powers_of_two(largest)
    squares = jax.tree.map(jnp.square, scale(down, v))
    return up * safe_sqrt(_total(jnp.add, jnp.sum, squares, batch_ndim))


def inner(a: Any, b: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The inner product over all leaves and axes behind the first ``batch_ndim``."""
    return _total(jnp.add, jnp.sum, jax.tree.map(jnp.multiply, a, b), batch_ndim)


def unit(v: Any, batch_ndim: int = 0) -> Any:
    """Each example of a pytree over its norm. Zeros stay zeros."""
    size = norm(v, batch_ndim)

    def divide(leaf: Array) -> Array:
        return over(leaf, _align(size, leaf)).astype(leaf.dtype)

    return jax.tree.map(divide, v)


def scale(factor: Float[Array, "*batch"], v: Any) -> Any:
    """Each example of a pytree times its own number."""

    def times(leaf: Array) -> Array:
        dtype = common_dtype(factor, leaf)
        return _align(factor, leaf).astype(dtype) * leaf.astype(dtype)

    return jax.tree.map(times, v)


def widen(v: Any) -> Any:
    """A pytree in float32 at least: squares of float16 under- and overflow."""
    return jax.tree.map(lambda leaf: leaf.astype(compute_dtype(leaf)), v)


def _align(numbers: Array, leaf: Array) -> Array:
    """One number per example, with the axes of a leaf."""
    return jnp.expand_dims(numbers, tuple(range(numbers.ndim, leaf.ndim)))


def _total(
    join: Callable, reduction: Callable, v: Any, batch_ndim: int, **options: Any
) -> Array:
    """A reduction over all leaves and all axes behind the first ``batch_ndim``."""
    leaves = jax.tree.leaves(v)
    dtype = common_dtype(*leaves)
    totals = []
    for leaf in leaves:
        axes = tuple(range(batch_ndim, leaf.ndim))
        totals.append(reduction(leaf, axis=axes, **options).astype(dtype))
    return functools.reduce(join, totals)


def random_like(like: Any, key: jax.Array | None) -> Any:
    """Standard normal numbers in the shapes and dtypes of a pytree.

    A key of None is a fixed one.
    """
    leaves, structure = jax.tree.flatten(like)
    start = jax.random.key(0) if key is None else threefry_keys(key)
    keys = jax.random.split(start, len(leaves))
    normals = []
    for leaf_key, leaf in zip(keys, leaves, strict=True):
        drawn = jax.random.normal(leaf_key, jnp.shape(leaf), jnp.result_type(leaf))
        normals.append(drawn)
    return structure.unflatten(normals)
