"""Scores of classifiers: cross entropy, shares from a confusion matrix, and norms of their weights."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.certificates.weights import weight_norm, weight_norm_bound

from ..data.pictures import NOT_COUNTED


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


class Label(NamedTuple):
    """The most probable class of an image, and the probabilities of all, (classes,)."""

    label: str
    probabilities: np.ndarray


class SplitScores(NamedTuple):
    """Over a whole split.

    Attributes:
      loss: cross entropy in nats, mean over the labels that count.
      scores: accuracy and the like.
      matrix: (classes, classes), how often each label (row) was taken for each class.
      solve: means over examples of the solve; NaN for a network without an equilibrium.
      seconds: of computing, per example; compilation is not counted.
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
    beyond = classes**2  # a place of its own for what does not count
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


def weight_norms(
    params: Any, image_shape: tuple[int, int], *, stem: int = 0, certified: bool = False
) -> dict[str, float]:
    """Spectral norm of every W of an OptEq layer, as parametrised (before `max_norm` scales it), by its name.

    Convolutions see images of ``image_shape`` halved, and rounded up, by each of ``stem`` strided convolutions. From
    below, by power iteration; ``certified`` gives upper bounds, which `max_norm` divides by.
    """
    norms, image_shape = {}, tuple(-(-side // 2**stem) for side in image_shape)
    size = _weight_norm_bound if certified else _weight_norm
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(getattr(entry, "key", entry)) for entry in path]
        if names[-1] == "W":
            norms[names[-2]] = float(size(leaf, image_shape if leaf.ndim == 4 else None))
    return norms


_weight_norm = jax.jit(weight_norm, static_argnums=1)
_weight_norm_bound = jax.jit(weight_norm_bound, static_argnums=1)
