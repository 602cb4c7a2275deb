"""The video training step that benchmarks measure, on random frames."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from unroll_jax.train.config.video import ModelConfig, VideoConfig
from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.step import TrainState, init_state, jit_step
from unroll_jax.train.tasks.video import VideoTask

__all__ = ["FRAMES", "Frames", "random_batch", "training_step"]


class Frames(NamedTuple):
    """Random frames, cut as the video data: 16 x 16 patches through 20 frames."""

    spec: VideoSpec = VideoSpec(pixel_std=0.25)

    def num_examples(self, split: str) -> int:
        """More than any batch: nothing that is measured depends on it."""
        del split
        return 1 << 20

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """The same random frames in every step."""
        del split, seed, start_step
        batch = random_batch(batch_size)
        return itertools.repeat(batch if rows is None else batch[rows])

    def examples(self, split: str, *, batch_size: int) -> Iterator[np.ndarray]:
        """None: nothing is evaluated."""
        del split, batch_size
        return iter(())


FRAMES = Frames()


def training_step(method: str, num_layers: int) -> tuple[jax.stages.Wrapped, TrainState, np.ndarray]:
    """The jitted training step of a method at a depth, its first state and a batch."""
    config = VideoConfig(method=method, mesh="data=1", model=ModelConfig(num_layers=num_layers))  # type: ignore[arg-type]
    task = VideoTask(config, FRAMES)
    return jit_step(task), init_state(task), next(task.batches(0, None))


def random_batch(batch_size: int) -> np.ndarray:
    """Random frames, uint8 (batch, frames, pixels)."""
    shape = (batch_size, FRAMES.spec.num_tokens, FRAMES.spec.token_dim)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
