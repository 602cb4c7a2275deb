"""Disturbances of frames other than Gaussian noise: salt and pepper, blur, and lost frames."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

REACH = 4.0  # of the Gaussian, in deviations, beyond which it counts as 0; that of scipy.ndimage


def salt_and_pepper(
    frames: Float[Array, "frames height width"], key: jax.Array, share: float
) -> Float[Array, "frames height width"]:
    """Replaces a share of the pixels, in the mean, by 0 or 1, either equally often."""
    # float32 draws never reach 1, so a share of 1 replaces everything.
    drawn = jax.random.uniform(key, frames.shape, jnp.float32)
    return jnp.where(drawn < share, jnp.where(drawn < 0.5 * share, 0.0, 1.0).astype(frames.dtype), frames)


def blur(frames: Float[Array, "frames height width"], deviation: float) -> Float[Array, "frames height width"]:
    r"""Blurs each frame by a Gaussian, :math:`y_i = \sum_j w_{i-j} x_j, w_k \propto e^{-k^2 / 2 s^2}`, along both axes.

    Beyond its edges a frame is mirrored, the pixel at the edge twice. It equals `scipy.ndimage.gaussian_filter` with
    its usual ``mode="reflect"`` and ``truncate=4``.

    Args:
      frames: of any number of frames.
      deviation: s, in pixels.
    """
    for axis in (-2, -1):
        matrix = jnp.asarray(_gaussian(frames.shape[axis], deviation), frames.dtype)
        turned = jnp.matmul(jnp.moveaxis(frames, axis, -1), matrix.T, precision="highest")
        frames = jnp.moveaxis(turned, -1, axis)
    return frames


def dropped(
    frames: Float[Array, "frames height width"], key: jax.Array, share: float
) -> Float[Array, "frames height width"]:
    """Replaces a share of the frames, in the mean, by the last one that arrived; before any has arrived, by 0."""
    places = jnp.arange(frames.shape[0])
    arrived = jax.random.uniform(key, places.shape, jnp.float32) >= share
    last = jax.lax.cummax(jnp.where(arrived, places, -1))
    previous = jnp.take(frames, jnp.maximum(last, 0), axis=0)
    return jnp.where((last >= 0)[:, None, None], previous, jnp.zeros((), frames.dtype))


def _gaussian(size: int, deviation: float) -> np.ndarray:
    """The matrix (size, size) of the blur of a line, mirrored at its ends."""
    reach = int(REACH * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (steps / deviation) ** 2)
    places = (np.arange(size)[:, None] + steps) % (2 * size)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], np.minimum(places, 2 * size - 1 - places)), weights / weights.sum())
    return matrix
