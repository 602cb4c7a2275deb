"""Parts of networks that move no two inputs apart, as plain functions."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import SIZE, checked, require
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import unit

__all__ = ["orthonormal", "pad_channels", "pool", "space_to_depth", "unit_columns"]


@checked(factor=SIZE)
def space_to_depth(
    images: Float[Array, "*batch h w c"], factor: int
) -> Float[Array, "*batch H W C"]:
    """Moves each block of ``factor`` x ``factor`` pixels into the channels of one
    pixel, an isometry.

    Args:
      images: (*batch, height, width, channels), sides divisible by ``factor``.
      factor: side of a block.

    Returns:
      (*batch, height / factor, width / factor, factor^2 channels); channels of a block
      row by row.

    Example:
      >>> import jax.numpy as jnp
      >>> space_to_depth(jnp.arange(4.0).reshape(2, 2, 1), 2).tolist()
      [[[0.0, 1.0, 2.0, 3.0]]]
    """
    blocks = _blocks(images, factor)
    return blocks.reshape(*blocks.shape[:-3], -1)


@checked(factor=SIZE)
def pool(
    images: Float[Array, "*batch h w c"], factor: int
) -> Float[Array, "*batch H W c"]:
    """Sums blocks of ``factor`` x ``factor`` pixels and divides by ``factor``: the
    average pooling of norm 1.

    Args:
      images, factor: as in `space_to_depth`.

    Returns:
      (*batch, height / factor, width / factor, channels).

    Example:
      >>> import jax.numpy as jnp
      >>> pool(jnp.ones((2, 2, 1)), 2).tolist()  # of the norm of the image
      [[[2.0]]]
    """
    return jnp.sum(_blocks(images, factor), axis=(-3, -2)) / factor


@checked(channels=SIZE)
def pad_channels(
    z: Float[Array, "*batch c"], channels: int
) -> Float[Array, "*batch channels"]:
    """Appends zeros to the last axis until it has ``channels`` numbers, an isometry.

    Example:
      >>> import jax.numpy as jnp
      >>> pad_channels(jnp.ones(2), 3).tolist()
      [1.0, 1.0, 0.0]
    """
    missing = channels - z.shape[-1]
    require(missing >= 0, "channels", f"be at least {z.shape[-1]}", channels)
    return jnp.pad(z, [(0, 0)] * (z.ndim - 1) + [(0, missing)])


def orthonormal(weight: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """A matrix with orthonormal columns, or rows if it is wide, from any of full rank.

    ``z @ orthonormal(weight)`` on the channels of pixels is a 1 x 1 convolution: an
    isometry if the matrix has at least as many columns as rows, else of norm 1. As a
    head, margins of its logits are Lipschitz with constant sqrt(2).

    Args:
      weight: (n, m), of full rank; the result is its factor Q (QR). Otherwise the
        derivative is not finite.

    Example:
      >>> import jax.numpy as jnp
      >>> Q = orthonormal(jnp.array([[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]]))
      >>> (Q.T @ Q).round(3).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns = weight.shape
    if rows < columns:
        return orthonormal(weight.T).T
    wide = weight.astype(compute_dtype(weight))
    return jnp.linalg.qr(wide)[0].astype(weight.dtype)


def unit_columns(weight: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """The matrix with each column divided by its Euclidean norm; zeros stay zeros.

    As a head, each logit is 1-Lipschitz. A margin is :math:`|h_y - h_j|`-Lipschitz,
    up to 2 for opposite columns: pass the head to `certified_radius`.

    Example:
      >>> import jax.numpy as jnp
      >>> unit_columns(jnp.array([[0.0, 4.0], [2.0, 0.0]])).tolist()
      [[0.0, 1.0], [1.0, 0.0]]
    """
    wide = weight.astype(compute_dtype(weight))
    return unit(wide.T, batch_ndim=1).T.astype(weight.dtype)


def _blocks(images: Array, factor: int) -> Array:
    """(*batch, H, W, factor, factor, channels)."""
    *batch, height, width, channels = images.shape
    fits = height % factor == 0 and width % factor == 0
    allowed = f"have sides divisible by {factor}"
    require(fits, "images", allowed, f"shape {images.shape}")
    rows = height // factor
    columns = width // factor
    apart = images.reshape(*batch, rows, factor, columns, factor, channels)
    return jnp.swapaxes(apart, -4, -3)
