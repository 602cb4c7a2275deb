"""Gradients and inner products of states that hold many examples, one number per example."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["Energy", "batch_rank", "gradient", "inner", "scale"]

Energy = Callable[[Any], Float[Array, "*batch"]]  # of the state alone, one number per example


def batch_rank(f: Energy, y: Any) -> int:
    """Returns the number of leading axes of ``y`` that are batch axes: the rank of ``f(y)``."""
    return jax.eval_shape(f, y).ndim


def gradient(f: Energy, y: Any) -> Any:
    """The gradient of each example's own energy, shaped as ``y``; examples do not see each other."""
    return jax.grad(lambda state: jnp.sum(f(state)))(y)


def inner(a: Any, b: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The inner product over all leaves and all axes behind the first ``batch_ndim``."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return functools.reduce(jnp.add, [jnp.sum(u * v, axis=tuple(range(batch_ndim, jnp.ndim(u)))) for u, v in leaves])


def scale(factor: Float[Array, "*batch"], a: Any) -> Any:
    """Each example of ``a`` times its own number."""
    return jax.tree.map(lambda leaf: jnp.expand_dims(factor, tuple(range(factor.ndim, leaf.ndim))) * leaf, a)
