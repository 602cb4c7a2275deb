"""The layer of the unrolled transformer: free weights, and descent by training."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.descent import Anchor
from unroll_jax.energies.tokens import check_tokens, zero_masked
from unroll_jax.numerics import common_dtype, compute_dtype, gram, linear

__all__ = ["UnrolledLayerParams", "unrolled_layer"]


class UnrolledLayerParams(NamedTuple):
    """V (k, d), W (d, d) and U (d, d) of one `unrolled_layer`.

    Example: see `unrolled_layer`.
    """

    V: Float[Array, "k d"]
    W: Float[Array, "d d"]
    U: Float[Array, "d d"]


def unrolled_layer(
    params: UnrolledLayerParams,
    y: Float[Array, "*batch n d"],
    mask: Bool[Array, "*batch n"] | None = None,
    *,
    self_loops: bool = True,
) -> Float[Array, "*batch n d"]:
    r"""Applies a layer of the unrolled transformer (UT), with its weights.

    .. math:: Z = softmax(Y V^T V Y^T) Y , \qquad
              Y' = relu(Z W^+ + Y U) , \quad W^+ = (W + W^T) / 2 .

    With free weights in every layer it lowers no known energy. `unroll_jax.constrained`
    makes it lower the task loss.

    Args:
      params: V (k, d), W (d, d), U (d, d).
      y: tokens as rows. Y' has their dtype.
      mask: the tokens present. None takes all. The others stay, and no token attends to
        them.
      self_loops: lets tokens attend to themselves. Noise then attracts attention. Else
        a single token has Z = 0.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48, with tokens as rows.

    Example:
      >>> import jax.numpy as jnp
      >>> zero = jnp.zeros((1, 1))
      >>> uniform = UnrolledLayerParams(V=zero, W=jnp.eye(1), U=zero)
      >>> y = jnp.array([[1.0], [3.0]])
      >>> unrolled_layer(uniform, y).tolist()  # with V = 0 each token gets the mean
      [[2.0], [2.0]]
    """
    check_tokens(y, Anchor(None, mask), dim=params.V.shape[-1])
    state = y
    y = zero_masked(y, mask)
    dtype = common_dtype(y, *params)
    V, W, U = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    logits = gram(linear(y.astype(dtype), V.T), compute_dtype(y))
    seen = _neighbours(y.shape[-2], mask, self_loops)
    if seen is not None:
        logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits, axis=-1).astype(y.dtype)
    if seen is not None and not self_loops:
        weights = jnp.where(seen, weights, 0.0)
    attended = (weights @ y).astype(dtype)
    symmetric = 0.5 * (W + W.T)
    stepped = jax.nn.relu(linear(attended, symmetric) + linear(y.astype(dtype), U))
    stepped = stepped.astype(y.dtype)
    return stepped if mask is None else jnp.where(mask[..., None], stepped, state)


def _neighbours(
    n: int, mask: Bool[Array, "*batch n"] | None, self_loops: bool
) -> Bool[Array, "*batch m n"] | None:
    """Returns the tokens (columns) that a token (row) may attend to. None for all."""
    present = None if mask is None else mask[..., None, :]
    if self_loops:
        return present
    others = ~jnp.eye(n, dtype=bool)
    return others if present is None else others & present
