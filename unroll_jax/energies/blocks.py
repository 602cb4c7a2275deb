"""Sequences cut into blocks of rows, and joined again."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

__all__ = ["join_rows", "split_rows"]


def split_rows(array: Array, size: int) -> Shaped[Array, "blocks *batch size width"]:
    """Cuts rows (*batch, n, width) into blocks, the last filled up with zeros."""
    *batch, count, width = array.shape
    missing = -count % size
    padding = [(0, 0)] * len(batch) + [(0, missing), (0, 0)]
    padded = jnp.pad(array, padding)

    # The number of blocks is given: axes of length 0 leave none to be inferred.
    shape = (*batch, (count + missing) // size, size, width)
    return jnp.moveaxis(padded.reshape(shape), -3, 0)


def join_rows(blocks: Array, count: int) -> Shaped[Array, "*batch count width"]:
    """Joins blocks (blocks, *batch, size, width), and keeps ``count`` rows."""
    number, *batch, size, width = blocks.shape
    joined = jnp.moveaxis(blocks, 0, -3).reshape(*batch, number * size, width)
    return joined[..., :count, :]
