"""The noise of video, and the batches of an evaluation: models of one kind of sample meet the same draws."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from .common import NOISE_SEED

# Sequences a batch of the evaluation: no gradient is kept, so more fit than in training.
BATCH_SIZE = 250


def to_unit(batch: UInt8[Array, "..."], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """Pixels 0..255 as floats in [0, 1]."""
    return batch.astype(dtype) / 255.0


def add_noise(clean: Float[Array, "..."], variance: float | Array, key: jax.Array) -> Float[Array, "..."]:
    """``clean`` plus centred Gaussian noise of the given variance."""
    return clean + jnp.sqrt(jnp.asarray(variance, clean.dtype)) * jax.random.normal(key, clean.shape, clean.dtype)


def keyed_batches(data: Any, split: str) -> Iterator[tuple[np.ndarray, jax.Array]]:
    """The batches of a whole split in order, each with the key of its noise: uint8 (batch, frames, pixels)."""
    for index, batch in enumerate(data.examples(split, batch_size=BATCH_SIZE)):
        key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
        yield batch, key
