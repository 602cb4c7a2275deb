"""One type of constraint: sums over samples, a value of their means, and a bound."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from unroll_jax.arguments import require
from unroll_jax.constrained import trees

__all__ = [
    "Constraint",
    "batch_violations",
    "column_means",
    "column_sums",
    "violations",
    "without_samples",
]

Sums = dict[str, dict[str, tuple[Array, Array]]]
Means = Mapping[str, Mapping[str, Array]]


class Constraint(NamedTuple):
    r"""A bound on a function of means over samples, :math:`v(m) - b \le 0` or
    :math:`v(m) - b = 0`.

    Sums and counts of samples add exactly over batches, their parts and devices. A
    function of parameters has count 1.

    Attributes:
      columns: ``(outputs, batch) -> {name: (sum, count)}``, the sums over the samples
        of a batch.
      value: ``{name: mean} -> value``, an array or a pytree of arrays.
      bound: b, a number, or one for each entry of the value.
      equality: True for an equality.
      strict: as ``columns``, for the exact value if the columns are a smooth surrogate
        of it; None if they are exact.

    Source: two functions for a constraint without a useful gradient are the proxy
    constraints of Cotter et al., "Two-player games for efficient non-convex constrained
    optimization" (2019).

    Example:
      >>> import jax.numpy as jnp
      >>> size = Constraint(
      ...     lambda x, batch: {"size": (jnp.sum(x), x.size)},
      ...     lambda means: means["size"],
      ...     bound=1.0,
      ... )
      >>> sums = column_sums({"size": size}, jnp.array([1.0, 4.0]), None)
      >>> float(violations({"size": size}, column_means(sums))["size"])
      1.5
    """

    columns: Callable[[Any, Any], Mapping[str, tuple[Any, Any]]]
    value: Callable[[Mapping[str, Array]], PyTree]
    bound: Any
    equality: bool = False
    strict: Callable[[Any, Any], Mapping[str, tuple[Any, Any]]] | None = None


def column_sums(
    constraints: Mapping[str, Constraint],
    outputs: Any,
    batch: Any,
    *,
    strict: bool = False,
) -> Sums:
    """Sums over the samples of a batch and their counts,
    ``{constraint: {column: (sum, count)}}``.

    ``jax.tree.map(jnp.add, one, other)`` adds the sums of batches.

    Args:
      constraints: constraints by name.
      outputs, batch: outputs of the model and the batch, as the constraints take them.
      strict: take the exact columns of constraints that have them.

    Returns:
      Sums and counts in at least float32. A ValueError names a known negative count, or
      one not shaped as its sum.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> mean = Constraint(
      ...     lambda x, batch: {"x": (jnp.sum(x), x.size)},
      ...     lambda means: means["x"],
      ...     bound=0.0,
      ... )
      >>> parts = [
      ...     column_sums({"mean": mean}, x, None) for x in (jnp.ones(3), jnp.zeros(1))
      ... ]
      >>> float(column_means(jax.tree.map(jnp.add, *parts))["mean"]["x"])
      0.75
    """
    _check_constraints(constraints)
    sums: Sums = {}
    for name, constraint in constraints.items():
        columns = (
            constraint.strict
            if strict and constraint.strict is not None
            else constraint.columns
        )
        pairs = columns(outputs, batch)
        sums[name] = {
            column: _pair(f"{name}/{column}", pair) for column, pair in pairs.items()
        }
    return sums


def column_means(sums: Sums) -> dict[str, dict[str, Array]]:
    """Means of `column_sums`, ``{constraint: {column: mean}}``; NaN over no sample.

    Example: see `column_sums`.
    """
    return _means(sums, empty=jnp.nan)


def violations(
    constraints: Mapping[str, Constraint], means: Means
) -> dict[str, PyTree]:
    """Violations by name, value minus bound; NaN where a value is not defined, such as
    a mean over no sample.

    Args:
      constraints, means: constraints by name, and their columns' means, of
        `column_means`.

    Returns:
      ``{constraint: violation}`` of the values' structures and shapes. A ValueError
      says if means have other names, two violations have one name, or a bound is not
      finite or does not fit.

    Example: see `Constraint`.
    """
    _check_constraints(constraints)
    require(
        set(means) == set(constraints),
        "means",
        f"have the names {sorted(constraints)}",
        sorted(means),
    )
    excesses = {
        name: _excess(name, one, means[name]) for name, one in constraints.items()
    }
    trees.leaf_names("constraints", excesses)
    return excesses


def batch_violations(
    constraints: Mapping[str, Constraint], outputs: Any, batch: Any
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Violations of a batch for a step of training: smooth ones for the Lagrangian,
    exact ones for the multipliers.

    A violation that depends on a mean over no sample is 0 in both, and has no gradient:
    the batch says nothing of it.

    Args:
      constraints, outputs, batch: as in `column_sums`.

    Returns:
      ``(smooth, strict)``; no gradient flows to the strict ones.

    Example:
      >>> import jax.numpy as jnp
      >>> mean = Constraint(
      ...     lambda x, batch: {"x": (jnp.sum(x), x.size)},
      ...     lambda means: means["x"],
      ...     bound=2.0,
      ... )
      >>> [
      ...     float(each["mean"])
      ...     for each in batch_violations({"mean": mean}, jnp.array([3.0, 4.0]), None)
      ... ]
      [1.5, 1.5]
    """

    def of(strict: bool) -> dict[str, PyTree]:
        sums = column_sums(constraints, outputs, batch, strict=strict)
        # a gradient of the value at NaN would be NaN
        known = violations(constraints, _means(sums, empty=1.0))
        return jax.tree.map(
            lambda c, none: jnp.where(none, 0.0, c),
            known,
            without_samples(constraints, sums),
        )

    smooth = of(False)
    exact = (
        smooth if all(one.strict is None for one in constraints.values()) else of(True)
    )
    return smooth, jax.lax.stop_gradient(exact)


def without_samples(
    constraints: Mapping[str, Constraint], sums: Sums
) -> dict[str, PyTree]:
    """Marks the violations that are NaN because a column has no sample."""

    def values(empty: float) -> dict[str, PyTree]:
        means = jax.tree.map(jax.lax.stop_gradient, _means(sums, empty=empty))
        return {
            name: constraint.value(means[name])
            for name, constraint in constraints.items()
        }

    return jax.tree.map(
        lambda gone, there: jnp.isnan(gone) & ~jnp.isnan(there),
        values(jnp.nan),
        values(1.0),
    )


def _check_constraints(constraints: Any) -> None:
    sound = isinstance(constraints, Mapping) and constraints
    sound = sound and all(
        isinstance(name, str) and isinstance(one, Constraint)
        for name, one in constraints.items()
    )
    if not sound:
        raise ValueError(
            f"constraints must be one Constraint or more by name, got {constraints!r}"
        )
    for name, one in constraints.items():
        for field in ("columns", "value"):
            trees.check_function(
                f"{field} of {name}", getattr(one, field), f"rate(at_most=0.1).{field}"
            )


def _pair(name: str, pair: Any) -> tuple[Array, Array]:
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise ValueError(f"column {name} must be (sum, count), got {pair!r}")
    total, count = (
        trees.wide(f"sum of {name}", pair[0]),
        jax.lax.stop_gradient(trees.wide(f"count of {name}", pair[1])),
    )
    trees.check_matching(f"count of {name}", count, total, of="its sum")
    trees.check_known(
        f"count of {name}", count, lambda number: ~(number < 0.0), "at least 0"
    )
    return total, count


def _means(sums: Sums, *, empty: float) -> dict[str, dict[str, Array]]:
    """Means of columns, ``empty`` over no sample."""

    def mean(total: Array, count: Array) -> Array:
        value = jnp.where(
            count > 0.0, total / jnp.where(count > 0.0, count, 1.0), jnp.nan
        )
        return jnp.where(count == 0.0, empty, value)

    return {
        name: {column: mean(*pair) for column, pair in columns.items()}
        for name, columns in sums.items()
    }


def _excess(name: str, constraint: Constraint, means: Mapping[str, Array]) -> PyTree:
    values = trees.as_violations(f"value of {name}", constraint.value(means))
    trees.check_known(f"bound of {name}", constraint.bound, np.isfinite, "finite")
    bounds = trees.broadcast_option(f"bound of {name}", constraint.bound, values)
    return jax.tree.map(
        lambda v, bound: v - jnp.asarray(bound, v.dtype), values, bounds
    )
