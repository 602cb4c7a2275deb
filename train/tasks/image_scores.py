"""Scores of classifiers: cross entropy, and shares from a confusion matrix."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from ..data.pictures import NOT_COUNTED


class Scores(NamedTuple):
    """Shares in [0, 1], from a confusion matrix.

    Attributes:
      accuracy: Share of images, or of pixels (aAcc), that are right.
      class_accuracy: Mean over classes of the share of a class that is right (mAcc), without classes that do not occur.
      intersection_over_union: Mean over classes of the intersection of labels and predictions over their union (mIoU),
        without classes that neither occur nor are predicted.
    """

    accuracy: float
    class_accuracy: float
    intersection_over_union: float


class Label(NamedTuple):
    """The most probable class of an image, and the probabilities of all, (classes,)."""

    label: str
    probabilities: np.ndarray


class SplitScores(NamedTuple):
    """Over a whole split.

    Attributes:
      loss: Cross entropy in nats, mean over the labels that count.
      scores: Accuracy and other shares.
      matrix: (classes, classes), how often each label (row) was taken for each class.
      solve: Means over examples of the solve; NaN for a network without an equilibrium.
      seconds: Seconds of computing per example, without compilation.
    """

    loss: float
    scores: Scores
    matrix: np.ndarray
    solve: dict[str, Any]
    seconds: float


def counted(labels: Int[Array, "*places"]) -> Bool[Array, "*places"]:
    """True at labels that count."""
    return labels != NOT_COUNTED


def cross_entropies(logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]) -> Float[Array, "*places"]:
    """-log p(label), in nats; 0 where a label does not count."""
    counts = counted(labels)
    known = jnp.where(counts, labels, 0).astype(jnp.int32)
    return jnp.where(counts, optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), known), 0.0)


def mean_cross_entropy(logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]) -> Float[Array, ""]:
    """The mean over the labels that count; 0 if none does."""
    return jnp.sum(cross_entropies(logits, labels)) / jnp.maximum(jnp.sum(counted(labels)), 1)


def confusion(logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]) -> Int[Array, "classes classes"]:
    """Counts how often each label (row) was taken for each class (column)."""
    classes = logits.shape[-1]
    pairs = labels.astype(jnp.int32) * classes + jnp.argmax(logits, axis=-1)
    beyond = classes**2  # the place of labels that do not count
    counts = jnp.bincount(jnp.where(counted(labels), pairs, beyond).ravel(), length=beyond + 1)
    return counts[:beyond].reshape(classes, classes)


def scores(matrix: Any) -> Scores:
    """Returns the scores of a confusion matrix (label, prediction)."""
    matrix = np.asarray(matrix, np.float64)
    right, of_label, of_prediction = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    either = of_label + of_prediction - right
    return Scores(
        accuracy=float(right.sum() / max(matrix.sum(), 1.0)),
        class_accuracy=_mean_where(right, of_label),
        intersection_over_union=_mean_where(right, either),
    )


def _mean_where(above: np.ndarray, below: np.ndarray) -> float:
    there = below > 0.0
    return float(np.mean(above[there] / below[there])) if there.any() else 0.0
