"""The layer of the unrolled transformer, whose weights are free and whose descent is
trained."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.descent import Anchor
from unroll_jax.energies.tokens import zero_masked, check_tokens
from unroll_jax.numerics import compute_dtype, gram, linear

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
    r"""A layer of the unrolled transformer (UT), with its weights.

    .. math:: Z = softmax(Y V^T V Y^T) Y , \qquad Y' = relu(Z W^+ + Y U) , \quad W^+ = (W + W^T) / 2 .

    With free weights in every layer it lowers no known energy; `unroll_jax.constrained`
    makes it lower the task loss.

    Args:
      params: V (k, d), W (d, d), U (d, d).
      y: tokens as rows; Y' has their dtype.
      mask: which of them are real; None takes all for real. The others stay, and no
        token attends to them.
      self_loops: whether tokens attend to themselves; noise then attracts attention.
        Else a single token has Z = 0.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48; tokens as rows.

    Example:
      >>> import jax.numpy as jnp
      >>> uniform = UnrolledLayerParams(
      ...     V=jnp.zeros((1, 1)), W=jnp.eye(1), U=jnp.zeros((1, 1))
      ... )
      >>> unrolled_layer(
      ...     uniform, jnp.array([[1.0], [3.0]])
      ... ).tolist()  # with V = 0 each token gets the mean
      [[2.0], [2.0]]
    """
    check_tokens(y, Anchor(None, mask), dim=params.V.shape[-1])
    state, y = y, zero_masked(y, mask)
    logits = gram(linear(y, params.V.T), compute_dtype(y))
    seen = _neighbours(y.shape[-2], mask, self_loops)
    if seen is not None:
        logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits, axis=-1).astype(y.dtype)
    if seen is not None and not self_loops:
        weights = jnp.where(seen, weights, 0.0)
    symmetric = 0.5 * (params.W + params.W.T)
    stepped = jax.nn.relu(linear(weights @ y, symmetric) + linear(y, params.U)).astype(
        y.dtype
    )
    return stepped if mask is None else jnp.where(mask[..., None], stepped, state)


def _neighbours(
    n: int, mask: Bool[Array, "*batch n"] | None, self_loops: bool
) -> Bool[Array, "*batch m n"] | None:
    """Returns the mask of the tokens (columns) that each token (row) may attend to;
    None for all."""
    real = None if mask is None else mask[..., None, :]
    if self_loops:
        return real
    others = ~jnp.eye(n, dtype=bool)
    return others if real is None else others & real
