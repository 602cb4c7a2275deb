"""What a trained supervised network is worth on a held-out split."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from train.metrics import numbers
from train.processes import fetch
from train.sharding import put_beside
from train.supervised.config import SupervisedConfig
from train.supervised.objective import Scores, counted, scores
from train.supervised.task import Equilibrium, Task
from unroll_jax.certificates.contraction import weight_norm

__all__ = ["SplitScores", "evaluate_supervised", "make_split_scores", "norms_of", "weight_norms"]


class SplitScores(NamedTuple):
    """Over a whole split.

    Attributes:
      loss: cross entropy in nats, mean over the labels that count.
      scores: accuracy and the like.
      matrix: (classes, classes), how often each label (row) was taken for each class.
      equilibrium: means over examples.
      seconds: of computing, per example; compilation is not counted.
    """

    loss: float
    scores: Scores
    matrix: np.ndarray
    equilibrium: Equilibrium
    seconds: float


def make_split_scores(task: Task, data: Any, batch_size: int) -> Callable[[Any, str], SplitScores]:
    """A function ``(params, split) -> SplitScores``, compiled once for each of two batch sizes."""
    measure = jax.jit(task.measure)
    seen: set[int] = set()

    def split_scores(params: Any, split: str) -> SplitScores:
        losses, matrices, equilibria, sizes, weights = [], [], [], [], []
        seconds = timed = 0.0
        for batch in data.examples(split, batch_size=batch_size):
            began = time.perf_counter()
            loss, matrix, equilibrium = fetch(measure(params, put_beside(params, batch)))
            if len(batch.images) in seen:
                seconds, timed = seconds + time.perf_counter() - began, timed + len(batch.images)
            seen.add(len(batch.images))
            losses.append(loss)
            matrices.append(matrix)
            equilibria.append(equilibrium)
            sizes.append(len(batch.images))
            weights.append(int(np.sum(np.asarray(counted(batch.labels)))))
        matrix = np.sum(matrices, axis=0)
        means = Equilibrium(*(np.average(column, weights=sizes) for column in zip(*equilibria, strict=True)))
        per_example = seconds / timed if timed else math.nan
        return SplitScores(float(np.average(losses, weights=weights)), scores(matrix), matrix, means, per_example)

    return split_scores


def norms_of(config: SupervisedConfig, data: Any, params: Any) -> dict[str, float]:
    """`weight_norms` of a run's network on its data; of a network without such weights none."""
    network: Any = config.network  # pyright: ignore[reportAttributeAccessIssue] (every subclass has one)
    if not hasattr(network, "max_norm"):
        return {}
    return weight_norms(params, data.shape[:2], stem=len(network.stem))


def weight_norms(params: Any, image_shape: tuple[int, int], *, stem: int = 0) -> dict[str, float]:
    """Spectral norm of every W of an OptEq layer, as parametrised (before `max_norm` scales it), by its name.

    Convolutions see images of ``image_shape`` halved, and rounded up, by each of ``stem`` strided convolutions.
    """
    found, image_shape = {}, tuple(-(-side // 2**stem) for side in image_shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(getattr(entry, "key", entry)) for entry in path]
        if names[-1] == "W":
            image = image_shape if leaf.ndim == 4 else None
            found[names[-2]] = float(_weight_norm(leaf, image))
    return found


_weight_norm = jax.jit(weight_norm, static_argnums=1)


def evaluate_supervised(config: SupervisedConfig, task: Task, data: Any, params: Any) -> dict[str, Any]:
    """Everything a report needs of one trained network, on the test split; JSON values."""
    found = make_split_scores(task, data, config.batch_size)(params, "test")
    return {
        "seed": config.seed,
        "num_examples": data.num_examples("test"),
        "loss": found.loss,
        **found.scores._asdict(),
        "residual": numbers([found.equilibrium.residual])[0],
        "iterations": numbers([found.equilibrium.iterations])[0],
        "converged": numbers([found.equilibrium.converged])[0],
        "weight_norms": norms_of(config, data, params),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "seconds_an_example": numbers([found.seconds])[0],
        "class_names": list(data.class_names),
        "confusion": found.matrix.tolist(),
    }
