"""Readings of a text by the layers of a text classifier."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax.disturbances import dropped

from ..data.tokens import TokenBatch


class Reading(NamedTuple):
    """The reading of every text of a batch by one layer, or by every layer: leading axes as they come.

    Attributes:
      losses: cross entropy in nats.
      entropies: of the predicted probabilities, in nats.
      predictions: the most probable class.
    """

    losses: Any
    entropies: Any
    predictions: Any


class SplitReading(NamedTuple):
    """Every layer on a whole split at one strength of noise: arrays (N, L + 1) as in `Reading`, and labels (N,)."""

    losses: np.ndarray
    entropies: np.ndarray
    predictions: np.ndarray
    labels: np.ndarray

    def accuracies(self) -> np.ndarray:
        """(L + 1,) share of the texts that each layer is right about."""
        return np.mean(self.predictions == self.labels[:, None], axis=0)


class Prediction(NamedTuple):
    """The prediction of a classifier for one text.

    Attributes:
      text: the text, or of a pair the first.
      label: the most probable class of the last layer.
      probabilities: of the classes by layer, (L + 1, classes).
      class_names: of the classes.
    """

    text: str
    label: str
    probabilities: np.ndarray
    class_names: tuple[str, ...]


def read_sample(logits: Float[Array, "batch classes"], labels: Any) -> Reading:
    """Reads every text from a layer's logits."""
    logs = jax.nn.log_softmax(logits)
    entropies = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    return Reading(cross_entropy(logits, labels), entropies, jnp.argmax(logits, axis=-1))


def cross_entropy(logits: Float[Array, "batch classes"], labels: Any) -> Float[Array, "batch"]:
    """-log p(label), in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def lose_tokens(batch: TokenBatch, key: jax.Array, share: Array) -> TokenBatch:
    """The batch with a share of every text's tokens masked out; the first one stays, for readouts that see it alone."""
    whole = jnp.ones(batch.tokens.shape[1:])
    keys = jax.random.split(key, len(batch.tokens))
    arrived = jax.vmap(lambda row_key: dropped(whole, row_key, share))(keys) > 0.0
    return batch._replace(mask=batch.mask & arrived.at[:, 0].set(True))


def draw_noise(key: jax.Array, batch: TokenBatch, dim: int, variance: float | Array) -> Float[Array, "batch n dim"]:
    """Centred Gaussian noise of this variance for every token of a batch, padding included."""
    return jnp.sqrt(jnp.asarray(variance, jnp.float32)) * jax.random.normal(key, (*batch.tokens.shape, dim))
