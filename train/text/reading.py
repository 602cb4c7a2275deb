"""Every layer on a whole split: losses, entropies and predictions of every text."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from train.processes import fetch
from train.sharding import put_beside
from train.text.material import TextMaterial
from train.text.task import Reading, Task, draw_noise, read_sample

__all__ = ["SplitReading", "make_split_reading"]

# Texts a batch of the evaluation: no gradient is kept, so more fit than in training.
BATCH_SIZE = 128
# The noise of the evaluation is the same for every run, method and level (scaled), so that runs compare like with like.
NOISE_SEED = 20260101


class SplitReading(NamedTuple):
    """Every layer on a whole split at one strength of noise.

    Attributes:
      losses: (N, L + 1) cross entropies in nats.
      entropies: (N, L + 1) of the predicted probabilities, in nats.
      predictions: (N, L + 1) the most probable classes.
      labels: (N,).
    """

    losses: np.ndarray
    entropies: np.ndarray
    predictions: np.ndarray
    labels: np.ndarray

    def accuracies(self) -> np.ndarray:
        """(L + 1,) share of the texts that each layer is right about."""
        return np.mean(self.predictions == self.labels[:, None], axis=0)


def make_split_reading(task: Task, material: TextMaterial) -> Callable[[Any, str, float], SplitReading]:
    """A function ``(params, split, gamma) -> SplitReading``, compiled once for each length of batch."""

    @jax.jit
    def read(params: Any, batch: Any, variance: jax.Array, key: jax.Array) -> Reading:
        noise = draw_noise(key, batch, task.model.dim, variance)
        return task.outputs(params, batch, noise, lambda logits: read_sample(logits, batch.labels))

    def split_reading(params: Any, split: str, gamma: float) -> SplitReading:
        parts, labels, variance = [], [], np.float32(task.variance(gamma))
        for index, batch in enumerate(material.tokens.examples(split, batch_size=BATCH_SIZE)):
            key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
            parts.append(fetch(read(params, put_beside(params, batch), variance, key)))
            labels.append(batch.labels)
        joined = (np.concatenate(column, axis=1).T for column in zip(*parts, strict=True))
        return SplitReading(*joined, labels=np.concatenate(labels))

    return split_reading
