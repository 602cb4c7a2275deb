"""Disturbances of an input other than Gaussian noise: salt and pepper, blur, and dropped entries or frames."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, in_interval, one_of

__all__ = ["blur", "dropped", "salt_and_pepper"]

FILLS = ("zero", "last")
REACH = 4.0  # of the Gaussian, in deviations, beyond which it counts as 0; that of scipy.ndimage


@checked(share=in_interval("[0, 1]"))
def salt_and_pepper(
    values: Float[Array, "*shape"], key: jax.Array, share: float | Float[Array, ""], low: float = 0.0, high: float = 1.0
) -> Float[Array, "*shape"]:
    """A share of the entries replaced by the lowest or the highest value, either equally often.

    Args:
      values: of any shape; each entry is drawn for by itself.
      key: of the draw.
      share: of entries that are replaced, in the mean, in [0, 1]; may be traced.
      low: pepper.
      high: salt.

    Returns:
      The values, of the same shape and dtype.

    Raises:
      ValueError: if a known ``share`` is outside [0, 1].

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sorted(set(salt_and_pepper(jnp.full(100, 0.5), jax.random.key(0), 1.0).tolist()))
      [0.0, 1.0]
    """
    # float32 draws never reach 1, so a share of 1 replaces everything.
    drawn = jax.random.uniform(key, values.shape, jnp.float32)
    return jnp.where(drawn < share, jnp.where(drawn < 0.5 * share, low, high).astype(values.dtype), values)


@checked(deviation=at_least(0.0))
def blur(
    values: Float[Array, "*shape"], deviation: float, *, axes: tuple[int, ...] = (-2, -1)
) -> Float[Array, "*shape"]:
    r"""A picture under a Gaussian, :math:`y_i = \sum_j w_{i-j} x_j, w_k \propto e^{-k^2 / 2 s^2}`, along each axis.

    Beyond its edges a picture is mirrored, the pixel at the edge twice. The Gaussian is separable, so each axis
    takes one product with a matrix; it ends at 4 deviations, rounded.

    Args:
      values: pictures, or what else has the axes.
      deviation: s, in pixels, at least 0; 0 leaves the values as they are.
      axes: along which is blurred.

    Returns:
      The values, of the same shape and dtype.

    Raises:
      ValueError: if ``deviation`` is negative or not finite.

    Source: `scipy.ndimage.gaussian_filter` with its usual ``mode="reflect"`` and ``truncate=4``, which it equals.

    Example:
      >>> import jax.numpy as jnp
      >>> blurred = blur(jnp.zeros((9, 9)).at[4, 4].set(1.0), 1.0)
      >>> blurred.shape, round(float(blurred.sum()), 4), round(float(blurred[4, 4]), 4)
      ((9, 9), 1.0, 0.1592)
    """
    for axis in axes:
        matrix = jnp.asarray(_gaussian(values.shape[axis], deviation), values.dtype)
        turned = jnp.matmul(jnp.moveaxis(values, axis, -1), matrix.T, precision="highest")
        values = jnp.moveaxis(turned, -1, axis)
    return values


@checked(share=in_interval("[0, 1]"), fill=one_of(FILLS))
def dropped(
    values: Float[Array, "*shape"],
    key: jax.Array,
    share: float | Float[Array, ""],
    *,
    axis: int = 0,
    fill: str = "zero",
) -> Float[Array, "*shape"]:
    """A share of the slices along an axis lost: frames of a video, rows of a picture, entries of a signal.

    Args:
      values: of any shape; a slice is lost as a whole, each by its own draw.
      key: of the draw.
      share: of slices that are lost, in the mean, in [0, 1]; may be traced.
      axis: along which slices lie.
      fill: replacement of a lost slice: "zero"; or "last", the last slice that arrived, as a decoder shows the last
        frame again. Those lost before any has arrived are 0.

    Returns:
      The values, of the same shape and dtype.

    Raises:
      ValueError: if a known ``share`` is outside [0, 1], or ``fill`` is unknown.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> dropped(jnp.arange(1.0, 9.0), jax.random.key(1), 0.5, fill="last").tolist()
      [0.0, 2.0, 2.0, 2.0, 5.0, 6.0, 7.0, 8.0]
    """
    places = jnp.arange(values.shape[axis])
    arrived = jax.random.uniform(key, places.shape, jnp.float32) >= share
    last = jax.lax.cummax(jnp.where(arrived, places, -1)) if fill == "last" else jnp.where(arrived, places, -1)
    previous = jnp.take(values, jnp.maximum(last, 0), axis=axis)
    there = jnp.expand_dims(last >= 0, [place for place in range(values.ndim) if place != axis % values.ndim])
    return jnp.where(there, previous, jnp.zeros((), values.dtype))


def _gaussian(size: int, deviation: float) -> np.ndarray:
    """The matrix (size, size) of the blur of a line, mirrored at its ends."""
    reach = int(REACH * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (steps / deviation) ** 2) if reach else np.ones(1)
    places = (np.arange(size)[:, None] + steps) % (2 * size)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], np.minimum(places, 2 * size - 1 - places)), weights / weights.sum())
    return matrix
