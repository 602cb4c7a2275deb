"""Initialisers, as in `jax.nn.initializers`, of matrices (*layers, rows, columns)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from unroll_jax.energies.cosine import cosine_dictionary

__all__ = ["cosine_atoms", "dct", "scaled_identity"]


def cosine_atoms() -> Initializer:
    """Returns an initialiser with `unroll_jax.energies.cosine_dictionary`.

    It is for shapes (atoms, dim), with atoms as rows.
    """

    def init(
        key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None
    ) -> jax.Array:
        return jnp.asarray(cosine_dictionary(*shape), dtype)

    return init


def dct(scale: float = 1.0) -> Initializer:
    """``scale`` times the orthonormal discrete cosine transform.

    Row k is the k-th basis vector of R^columns.

    If the number of columns is a perfect square, they are the pixels of a square patch,
    row by row, and the transform is two-dimensional. Rows run from low to high
    frequency, so fewer rows than columns keep the lowest frequencies.

    Args:
      scale: norm of every row.

    Returns:
      An initialiser of shapes (*layers, rows, columns). It raises a ValueError for
      more rows than columns.

    Source: Luong et al. (2021), as used by Porras-Valenzuela, Hadou, Ribeiro, Appendix
    B.2.

    Example:
      >>> import jax
      >>> rows = dct()(jax.random.key(0), (2, 2))
      >>> [round(value, 4) for value in rows.ravel().tolist()]
      [0.7071, 0.7071, 0.7071, -0.7071]
    """

    def init(
        key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None
    ) -> jax.Array:
        *layers, rows, columns = shape
        if rows > columns:
            raise ValueError(
                f"dct needs at most as many rows as columns, got shape {tuple(shape)}"
            )
        basis = scale * cosine_dictionary(rows, columns)
        return jnp.asarray(np.broadcast_to(basis, (*layers, rows, columns)), dtype)

    return init


def scaled_identity(scale: float) -> Initializer:
    """``scale`` times the identity matrix, for shapes (*layers, rows, columns).

    Example:
      >>> import jax
      >>> scaled_identity(0.5)(jax.random.key(0), (2, 2)).tolist()
      [[0.5, 0.0], [0.0, 0.5]]
    """

    def init(
        key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None
    ) -> jax.Array:
        identity = scale * np.eye(*shape[-2:])
        return jnp.asarray(np.broadcast_to(identity, shape), dtype)

    return init
