"""Noise and disturbances of inputs; in an evaluation they are the same for every run, method and level."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from unroll_jax.disturbances import blur, dropped, salt_and_pepper

from ..config.disturbances import BLUR, SALT_AND_PEPPER, Disturbance
from ..config.errors import UserError

T = TypeVar("T")
Lose = Callable[[Array, jax.Array, float], Array]

# One seed for all evaluations: noise is drawn once and scaled to each level, so that runs compare like with like.
NOISE_SEED = 20260101


def keyed(batches: Iterable[T]) -> Iterator[tuple[T, jax.Array]]:
    """Yields the batches of an evaluation, each with the key of its noise."""
    for index, batch in enumerate(batches):
        yield batch, jax.random.fold_in(jax.random.key(NOISE_SEED), index)


def to_unit(pixels: UInt8[Array, "..."] | UInt8[np.ndarray, "..."], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """Converts pixels from 0..255 to floats in [0, 1]."""
    return jnp.asarray(pixels).astype(dtype) / 255.0


def token_deviation(counts: np.ndarray, means: np.ndarray, squares: np.ndarray) -> float:
    """Standard deviation of an entry of the embeddings of tokens: the unit of the noise on them.

    Args:
      counts: Number of each token.
      means: Mean of the entries of each token's embedding.
      squares: Mean of their squares.

    Raises:
      UserError: if it is 0, as noise in its unit would be 0 too.
    """
    shares = counts / counts.sum()
    variance = float(shares @ squares) - float(shares @ means) ** 2
    if not variance > 0.0:
        raise UserError("all given embeddings of train tokens are one number, so noise would be 0; give others")
    return math.sqrt(variance)


def gaussian(key: jax.Array, shape: tuple[int, ...], variance: float | Array, dtype: Any = jnp.float32) -> Array:
    """Draws centred Gaussian noise of a variance."""
    return jnp.sqrt(jnp.asarray(variance, dtype)) * jax.random.normal(key, shape, dtype)


def add_noise(clean: Float[Array, "..."], variance: float | Array, key: jax.Array) -> Float[Array, "..."]:
    """Adds centred Gaussian noise of a variance."""
    return clean + gaussian(key, clean.shape, variance, clean.dtype)


def disturbed(
    clean: Float[Array, "*shape"],
    noise: Any,
    disturbance: Disturbance,
    key: jax.Array,
    *,
    axes: tuple[int, int] = (-2, -1),
    lose: Lose = dropped,
) -> Float[Array, "*shape"]:
    """Disturbs one example in the order of a camera: blur comes before the sensor's noise, the others after it.

    Args:
      clean: Pixels in [0, 1], which are the values of pepper and of salt.
      noise: Noise of the shape of an example, or 0.
      disturbance: Kind and size of the disturbance.
      key: Key of the draw.
      axes: Axes of a picture, along which it is blurred.
      lose: ``(example, key, share) -> example`` that has lost a share; by default, slices of the first axis become 0.
    """
    if disturbance.name == BLUR:
        return blur(clean, disturbance.size, axes=axes) + noise
    change = salt_and_pepper if disturbance.name == SALT_AND_PEPPER else lose
    return change(clean + noise, key, disturbance.size)
