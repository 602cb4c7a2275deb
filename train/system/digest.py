"""Checksums of arrays: of a checkpoint and its notes, on any mesh; and of given weights."""

import json
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from .distributed import fetch

ODD = 2654435769  # 2^32 over the golden ratio: consecutive multiples of it look random


def digest(state: Any, notes: dict[str, Any]) -> list[int]:
    """Returns checksums of a state's arrays, in tree order, and of its notes without the checksum.

    Any change of one element changes the first: sums are modulo 2^32, and an element's factor is odd. Sums do not
    depend on their order, so each device sums its part.
    """
    contents = {name: value for name, value in notes.items() if name != "digest"}
    return [int(fetch(_of_arrays(jax.tree.leaves(state)))), zlib.crc32(json.dumps(contents, sort_keys=True).encode())]


def weights_checksum(weights: Any) -> int | None:
    """Returns the CRC-32 of a pytree of NumPy arrays with their paths and shapes; None if it is empty."""
    checksum = None
    for path, leaf in jax.tree.leaves_with_path(weights):
        named = f"{jax.tree_util.keystr(path)}{leaf.shape}".encode()
        checksum = zlib.crc32(np.ascontiguousarray(leaf).data, zlib.crc32(named, checksum or 0))
    return checksum


@jax.jit
def _of_arrays(leaves: list[Array]) -> UInt32[Array, ""]:
    total = jnp.zeros((), jnp.uint32)
    for leaf in leaves:
        total = total * jnp.uint32(ODD) + _of_array(leaf)
    return total


def _of_array(leaf: Array) -> UInt32[Array, ""]:
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    width = min(leaf.dtype.itemsize, 4)
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * width}")).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        stride = jnp.uint32(math.prod(bits.shape[axis + 1 :]) % 2**32)
        place = place + stride * jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    return jnp.sum(bits * (place * jnp.uint32(2 * ODD % 2**32) + jnp.uint32(1)), dtype=jnp.uint32)
