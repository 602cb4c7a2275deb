"""The video training step that benchmarks measure, on random frames."""

from typing import Any, NamedTuple

import jax
import numpy as np

from train.video.config import ModelConfig, VideoConfig
from train.video.state import TrainState, init_state, make_step
from train.video.task import video_task

__all__ = ["FRAMES", "compiled_step", "matmul_flops", "random_batch", "training_step"]


class Frames(NamedTuple):
    """The shape of the video data: 16 x 16 patches through 20 frames."""

    pixel_std: float = 0.25
    num_tokens: int = 20
    token_dim: int = 256

    def num_sequences(self, split: str) -> int:
        """As many as make every step an epoch: nothing that is measured depends on it."""
        del split
        return 1


FRAMES = Frames()


def training_step(method: str, num_layers: int) -> tuple[Any, TrainState, np.ndarray]:
    """The jitted training step of a method at a depth, its first state and a batch."""
    config = VideoConfig(method=method, model=ModelConfig(num_layers=num_layers))  # type: ignore[arg-type]
    task = video_task(config, FRAMES)
    return make_step(config, task), init_state(config, task), random_batch(config.batch_size)


def compiled_step(method: str, num_layers: int) -> tuple[jax.stages.Compiled, TrainState, np.ndarray]:
    """The same, compiled."""
    step, state, batch = training_step(method, num_layers)
    return step.lower(state, batch).compile(), state, batch


def random_batch(batch_size: int) -> np.ndarray:
    """Random frames, uint8 (batch, frames, pixels)."""
    shape = (batch_size, FRAMES.num_tokens, FRAMES.token_dim)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def matmul_flops(num_layers: int, batch_size: int) -> float:
    """Matrix-product operations of one training step: three d x d products and two with T x T a layer, three times
    (forward, and two products backward for each)."""
    tokens, dim, frames = batch_size * FRAMES.num_tokens, FRAMES.token_dim, FRAMES.num_tokens
    forward = 2.0 * tokens * (3 * dim * dim + 2 * frames * dim)
    return 3.0 * num_layers * forward
