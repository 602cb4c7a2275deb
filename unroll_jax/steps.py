"""Helpers of loops over a step: a state of fixed type and place on a mesh, and
products in full precision."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from unroll_jax.arguments import require
from unroll_jax.arrays import check_array

__all__ = [
    "ORDER",
    "check_collectives",
    "check_order",
    "check_state",
    "check_step",
    "equations",
    "first_layer",
    "full_precision",
    "place_like",
    "settle",
    "vary_like",
]

STATES, PARAMETERS = (
    frozenset({"z", "y", "x0", "z0", "state"}),
    frozenset({"params", "theta", "weights"}),
)
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
ORDER = "steps here are step(params, z, x), where jaxopt's are T(z, x, params)"


def check_order(step: Callable[..., Any]) -> None:
    """A TypeError unless a step can take (params, z, x), or where its arguments have
    jaxopt's names."""
    try:
        signature = inspect.signature(step)
    # callables without one, such as some of compiled modules
    except (TypeError, ValueError):
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in kinds
    ]
    fits = not (names and names[0] in STATES and PARAMETERS.intersection(names[1:]))
    with contextlib.suppress(TypeError):
        signature.bind(None, None, None)
        if fits:
            return
    raise TypeError(
        f"the step must take (params, z, x), got one of ({', '.join(names)}); {ORDER}"
    )


def check_state(name: str, y: Any) -> None:
    """A TypeError unless a state holds arrays, or numbers, and a ValueError unless
    at least one."""

    def of_numbers(node: Any) -> bool:
        return isinstance(node, list) and any(
            isinstance(entry, int | float) for entry in node
        )

    leaves = jax.tree_util.tree_leaves_with_path(y, is_leaf=of_numbers)
    require(leaves, name, "hold at least one array", f"{y!r}")
    for path, leaf in leaves:
        check_array(f"{name}{jax.tree_util.keystr(path)}", leaf)


def first_layer(params: Any, num_layers: int, *, tied: bool) -> Any:
    """The parameters of the first layer; a ValueError unless they are tied or all
    stacked over the layers."""
    for path, leaf in [] if tied else jax.tree_util.tree_leaves_with_path(params):
        allowed, shape = (
            f"have a leading axis of num_layers={num_layers} when tied=False",
            np.shape(leaf),
        )
        require(
            shape[:1] == (num_layers,),
            f"params{jax.tree_util.keystr(path)}",
            allowed,
            f"shape {shape}",
        )
    return params if tied else jax.tree.map(lambda leaf: leaf[0], params)


def check_step(before: Any, after: Any, *, what: str = "the step") -> None:
    """A ValueError, with both, unless a step kept structure, shapes and dtypes of
    its state, arrays or their shapes."""
    old, new = jax.tree.structure(before), jax.tree.structure(after)
    if old != new:
        raise ValueError(f"{what} must keep the state's structure, {old} became {new}")
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            was, became = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (old, new))
            raise ValueError(
                f"{what} must keep shape and dtype, y{jax.tree_util.keystr(path)} {was}"
                f" became {became}"
            )


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


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Takes products of float32 in full, as GPUs and TPUs do not by default, unless
    the user has set a precision."""
    if jax.default_matmul_precision.value is None:
        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield


def _vary(leaf: Any, axes: frozenset[str]) -> Any:
    missing = axes - jax.typeof(leaf).manual_axis_type.varying
    return (
        jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf
    )


def place_like(leaf: Any, like: Any) -> Any:
    """``leaf`` on the axes of a mesh that the type ``like`` names."""
    leaf = _vary(leaf, like.manual_axis_type.varying)
    return (
        leaf
        if like.sharding.spec == jax.typeof(leaf).sharding.spec
        else jax.sharding.reshard(leaf, like.sharding)
    )


def check_collectives(jaxpr: Any, state: list[Any]) -> None:
    """An error where the step combines shards, or examples of a named vmap:
    convergence and derivatives would mix."""
    names: set[Any] = set()
    for equation in equations(jaxpr):
        if equation.primitive.name.startswith(COLLECTIVES):
            axes = equation.params.get("axes", equation.params.get("axis_name", ()))
            axes = axes if isinstance(axes, tuple | list) else (axes,)
            names.update(axis for axis in axes if not isinstance(axis, int))
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


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program and of its inner programs."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                yield from equations(inner) if hasattr(inner, "eqns") else ()
