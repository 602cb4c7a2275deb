"""Trees of violations and arrays of losses: ranges of values, kinds, names and shapes.

One rule holds in this package, and `within` is the place of it: a known value out of
range is an error that names the argument, a traced one becomes NaN. NaN in gives NaN
out, sums are in at least float32, and shapes must match.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import Allowed, require
from unroll_jax.arrays import common_dtype, widen_integers

__all__ = [
    "FINITE",
    "KINDS",
    "NOT_NEGATIVE",
    "RHO",
    "Range",
    "as_indices",
    "as_losses",
    "as_numbers",
    "as_violations",
    "broadcast_option",
    "broadcast_prefix",
    "check_function",
    "check_kinds",
    "check_known",
    "check_matching",
    "check_optimizer",
    "check_signs",
    "group_name",
    "is_known",
    "keep_if_finite",
    "known_numbers",
    "leaf_names",
    "nan_unless",
    "project",
    "states_of",
    "violation_sizes",
    "widen",
    "within",
    "zeros_like_violations",
]

#: Kinds of constraints: ``c <= 0`` with multipliers of at least 0, or ``c = 0`` with
#: signed ones.
KINDS = ("at_most", "equal")


class Range(NamedTuple):
    """Values that an array may hold: in words, after "be", and as a function of it."""

    allowed: str
    holds: Callable[[Any], Any]


FINITE = Range("finite", lambda value: abs(value) < np.inf)
# NaN passes, and stays NaN
NOT_NEGATIVE = Range("at least 0", lambda value: ~(value < 0.0))
SIGNED = Range(
    "at least 0, as its constraints are inequalities", lambda value: value >= 0.0
)
# a larger one is infinite in float32
LARGEST = float(np.finfo(np.float32).max)
RHO = Range("positive and finite", lambda rho: (rho > 0.0) & (rho <= LARGEST))


def within(name: str, tree: PyTree, values: Range) -> PyTree:
    """Raises for known values of ``tree`` out of range, and makes traced ones NaN."""
    check_known(name, tree, values)

    def mark(leaf: Any) -> Any:
        return leaf if is_known(leaf) else nan_unless(values.holds(leaf), leaf)

    return jax.tree.map(mark, tree)


def check_known(name: str, tree: PyTree, values: Range) -> None:
    """Checks the values of leaves that are known. Traced ones are not checked."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        if is_known(leaf):
            where = group_name(name, path)
            holds = values.holds(known_numbers(where, leaf))
            require(np.all(holds), where, f"be {values.allowed}", leaf)


def is_known(leaf: Any) -> bool:
    """False for traced values, and for arrays with parts on other hosts."""
    return not isinstance(leaf, Tracer) and getattr(leaf, "is_fully_addressable", True)


def as_indices(
    name: str, value: Any, count: int, counted: Any = True
) -> tuple[Array, Array]:
    """Returns ``value`` as integers of at least 32 bits, and marks of those in range.

    The range is 0..count - 1. Values that are not ``counted`` may be out of it. Other
    known ones are an error.
    """
    indices = jnp.asarray(value)
    integers = jnp.issubdtype(indices.dtype, jnp.integer)
    require(integers, name, "be integers", indices.dtype)
    indices = widen_integers(indices)
    inside = (indices >= 0) & (indices < count) | ~jnp.asarray(counted)
    if is_known(inside) and not np.all(inside):
        wrong = np.asarray(indices)[~np.asarray(inside)][0]
        raise ValueError(f"{name} must be in 0..{count - 1}, got {wrong}")
    return indices, inside


def as_losses(name: str, value: Any) -> Float[Array, "..."]:
    """Returns ``value`` as a floating array, integers as float32."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be an array of numbers, got {type(value).__name__}"
        ) from error
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(common_dtype(array.dtype, jnp.float32))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    return array


def widen(name: str, value: Any) -> Float[Array, "..."]:
    """`as_losses` in at least float32, for sums: float16 counts to 2048."""
    array = as_losses(name, value)
    return array.astype(common_dtype(array.dtype, jnp.float32))


def nan_unless(sound: Any, value: Array) -> Array:
    """``value`` where ``sound`` holds, elsewhere NaN. So is the gradient."""
    return value * jnp.where(sound, 1.0, jnp.nan).astype(jnp.result_type(value))


def as_numbers(name: str, value: Any, rule: Allowed, *, each: str) -> np.ndarray:
    """Returns ``value`` in float64: one known number, or one for ``each``."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} must be known beforehand, got a traced value; pass a Python number"
        )
    numbers = known_numbers(name, value)
    sound = (
        numbers.ndim <= 1 and numbers.size > 0 and all(map(rule.holds, numbers.ravel()))
    )
    require(sound, name, f"be {rule.words}, one number or one for each {each}", value)
    return numbers


def check_optimizer(name: str, value: Any, way_out: str = "") -> None:
    """Checks that an optimiser is optax's. ``way_out`` ends the message."""
    if not isinstance(value, optax.GradientTransformation):
        example = "an optax gradient transformation such as optax.sgd(0.1)"
        raise TypeError(f"{name} must be {example}, got {value!r}{way_out}")


def check_function(name: str, value: Any, example: str) -> None:
    """Checks that ``value`` can be called. ``example`` names a function that can."""
    if not callable(value):
        raise TypeError(f"{name} must be a function such as {example}, got {value!r}")


def group_name(name: str, path: Any) -> str:
    """Names the leaf of an argument, as in ``violations["gap"]``."""
    return name + jax.tree_util.keystr(path)


def leaf_names(name: str, tree: PyTree) -> list[str]:
    """Returns the path of every leaf, as in ``gap/0``, if the paths differ."""
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    wanted = "have a name for each constraint"
    twice = [one for one, count in Counter(names).items() if count > 1]
    require(not twice, name, wanted, f"{twice} twice", "rename one")
    keys = {jax.tree_util.keystr((key,), simple=True) for key in sum(paths, ())}
    require("" not in keys, name, wanted, "an empty one", "rename it")
    return names


def as_violations(name: str, tree: PyTree) -> PyTree[Array]:
    """Returns ``tree`` with its leaves, at least one, as floating arrays."""
    found = jax.tree.leaves(tree, is_leaf=_is_none)
    require(found, name, "hold at least one array", repr(tree))

    def convert(path: Any, leaf: Any) -> Array:
        return as_losses(group_name(name, path), leaf)

    return jax.tree.map_with_path(convert, tree, is_leaf=_is_none)


def broadcast_prefix(name: str, prefix: Any, tree: PyTree) -> PyTree:
    """Broadcasts a prefix tree, such as a value for each group, to all of ``tree``."""
    try:
        return jax.tree.broadcast(prefix, tree)
    except ValueError as error:
        raise ValueError(
            f"{name} must be one value, or a tree with the groups of the violations, "
            f"{jax.tree.structure(tree)}, got {prefix!r}"
        ) from error


def broadcast_option(name: str, option: Any, tree: PyTree) -> PyTree:
    """Broadcasts an option to all of ``tree``.

    A group has one value, or one for each constraint as an array or a list.
    """
    try:
        full = jax.tree.broadcast(option, tree)
    except ValueError:
        # a list is one value for each constraint, unless the groups are a list
        arrays = jax.tree.map(
            lambda one: np.asarray(one) if _is_flat(one) else one,
            option,
            is_leaf=_is_flat,
        )
        full = broadcast_prefix(name, arrays, tree)

    def check(path: Any, leaf: Any, value: Any) -> None:
        shape, given = np.shape(leaf), np.shape(value)
        wanted = f"be one value or have shape {shape}"
        require(given in ((), shape), group_name(name, path), wanted, f"shape {given}")

    jax.tree.map_with_path(check, tree, full)
    return full


def check_kinds(kinds: Any, tree: PyTree) -> PyTree[str]:
    """The kind of every leaf of ``tree``, from a prefix tree of `KINDS`."""
    for path, kind in jax.tree.leaves_with_path(kinds):
        where = group_name("kinds", path)
        require(kind in KINDS, where, f"be one of {KINDS}", repr(kind))
    return broadcast_prefix("kinds", kinds, tree)


def check_matching(
    name: str, tree: PyTree, like: PyTree, *, of: str = "violations"
) -> None:
    """Checks that two trees have equal structures and shapes."""
    structure = jax.tree.structure(tree)
    expected = jax.tree.structure(like)
    groups = f"have the groups of {of}, {expected}"
    require(structure == expected, name, groups, structure)

    def check(path: Any, leaf: Any, other: Any) -> None:
        shape, wanted = jnp.shape(leaf), jnp.shape(other)
        words = f"have shape {wanted}, as {of} have"
        require(shape == wanted, group_name(name, path), words, shape)

    jax.tree.map_with_path(check, tree, like)


def check_signs(
    multipliers: PyTree, kinds: PyTree[str], name: str = "multipliers"
) -> PyTree:
    """Multipliers whose inequalities have values of at least 0, by `within`."""
    kinds = broadcast_prefix("kinds", kinds, multipliers)

    def one(path: Any, multiplier: Any, kind: str) -> Any:
        if kind == "equal":
            return multiplier
        return within(group_name(name, path), multiplier, SIGNED)

    return jax.tree.map_with_path(one, multipliers, kinds)


def keep_if_finite(violations: PyTree[Array], after: Any, before: Any) -> Any:
    """Returns ``after``, or ``before`` with one more skipped call."""
    leaves = jax.tree.leaves(violations)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    # without it XLA for CPUs computes it again for every leaf
    finite = jax.lax.optimization_barrier(finite)
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
    missed = jnp.logical_not(finite).astype(before.skipped.dtype)
    return kept._replace(skipped=before.skipped + missed)


def known_numbers(name: str, value: Any) -> np.ndarray:
    """``value``, a known number or several, in float64."""
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):
        numbers = np.asarray(None)
    # bfloat16 is of kind "V"
    if numbers.dtype.kind not in "iuf" and not jnp.issubdtype(
        numbers.dtype, np.floating
    ):
        raise TypeError(
            f"{name} must be a number, or an array of numbers, got {value!r}"
        )
    return numbers.astype(float)


def project(multipliers: PyTree[Array], kinds: PyTree[str]) -> PyTree[Array]:
    """Multipliers, at least 0 for inequalities and unchanged for equalities."""
    return jax.tree.map(
        lambda m, kind: m if kind == "equal" else jnp.maximum(m, 0.0),
        multipliers,
        kinds,
    )


def states_of(kind: Any, opt_state: Any, *, within: Any = ()) -> list[Any]:
    """Returns the states of a kind in an optimiser's, not those ``within`` others."""
    leaves = jax.tree.leaves(
        opt_state, is_leaf=lambda leaf: isinstance(leaf, (kind, *within))
    )
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def violation_sizes(violations: PyTree[Array], kinds: PyTree[str]) -> PyTree[Array]:
    """Sizes of violations: [c]_+ of inequalities, |c| of equalities."""
    return jax.tree.map(
        lambda c, kind: jnp.abs(c) if kind == "equal" else jnp.maximum(c, 0.0),
        violations,
        kinds,
    )


def zeros_like_violations(violations: Any) -> PyTree[Array]:
    """Returns zeros like the violations: arrays, shapes, or a number of constraints."""
    if isinstance(violations, int | np.integer) and not isinstance(violations, bool):
        least = "be arrays, or a number of constraints of at least 1"
        require(violations >= 1, "violations", least, violations)
        return jnp.zeros(int(violations))
    zeros = jax.tree.map(_zeros, violations, is_leaf=_is_none)
    require(jax.tree.leaves(zeros), "violations", "hold at least one array", violations)
    leaf_names("violations", zeros)
    return zeros


def _zeros(leaf: Any) -> Array:
    """Zeros of a leaf, in at least float32 also for float16 losses."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = as_losses("violations", leaf)
    return jnp.zeros(leaf.shape, common_dtype(leaf.dtype, jnp.float32))


def _is_flat(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(one, bool | int | float) for one in value
    )


def _is_none(leaf: Any) -> bool:
    return leaf is None
