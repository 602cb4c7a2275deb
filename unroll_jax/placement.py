"""Places arrays on the axes of a mesh where a loop over a step leaves them."""

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["place_like", "settle", "vary_like"]


def settle(step: Callable[[Any], Any], y: Any) -> Any:
    """``y`` on the axes of a mesh where ``step`` leaves it, such as zeros where the
    step adds an input that is sharded.

    Explicit shardings, and the axes of a `jax.shard_map` that an array varies over, are
    in its type: loops keep it.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return y
    for _ in range(2):  # a step may move the state further once it has moved
        placed = jax.make_jaxpr(step)(y).out_avals
        if len(placed) != len(jax.tree.leaves(y)):
            return y  # `check_step` raises the error
        y = jax.tree.unflatten(
            jax.tree.structure(y), map(place_like, jax.tree.leaves(y), placed)
        )
    return y


def vary_like(tree: Any, like: Any) -> Any:
    """``tree``, varying over the axes of a `jax.shard_map` that an array in the pytree
    ``like`` varies over.

    Derivatives for invariant values are summed over the devices: values differentiated
    on each device must vary first.
    """
    axes = frozenset().union(
        *(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(like))
    )
    return jax.tree.map(lambda leaf: _vary(leaf, axes), tree)


def place_like(leaf: Any, like: Any) -> Any:
    """``leaf`` on the axes of a mesh that the type ``like`` names."""
    leaf = _vary(leaf, like.manual_axis_type.varying)
    return (
        leaf
        if like.sharding.spec == jax.typeof(leaf).sharding.spec
        else jax.sharding.reshard(leaf, like.sharding)
    )


def _vary(leaf: Any, axes: frozenset[str]) -> Any:
    missing = axes - jax.typeof(leaf).manual_axis_type.varying
    return (
        jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf
    )
