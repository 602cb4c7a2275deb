"""Arithmetic on flat states, a matrix with one row for each example."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from unroll_jax.numerics import compute_dtype, powers_of_two

__all__ = [
    "epsilon_of",
    "filled",
    "flatten",
    "norm",
    "per_example",
    "powers",
    "put",
    "ratio",
    "repeat_while",
]


def flatten(tree: Any, batch_ndim: int) -> tuple[Float[Array, "b m"], Callable[[Array], Any]]:
    """A pytree of arrays (*batch, ...) as one matrix, a row an example, float32 at least; and the way back."""
    leaves, structure = jax.tree.flatten(tree)
    batch = leaves[0].shape[:batch_ndim]
    dtype = compute_dtype(*leaves)
    shapes = [leaf.shape for leaf in leaves]
    dtypes = [leaf.dtype for leaf in leaves]
    rows = math.prod(batch)
    parts = [leaf.reshape(rows, math.prod(leaf.shape[batch_ndim:])).astype(dtype) for leaf in leaves]
    sizes = [part.shape[1] for part in parts]
    flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def restore(matrix: Array) -> Any:
        pieces, start = [], 0
        for size, shape, dtype in zip(sizes, shapes, dtypes, strict=True):
            pieces.append(matrix[:, start : start + size].reshape(shape).astype(dtype))
            start += size
        return jax.tree.unflatten(structure, pieces)

    return flat, restore


def epsilon_of(tree: Any) -> float:
    """Relative spacing of the coarsest dtype among the leaves."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(tree))


def powers(z: Float[Array, "b m"]) -> tuple[Float[Array, "b 1"], Float[Array, "b 1"]]:
    """The power of two that brings the largest entry of every row near 1, and the one that takes it back."""
    return powers_of_two(jnp.max(jnp.abs(z), axis=-1, keepdims=True, initial=0.0))


def norm(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Euclidean norm of every row; unlike `spectral.norm` it neither over- nor underflows before its value does."""
    down, up = powers(z)
    return jnp.sqrt(jnp.sum((z * down) ** 2, axis=-1)) * up[:, 0]


def ratio(above: Float[Array, " b"], below: Float[Array, " b"]) -> Float[Array, " b"]:
    """The quotient of norms; 0 where both are 0."""
    return jnp.where(above == 0.0, 0.0, above / jnp.where(below == 0.0, jnp.finfo(above.dtype).tiny, below))


def filled(z: Float[Array, "b m"], value: float) -> Float[Array, " b"]:
    """``value`` for every row; shards as the rows do, as carries of loops must."""
    return jnp.full_like(jnp.sum(z, axis=-1), value)


def put(history: Float[Array, "b w m"], row: Float[Array, "b m"], place: Array | int) -> Float[Array, "b w m"]:
    """The history with ``row`` at ``place``; unlike indexed updates it keeps shardings that are part of the type."""
    return jax.lax.dynamic_update_index_in_dim(history, row[:, None], place, axis=1)


def per_example(condition: Bool[Array, " b"], yes: Any, no: Any) -> Any:
    """`jnp.where` by rows, over pytrees whose leaves lead with the example axis."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition.reshape(condition.shape + (1,) * (jnp.ndim(a) - 1)), a, b), yes, no
    )


def repeat_while(unfinished: Callable[[Any], Array], body: Callable[[Any], Any], carry: Any) -> Any:
    """`jax.lax.while_loop` for a loop of one turn or none: not even compiled where its end is known before."""
    left = unfinished(carry)
    if not isinstance(left, Tracer) and left.is_fully_addressable and not left:
        return carry
    return jax.lax.while_loop(unfinished, body, carry)
