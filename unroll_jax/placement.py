"""Places the arrays of a loop on the axes of a mesh where its step puts them."""

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["place_like", "settle", "vary_like"]


def settle(step: Callable[[Any], Any], y: Any) -> Any:
    """Places ``y`` on the axes of a mesh where ``step`` puts it.

    The step may add a sharded input to zeros. Explicit shardings, and the axes of a
    `jax.shard_map` that an array varies over, are part of its type. Loops must keep it.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return y
    leaves, structure = jax.tree.flatten(y)
    # Twice: the placed state may change the placement of the next one.
    for _ in range(2):
        placed = jax.make_jaxpr(step)(structure.unflatten(leaves)).out_avals
        if len(placed) != len(leaves):
            return y  # `check_step` raises the error
        leaves = list(map(place_like, leaves, placed))
    return structure.unflatten(leaves)


def vary_like(tree: Any, like: Any) -> Any:
    """``tree``, varying over the axes of a `jax.shard_map` that ``like`` varies over.

    ``like`` is a pytree of arrays. Derivatives for invariant values are summed over the
    devices: values differentiated on each device must vary first.
    """
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(like):
        axes |= jax.typeof(leaf).manual_axis_type.varying
    return jax.tree.map(lambda leaf: _vary(leaf, axes), tree)


def place_like(leaf: Any, like: Any) -> Any:
    """``leaf`` on the axes of a mesh that the type ``like`` names."""
    leaf = _vary(leaf, like.manual_axis_type.varying)
    if like.sharding.spec == jax.typeof(leaf).sharding.spec:
        return leaf
    return jax.sharding.reshard(leaf, like.sharding)


def _vary(leaf: Any, axes: frozenset[str]) -> Any:
    missing = axes - jax.typeof(leaf).manual_axis_type.varying
    if not missing:
        return leaf
    return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying")
