"""Groups of constraints: pytrees of violations, with a kind and a name for each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from unroll_jax.constrained.losses import as_losses

__all__ = [
    "KINDS",
    "as_violations",
    "broadcast_option",
    "broadcast_prefix",
    "check_kinds",
    "check_known",
    "check_matching",
    "check_penalty",
    "check_sign",
    "group_name",
    "kept_if_sound",
    "known_numbers",
    "project",
    "zeros_like_violations",
]

#: Kinds of constraints: ``c <= 0`` with multipliers of at least 0, or ``c = 0`` with signed ones.
KINDS = ("at_most", "equal")


def group_name(name: str, path: Any) -> str:
    """The leaf of an argument in words: ``violations["gap"]``, or ``violations`` for an array alone."""
    return name + jax.tree_util.keystr(path)


def as_violations(name: str, tree: PyTree) -> PyTree[Array]:
    """``tree`` with its leaves as floating arrays.

    Raises:
      TypeError: if a leaf does not hold real numbers; the message names it.
      ValueError: if the tree has no leaves.
    """
    if not jax.tree.leaves(tree, is_leaf=_is_none):
        raise ValueError(f"{name} must hold at least one array, got {tree!r}")
    return jax.tree.map_with_path(lambda path, leaf: as_losses(group_name(name, path), leaf), tree, is_leaf=_is_none)


def broadcast_prefix(name: str, prefix: Any, tree: PyTree, *, is_leaf: Any = None) -> PyTree:
    """A prefix tree, such as one value for each group, with the structure of the whole ``tree``.

    Raises:
      ValueError: if it is not a prefix; the message names the argument.
    """
    try:
        return jax.tree.broadcast(prefix, tree)
    except ValueError as error:
        if is_leaf is not None:
            lists_as_arrays = jax.tree.map(
                lambda leaf: np.asarray(leaf) if is_leaf(leaf) else leaf, prefix, is_leaf=is_leaf
            )
            return broadcast_prefix(name, lists_as_arrays, tree)
        raise ValueError(
            f"{name} must be one value, or a tree with the groups of the violations, "
            f"{jax.tree.structure(tree)}, got {prefix!r}"
        ) from error


def broadcast_option(name: str, option: Any, tree: PyTree) -> PyTree:
    """An option of each group, from a prefix tree: one value, or one for each constraint as an array or a list.

    Raises:
      ValueError: if it is not a prefix, or an array of it does not have the shape of its group.
    """
    full = broadcast_prefix(name, option, tree, is_leaf=_is_flat_list)
    for (path, leaf), value in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(full), strict=True):
        if np.shape(value) not in ((), np.shape(leaf)):
            where = group_name(name, path)
            raise ValueError(f"{where} must be one value or have shape {np.shape(leaf)}, got shape {np.shape(value)}")
    return full


def check_kinds(kinds: Any, tree: PyTree) -> PyTree[str]:
    """The kind of every leaf of ``tree``, from a prefix tree of `KINDS`.

    Raises:
      ValueError: if kinds do not fit the groups, or one is not in `KINDS`.
    """
    for path, kind in jax.tree.leaves_with_path(kinds):
        if kind not in KINDS:
            raise ValueError(f"{group_name('kinds', path)} must be one of {KINDS}, got {kind!r}")
    return broadcast_prefix("kinds", kinds, tree)


def check_matching(name: str, tree: PyTree, like: PyTree, *, of: str = "violations") -> None:
    """Checks that two trees have equal structures and shapes.

    Raises:
      ValueError: naming the first group that differs.
    """
    structure, expected = jax.tree.structure(tree), jax.tree.structure(like)
    if structure != expected:
        raise ValueError(f"{name} must have the groups of {of}, {expected}, got {structure}")
    for (path, leaf), other in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(like), strict=True):
        if jnp.shape(leaf) != jnp.shape(other):
            raise ValueError(
                f"{group_name(name, path)} must have shape {jnp.shape(other)}, as {of} have, got {jnp.shape(leaf)}"
            )


def check_known(name: str, tree: PyTree, rule: Any, allowed: str) -> None:
    """Checks the values of leaves that are known; traced ones are not checked.

    Raises:
      TypeError: if a leaf does not hold numbers.
      ValueError: naming the first leaf with a value that the rule does not allow.
    """
    for path, leaf in jax.tree.leaves_with_path(tree):
        if isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True):
            continue
        if not np.all(rule(known_numbers(group_name(name, path), leaf))):
            raise ValueError(f"{group_name(name, path)} must be {allowed}, got {leaf}")


def check_penalty(penalty: Any) -> None:
    """Checks that known penalties are positive and do not overflow in float32.

    Raises:
      TypeError, ValueError: naming the first group with another one.
    """
    largest = float(np.finfo(np.float32).max)
    check_known("penalty", penalty, lambda rho: (rho > 0.0) & (rho <= largest), "positive and finite")


def check_sign(multipliers: PyTree, kinds: PyTree[str]) -> None:
    """Checks that known multipliers of inequalities are at least 0.

    Raises:
      ValueError: naming the first group with a negative one.
    """
    least = jax.tree.map(lambda m, kind: 0.0 if kind == "equal" else m, multipliers, kinds)
    check_known("multipliers", least, lambda value: value >= 0.0, "at least 0, as its constraints are inequalities")


def kept_if_sound(violations: PyTree[Array], after: Any, before: Any) -> Any:
    """The state ``after`` a call, or that ``before`` with one more skipped call if a violation is not finite."""
    sound = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(violations)]))
    kept = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)
    return kept._replace(skipped=before.skipped + jnp.logical_not(sound))


def known_numbers(name: str, value: Any) -> np.ndarray:
    """``value``, a known number or several, in float64.

    Raises:
      TypeError: if it is traced or does not hold real numbers.
    """
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, or an array of numbers, got {value!r}") from error
    if numbers.dtype.kind not in "biuf" and not jnp.issubdtype(numbers.dtype, jnp.floating):  # "V" is bfloat16
        raise TypeError(f"{name} must be a number, or an array of numbers, got {value!r}")
    return numbers.astype(float)


def project(multipliers: PyTree[Array], kinds: PyTree[str]) -> PyTree[Array]:
    """Multipliers of at least 0 for inequalities; those of equalities are kept."""
    return jax.tree.map(lambda m, kind: m if kind == "equal" else jnp.maximum(m, 0.0), multipliers, kinds)


def zeros_like_violations(violations: Any) -> PyTree[Array]:
    """Zeros for each violation: from arrays or shapes of any tree, or from a number of constraints.

    Raises:
      TypeError, ValueError: if ``violations`` is neither, or the number is below 1.
    """
    if isinstance(violations, int | np.integer) and not isinstance(violations, bool):
        if violations < 1:
            raise ValueError(f"violations must be arrays, or a number of constraints of at least 1, got {violations}")
        return jnp.zeros(int(violations))
    shapes = jax.tree.map(_shape, violations, is_leaf=_is_none)
    if not jax.tree.leaves(shapes):
        raise ValueError(f"violations must hold at least one array, got {violations!r}")
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape of a leaf; multipliers are at least float32, also those of float16 losses."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = as_losses("violations", leaf)
    return jax.ShapeDtypeStruct(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))


def _is_flat_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, bool | int | float) for one in value)


def _is_none(leaf: Any) -> bool:
    return leaf is None
