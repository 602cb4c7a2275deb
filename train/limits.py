"""Constraints by name: the table of their factories, their columns for every sample, and their report."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax import constraint_report
from unroll_jax.constrained import Constraint, class_losses, column_means, norm, violations
from unroll_jax.constrained.constraint import without_samples

from .config.constraints import LIMITS
from .config.errors import UserError, option_text
from .task import Batch, Params, Task

Columns = Callable[[Params, Batch, Array], Float[Array, "samples width"]]


class Limit(NamedTuple):
    """A `Constraint` of one column, for each sample: a batch in parts needs a gradient for each sample's row.

    Attributes:
      names: Of the constraints.
      unit: Of the values and of the bound; "" for none.
      constraint: Its value has an entry for each name.
      column: Name of its column.
      columns: ``(params, batch, losses) -> sums`` (samples, names), with counts behind them unless ``affine``. A
        function of the parameters has equal rows.
      affine: True if every sample has the count 1: counts then need no columns.
    """

    names: tuple[str, ...]
    unit: str
    constraint: Constraint
    column: str
    columns: Columns
    affine: bool = True

    @property
    def scale(self) -> float:
        """Size of a violation of 1: the bound, or the unit of violations."""
        return self.constraint.bound or 1.0

    @property
    def width(self) -> int:
        """Number of columns of a sample."""
        return len(self.names) * (1 if self.affine else 2)

    def violations(self, means: Float[Array, "width"]) -> Float[Array, "constraints"]:
        """Violations as shares of the bound: one rate of the multipliers fits all units; 0 without samples."""
        count = len(self.names)
        pair = means[:count], jnp.ones(count, means.dtype) if self.affine else means[count:]
        constraints, sums = {"limit": self.constraint}, {"limit": {self.column: pair}}
        shares = violations(constraints, column_means(sums))["limit"] / self.scale
        return jnp.where(without_samples(constraints, sums)["limit"], 0.0, shares)


def limits_of(task: Any, bounds: Mapping[str, float]) -> list[Limit]:
    """Returns the constraints of names and bounds for a task."""
    return [FACTORIES[name](task, name, LIMITS[name], bound) for name, bound in bounds.items()]


def _norm(task: Any, name: str, unit: str, bound: float) -> Limit:
    constraint = norm(at_most=bound)

    def columns(params: Params, batch: Batch, losses: Array) -> Array:
        moves = task.trained(params)
        trained = params if moves is None else jax.tree.map(lambda leaf, there: leaf if there else None, params, moves)
        size, _ = constraint.columns(trained, batch)["norm"]
        return _alike(jnp.reshape(size, 1), losses)

    return Limit((name,), unit, constraint, "norm", columns)


def _worst_class(task: Any, name: str, unit: str, bound: float) -> Limit:
    if not task.classes:
        raise UserError(f"{option_text('constraints.also', name)} needs a class for each sample, which the task lacks")
    constraint = class_losses(len(task.classes), at_most=bound, labels=lambda labels: labels)

    def columns(params: Params, batch: Batch, losses: Array) -> Array:
        def one(loss: Array, label: Array) -> tuple[Array, Array]:
            return constraint.columns(loss[None], label[None])["classes"]

        return jnp.concatenate(jax.vmap(one)(losses[:, -1], jnp.asarray(task.labels(batch))), axis=1)

    names = tuple(f"{name}/{one}" for one in task.classes)
    return Limit(names, unit, constraint, "classes", columns, affine=False)


def _kl(task: Any, name: str, unit: str, bound: float) -> Limit:
    if task.divergences is None:
        needed = f"a language model that is trained by {option_text('model.lora_rank')}, which keeps its start"
        raise UserError(f"{option_text('constraints.also', name)} needs {needed}")

    def columns(params: Params, batch: Batch, losses: Array) -> Array:
        return task.divergences(params, batch)[:, None]

    return Limit((name,), unit, _mean(bound), "mean", columns)


FACTORIES: dict[str, Callable[..., Limit]] = {"norm": _norm, "worst_class": _worst_class, "kl": _kl}


def own_limit(function: Callable[..., Any], init: Any, losses: Any, batch: Any) -> Limit:
    """Violations of any function of ``(params, batch)`` or ``(params, batch, losses)``, a dict of numbers or arrays.
    Over parts of a batch, their mean counts. Names and shapes come from ``losses(init(key), batch)`` on a batch of
    shapes; nothing is computed. A TypeError if the function does not return a dict of floating numbers."""
    count = len(inspect.signature(function).parameters)

    def of(params: Any, batch: Any, losses: Any) -> Any:
        return function(*(params, batch, losses)[:count])

    def first(batch: Any) -> Any:
        params = init(jax.random.key(0))
        return of(params, batch, losses(params, batch))

    shapes, names = jax.eval_shape(first, batch), list[str]()
    floating = all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(shapes))
    if not (isinstance(shapes, dict) and shapes and floating):
        raise TypeError(f'constraints must return violations by name, as {{"norm": size - 1.0}}, got {shapes}')
    for path, leaf in jax.tree.leaves_with_path(shapes):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        names += [name] if leaf.size == 1 else [f"{name}/{place}" for place in range(leaf.size)]

    def columns(params: Params, batch: Batch, losses: Array) -> Array:
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(of(params, batch, losses))])
        return _alike(flat, losses)

    return Limit(tuple(names), "", _mean(0.0), "mean", columns)


def check_names(names: Sequence[str]) -> None:
    """Raises a `UserError` for two constraints of one name, or an empty name."""
    wrong = sorted({name for name in names if names.count(name) > 1 or not all(name.split("/"))})
    if wrong:
        raise UserError(
            f"constraints must have a name each, got {', '.join(map(repr, wrong))} twice or empty; rename it"
        )


def with_columns(limits: Sequence[Limit], params: Any, batch: Any, losses: Array, counts: Any) -> Array:
    """Losses (samples, layers) with the columns of constraints behind them; ``counts`` weigh samples, None: alike."""
    weights = jnp.ones(()) if counts is None else counts[:, None]
    columns = (weights * limit.columns(params, batch, losses) for limit in limits)
    return jnp.concatenate([losses, *(one.astype(losses.dtype) for one in columns)], axis=1)


def limits_violations(limits: Sequence[Limit], means: Array) -> Float[Array, "constraints"]:
    """The violations of several constraints, from the means of all their columns."""
    ends = itertools.pairwise(itertools.accumulate((limit.width for limit in limits), initial=0))
    parts = [limit.violations(means[slice(*part)]) for limit, part in zip(limits, ends, strict=True)]
    return jnp.concatenate(parts) if parts else jnp.zeros(0, means.dtype)


def limits_report(limits: Sequence[Limit], means: Any, multipliers: Any, *, tolerance: float) -> dict[str, Any]:
    """Value, bound, unit, violation (a share of the bound), multiplier, price (of a unit) and status of each constraint
    by name, and whether all are met."""
    each, rows = limits_violations(limits, jnp.asarray(means)), {}
    places = [(limit, name) for limit in limits for name in limit.names]
    for (limit, name), violation, price in zip(places, np.asarray(each), np.asarray(multipliers), strict=True):
        share, price, bound = float(violation), float(price), limit.constraint.bound
        known = {"value": bound + limit.scale * share, "bound": bound, "unit": limit.unit}
        rows[name] = known | {"violation": share, "multiplier": price, "price": price / limit.scale}
    units = {name: "of its bound" if row["bound"] else "" for name, row in rows.items()}
    shares, prices = ({name: row[key] for name, row in rows.items()} for key in ("violation", "multiplier"))
    report = constraint_report(shares, prices, tolerance=tolerance, units=units)
    for name, group in zip(sorted(rows), report.groups, strict=True):
        rows[name]["status"] = group.status
    return {"limits": rows, "feasible": report.feasible}


def sums_of_columns(task: Task, params: Params, batch: Batch, key: jax.Array) -> Float[Array, "columns_and_one"]:
    """Returns sums over a held-out batch of the columns behind the losses, and the number of losses that count."""
    batch = task.sample_noise(batch, key) if task.num_layers else batch  # of images, augmentation
    samples, counts = task.losses(params, batch, None)[0], task.counts(batch)
    columns = task.training.objective.measured(params, batch, samples, counts)[:, task.num_layers + 1 :]
    return jnp.append(jnp.sum(columns, axis=0), len(samples) if counts is None else jnp.sum(counts))


def _mean(bound: float) -> Constraint:
    return Constraint(lambda rows, batch: {"mean": (jnp.sum(rows), rows.size)}, lambda means: means["mean"], bound)


def _alike(values: Array, losses: Array) -> Array:
    """The same values for every sample."""
    return jnp.broadcast_to(values, (len(losses), values.size))
