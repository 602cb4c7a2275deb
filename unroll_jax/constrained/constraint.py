"""One type of constraint: sums over samples, a value of their means, and a bound."""

from collections import defaultdict
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
    "mark_absent",
    "violations",
]

# a known count is an array of NumPy
Sums = dict[str, dict[str, tuple[Array, Array | np.ndarray]]]
Means = Mapping[str, Mapping[str, Array]]


class Constraint(NamedTuple):
    r"""A bound on a function of means over samples, an inequality or an equality.

    .. math:: v(m) \le b \quad \text{or} \quad v(m) = b .

    The violation is :math:`(v(m) - b) / s`. With the bound as the scale s it is a share
    of the bound: one rate of the multipliers then serves losses of .06 and of 110. Sums
    and counts of samples add exactly over batches, their parts and devices. A function
    of parameters has count 1.

    Attributes:
      columns: ``(outputs, batch) -> {name: (sum, count)}``, the sums over the samples
        of a batch.
      value: ``{name: mean} -> value``, an array or a pytree of arrays.
      bound: b, a number, one for each entry of the value, or a function as ``value``.
      equality: True for an equality.
      strict: as ``columns``, for the exact value if the columns are a smooth surrogate
        of it. None if they are exact.
      scale: s > 0, as ``bound``. Infinite where there is nothing to bound.

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
    scale: Any = 1.0


class SharedColumns(NamedTuple):
    """The columns of one of several constraints, which `column_sums` computes once for
    all of them.

    A program has one sum of all layer losses in this way, not one for each layer, which
    takes longer to compile.

    Attributes:
      at: ``(places, outputs, batch) -> {place: columns}``, of the constraints at some
        places in their order.
      place: that of this constraint, from 0.
    """

    at: Callable[..., Mapping[int, Mapping[str, tuple[Any, Any]]]]
    place: int

    def __call__(self, outputs: Any, batch: Any) -> Mapping[str, tuple[Any, Any]]:
        """Returns the columns of this constraint."""
        return self.at([self.place], outputs, batch)[self.place]


def column_sums(
    constraints: Mapping[str, Constraint],
    outputs: Any,
    batch: Any,
    *,
    strict: bool = False,
) -> Sums:
    """Returns the sums over the samples of a batch, and their counts.

    ``jax.tree.map(jnp.add, one, other)`` adds the sums of batches.

    Args:
      constraints: constraints by name.
      outputs, batch: outputs of the model and the batch, as the constraints take them.
      strict: take the exact columns of constraints that have them, as a report on
        held-out data must. They have no gradient.

    Returns:
      ``{constraint: {column: (sum, count)}}`` in at least float32. A ValueError names a
      known negative count, or a count of another shape than its sum.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> columns = lambda x, batch: {"x": (jnp.sum(x), x.size)}
      >>> mean = {"mean": Constraint(columns, lambda means: means["x"], bound=0.0)}
      >>> parts = [column_sums(mean, x, None) for x in (jnp.ones(3), jnp.zeros(1))]
      >>> float(column_means(jax.tree.map(jnp.add, *parts))["mean"]["x"])
      0.75
    """
    _check_constraints(constraints)
    chosen = {
        name: (one.strict if strict else None) or one.columns
        for name, one in constraints.items()
    }
    places = defaultdict[Any, list[int]](list)
    for columns in chosen.values():
        if isinstance(columns, SharedColumns):
            places[columns.at].append(columns.place)
    shared = {at: at(taken, outputs, batch) for at, taken in places.items()}

    sums: Sums = {}
    for name, columns in chosen.items():
        if isinstance(columns, SharedColumns):
            pairs = shared[columns.at][columns.place]
        else:
            pairs = columns(outputs, batch)
        sums[name] = {
            column: _pair(f"{name}/{column}", pairs[column]) for column in pairs
        }
    return sums


def column_means(sums: Sums) -> dict[str, dict[str, Array]]:
    """Returns the means of `column_sums`, ``{constraint: {column: mean}}``.

    A mean over no sample is NaN.

    Example: see `column_sums`.
    """
    return {name: _means(columns) for name, columns in sums.items()}


def violations(
    constraints: Mapping[str, Constraint], means: Means
) -> dict[str, PyTree]:
    """Returns violations by name, (value - bound) / scale.

    A violation is NaN if its value is, such as a mean over no sample.

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
    wanted = f"have the names {sorted(constraints)}"
    require(set(means) == set(constraints), "means", wanted, sorted(means))
    excesses = {
        name: _excess(name, constraints[name], means[name]) for name in constraints
    }
    trees.leaf_names("constraints", excesses)
    return excesses


def batch_violations(
    constraints: Mapping[str, Constraint], outputs: Any, batch: Any
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Returns the violations of a batch, smooth and strict ones, for a training step.

    The Lagrangian takes the smooth ones, the multipliers the strict ones. A violation
    that depends on a mean over no sample is 0 in both and has no gradient.

    Args:
      constraints, outputs, batch: as in `column_sums`.

    Returns:
      ``(smooth, strict)``. No gradient flows to the strict ones.

    Example:
      >>> import jax.numpy as jnp
      >>> columns = lambda x, batch: {"x": (jnp.sum(x), x.size)}
      >>> mean = {"mean": Constraint(columns, lambda means: means["x"], bound=2.0)}
      >>> smooth, strict = batch_violations(mean, jnp.array([3.0, 4.0]), None)
      >>> float(smooth["mean"]), float(strict["mean"])
      (1.5, 1.5)
    """

    def of(strict: bool) -> dict[str, PyTree]:
        sums = column_sums(constraints, outputs, batch, strict=strict)
        means, absent = {}, {}
        for name, one in constraints.items():
            means[name], absent[name] = _fill(one, sums[name])
        known = violations(constraints, means)
        for name, none in absent.items():
            if none is not False:
                known[name] = jax.tree.map(_zero_where, none, known[name])
        # XLA for CPUs would copy their operations to each place that reads them
        return jax.lax.optimization_barrier(known)

    smooth = of(False)
    exact = any(one.strict is not None for one in constraints.values())
    return smooth, jax.lax.stop_gradient(of(True) if exact else smooth)


def mark_absent(constraints: Mapping[str, Constraint], sums: Sums) -> dict[str, PyTree]:
    """Marks the violations that are NaN because a column has no sample."""
    return {name: _fill(one, sums[name])[1] for name, one in constraints.items()}


def terms(
    name: str, constraint: Constraint, means: Mapping[str, Array]
) -> tuple[PyTree, PyTree, PyTree]:
    """The value of a constraint, and its bound and scale of the same structure."""
    values = trees.as_violations(f"value of {name}", constraint.value(means))

    def option(field: str, allowed: trees.Range) -> PyTree:
        given, where = getattr(constraint, field), f"{field} of {name}"
        if callable(given):
            given = given(means)
        else:
            trees.check_known(where, given, allowed)
        full = trees.broadcast_option(where, given, values)
        return jax.tree.map(lambda v, one: jnp.asarray(one, v.dtype), values, full)

    return values, option("bound", trees.FINITE), option("scale", SCALE)


# an infinite one takes a constraint out
SCALE = trees.Range("positive", lambda scale: scale > 0.0)
# Means over no sample: points of most domains (shares, losses, their negatives) where
# few functions are singular.
PLACEHOLDERS = (0.36788, 2.71828, 54.59815, -0.36788, -2.71828, -54.59815)


def _check_constraints(constraints: Any) -> None:
    sound = isinstance(constraints, Mapping) and len(constraints) > 0
    if sound:
        sound = all(
            isinstance(name, str) and isinstance(one, Constraint)
            for name, one in constraints.items()
        )
    wanted = "be one Constraint or more by name"
    require(sound, "constraints", wanted, constraints)
    for name, one in constraints.items():
        for field in ("columns", "value"):
            example = f"rate(at_most=0.1).{field}"
            trees.check_function(f"{field} of {name}", getattr(one, field), example)


def _pair(name: str, pair: Any) -> tuple[Array, Array | np.ndarray]:
    sound = isinstance(pair, tuple) and len(pair) == 2
    require(sound, f"column {name}", "be (sum, count)", pair)
    total = trees.widen(f"sum of {name}", pair[0])
    where, count = f"count of {name}", pair[1]
    if isinstance(count, int | float | np.ndarray | np.generic):
        # a known count stays known: it takes no operation to see that it is not 0
        count = trees.known_numbers(where, count).astype(total.dtype)
    else:
        count = jax.lax.stop_gradient(trees.widen(where, count))
    trees.check_matching(where, count, total, of="its sum")
    return total, trees.within(where, count, trees.NOT_NEGATIVE)


def _means(
    columns: Mapping[str, tuple[Array, Any]], empty: Any = jnp.nan
) -> dict[str, Array]:
    """Means of columns, ``empty`` over no sample."""

    def mean(total: Array, count: Any) -> Array:
        if _all_have_samples(count):
            return total / count
        none = count == 0.0
        return jnp.where(none, empty, total / jnp.where(none, 1.0, count))

    return {column: mean(*pair) for column, pair in columns.items()}


def _zero_where(none: Array, violation: Array) -> Array:
    return jnp.where(none, 0.0, violation)


def _all_have_samples(count: Any) -> bool:
    return isinstance(count, np.ndarray) and bool(np.all(count > 0.0))


def _fill(
    constraint: Constraint, columns: Mapping[str, tuple[Array, Any]]
) -> tuple[dict[str, Array], PyTree[Array] | bool]:
    """Returns means with a placeholder over no sample, and marks of absent violations.

    The marks are False if every column is known to have samples.
    """
    if all(_all_have_samples(count) for _, count in columns.values()):
        return _means(columns), False

    def excess(empty: Any) -> PyTree:
        return _excess("", constraint, _means(columns, empty))

    def is_finite(empty: Array) -> Array:
        def total(means: Mapping[str, Array]) -> Array:
            totals = jax.tree.map(jnp.sum, _excess("", constraint, means))
            return jax.tree.reduce(jnp.add, totals)

        means = jax.lax.stop_gradient(_means(columns, empty))
        value, slopes = jax.value_and_grad(total)(means)
        return jnp.isfinite(sum(map(jnp.sum, jax.tree.leaves(slopes)), value))

    # Autodiff multiplies the slope there by 0: an infinite one would give NaN.
    candidates = jnp.asarray(PLACEHOLDERS, jnp.result_type(float))
    empty = candidates[jnp.argmax(jax.vmap(is_finite)(candidates))]
    absent = jax.tree.map(
        lambda gone, there: jnp.isnan(gone) & ~jnp.isnan(there),
        excess(jnp.nan),
        excess(empty),
    )
    return _means(columns, empty), absent


def _excess(name: str, constraint: Constraint, means: Mapping[str, Array]) -> PyTree:
    values, bounds, scales = terms(name, constraint, means)
    return jax.tree.map(lambda v, b, s: (v - b) / s, values, bounds, scales)
