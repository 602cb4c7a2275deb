"""The collectives that a step must not use."""

from typing import Any

import jax

from unroll_jax.step_checks import equations

__all__ = ["check_collectives"]

# Primitives, by how their names begin, that combine shards of a `jax.shard_map` or
# examples of a named `jax.vmap`.
COLLECTIVES = (
    "psum",
    "pmax",
    "pmin",
    "ppermute",
    "pgather",
    "pbroadcast",
    "all_",
    "ragged_all_",
    "reduce_scatter",
)


def check_collectives(jaxpr: Any, state: list[Any]) -> None:
    """An error where the step combines shards, or examples of a named vmap.

    Convergence and derivatives would mix.
    """
    names: set[Any] = set()
    for equation in equations(jaxpr):
        if equation.primitive.name.startswith(COLLECTIVES):
            axes = [equation.params.get(key) for key in ("axes", "axis_name")]
            leaves = jax.tree.leaves(axes)
            names.update(axis for axis in leaves if not isinstance(axis, int))
    manual = jax.sharding.get_abstract_mesh().manual_axes
    varying = frozenset().union(
        *(jax.typeof(leaf).manual_axis_type.varying for leaf in state)
    )
    for name in sorted(names, key=str):
        typed = (
            name in manual
            and jax.typeof(jax.lax.axis_index(name)).manual_axis_type.varying
        )
        if name in varying or not typed:
            raise ValueError(
                f"the step must not combine states over the axis {name!r}, got a"
                " collective such as lax.pmean in it; call equilibrium outside of"
                " shard_map or of the named vmap, with batch_ndim=0"
            )
