"""Constraints by name: the table of their factories, and their columns on held-out data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.constrained.bounded_means import (
    BoundedMeans,
    bounded_class_losses,
    bounded_norm,
    bounded_rows,
)

from .config.constraints import LIMITS
from .config.errors import UserError, option_text
from .task import Batch, Params, Task


def limits_of(task: Any, bounds: Mapping[str, float]) -> list[BoundedMeans]:
    """Returns the constraints of names and bounds for a task."""
    return [FACTORIES[name](task, name, unit=LIMITS[name], at_most=bound) for name, bound in bounds.items()]


def _norm(task: Any, name: str, **options: Any) -> BoundedMeans:
    def trained(params: Any) -> Any:
        moves = task.trained(params)
        return params if moves is None else jax.tree.map(lambda leaf, there: leaf if there else None, params, moves)

    return bounded_norm(name, of=trained, **options)


def _worst_class(task: Any, name: str, **options: Any) -> BoundedMeans:
    if not task.classes:
        raise UserError(f"{option_text('constraints.also', name)} needs a class for each sample, which the task lacks")
    return bounded_class_losses(name, labels=task.labels, class_names=task.classes, **options)


def _kl(task: Any, name: str, **options: Any) -> BoundedMeans:
    if task.divergences is None:
        needed = f"a language model that is trained by {option_text('model.lora_rank')}, which keeps its start"
        raise UserError(f"{option_text('constraints.also', name)} needs {needed}")
    return bounded_rows(name, rows=task.divergences, **options)


FACTORIES: dict[str, Callable[..., BoundedMeans]] = {"norm": _norm, "worst_class": _worst_class, "kl": _kl}


def sums_of_columns(task: Task, params: Params, batch: Batch, key: jax.Array) -> Float[Array, "columns_and_one"]:
    """Returns sums over a held-out batch of the columns behind the losses, and the number of losses that count."""
    batch = task.sample_noise(batch, key) if task.num_layers else batch  # of images, augmentation
    samples, counts = task.losses(params, batch, None)[0], task.counts(batch)
    columns = task.training.objective.measured(params, batch, samples, counts)[:, task.num_layers + 1 :]
    return jnp.append(jnp.sum(columns, axis=0), len(samples) if counts is None else jnp.sum(counts))


def means_of_columns(sums: Callable[..., Any], params: Params, batches: Iterable[tuple[Batch, Any]]) -> np.ndarray:
    """Returns means of the columns over batches, each with the key of its noise."""
    total = np.sum([sums(params, batch, key) for batch, key in batches], axis=0, dtype=np.float64)
    return total[:-1] / total[-1]
