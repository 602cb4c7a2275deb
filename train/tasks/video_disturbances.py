"""RMSE of video whose whole frames are disturbed: blur crosses patches, and a frame is lost at all of their places."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unroll_jax.disturbances import dropped

from ..config.disturbances import Disturbance
from ..config.video import VideoRunConfig
from ..data.video import frames_from, patch_sequences
from ..task import Params, Row
from .common import NOISE_SEED, on_batches
from .disturbances import disturbance_figures, disturbed
from .video_noise import BATCH_SIZE, to_unit

Losses = Callable[[Params, Array, Array], Array]


def video_disturbances(config: VideoRunConfig, data: Any, losses: Losses, rmse: Any, params: Params) -> Row:
    """RMSE on the test split by disturbance, of the last layer and of the input, at the noise of training.

    A lost frame shows the last one that arrived, as decoders do.

    Args:
      config: with the disturbances.
      data: a `train.data.video.VideoData`.
      losses: ``(params, noisy, clean) -> (2, samples)``, of the input and of the last layer, from sequences in [0, 1].
      rmse: of losses of one layer.
      params: of the model.
    """
    variance = config.train_gamma * data.pixel_std

    @functools.cache
    def layers(one: Disturbance) -> np.ndarray:
        disturb = _disturbing(data, one, variance)
        measure = on_batches(lambda params, batch: losses(params, *disturb(*batch)))
        return np.concatenate([measure(params, batch) for batch in _windows(data)], axis=1)

    words = config.test_disturbances
    of_input = disturbance_figures(words, "rmse", lambda one: rmse(layers(one)[0]))
    return {
        **disturbance_figures(words, "rmse", lambda one: rmse(layers(one)[-1])),
        **{f"input_{name}": figures for name, figures in of_input.items()},
    }


def _disturbing(data: Any, one: Disturbance, variance: float) -> Callable[[Array, Array], tuple[Array, Array]]:
    """``(sequences of whole windows, numbers of the windows) -> (noisy, clean)``, in [0, 1]."""
    side, size = math.isqrt(data.token_dim), (data.frame_side, data.frame_side)
    lose = functools.partial(dropped, fill="last")

    def window(sequences: Any, number: Array) -> Any:
        of_noise, of_loss = jax.random.split(jax.random.fold_in(jax.random.key(NOISE_SEED), number))
        frames = frames_from(sequences, size, side=side)
        noise = math.sqrt(variance) * jax.random.normal(of_noise, frames.shape)
        noisy: Any = disturbed(jnp.asarray(frames), noise, one, of_loss, lose=lose)
        return patch_sequences(noisy, side=side)

    def disturb(batch: Array, numbers: Array) -> tuple[Array, Array]:
        clean = to_unit(batch)
        noisy = jax.vmap(window)(clean.reshape(len(numbers), -1, *clean.shape[1:]), numbers)
        return noisy.reshape(clean.shape), clean

    return disturb


def _windows(data: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The sequences of several whole windows of the test split, which follow each other, and their numbers."""
    positions, first = (data.frame_side // math.isqrt(data.token_dim)) ** 2, 0
    for batch in data.examples("test", batch_size=max(BATCH_SIZE // positions, 1) * positions):
        count = len(batch) // positions
        yield batch, np.arange(first, first + count, dtype=np.int32)
        first += count
