"""What supervised networks are trained and judged by: cross entropy and the confusion matrix, over what counts."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from train.data.pictures import NOT_COUNTED

__all__ = ["Scores", "confusion", "counted", "mean_cross_entropy", "scores"]


class Scores(NamedTuple):
    """Shares in [0, 1], from a confusion matrix.

    Attributes:
      accuracy: share of all that is right: of images, or of pixels (aAcc).
      class_accuracy: mean over classes of the share of a class that is right (mAcc); classes that do not occur are
        left out.
      intersection_over_union: mean over classes of what is both over what is either (mIoU); classes that neither occur
        nor are predicted are left out.
    """

    accuracy: float
    class_accuracy: float
    intersection_over_union: float


def counted(labels: Int[Array, "*places"]) -> Bool[Array, "*places"]:
    """Which labels count."""
    return labels != NOT_COUNTED


def mean_cross_entropy(logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]) -> Float[Array, ""]:
    """-log p(label), in nats, the mean over the labels that count; 0 where none does."""
    counts = counted(labels)
    known = jnp.where(counts, labels, 0).astype(jnp.int32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), known)
    return jnp.sum(jnp.where(counts, losses, 0.0)) / jnp.maximum(jnp.sum(counts), 1)


def confusion(logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]) -> Int[Array, "classes classes"]:
    """How often each label (row) was taken for each class (column)."""
    classes = logits.shape[-1]
    pairs = labels.astype(jnp.int32) * classes + jnp.argmax(logits, axis=-1)
    beyond = classes**2  # a place of its own for what does not count
    counts = jnp.bincount(jnp.where(counted(labels), pairs, beyond).ravel(), length=beyond + 1)
    return counts[:beyond].reshape(classes, classes)


def scores(matrix: Any) -> Scores:
    """What a confusion matrix (label, prediction) says."""
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
