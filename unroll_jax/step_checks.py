"""Checks of a step, of its state and of its parameters."""

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
    "check_order",
    "check_state",
    "check_step",
    "equations",
    "first_layer",
]

STATES = frozenset({"z", "y", "x0", "z0", "state"})
PARAMETERS = frozenset({"params", "theta", "weights"})
ORDER = "steps here are step(params, z, x), where jaxopt's are T(z, x, params)"


def check_order(step: Callable[..., Any]) -> None:
    """A TypeError unless a step can take (params, z, x).

    It is also one if the arguments have jaxopt's names.
    """
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return  # some callables of compiled modules have none
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.items()
    names = [name for name, parameter in parameters if parameter.kind in kinds]
    state_first = names and names[0] in STATES
    is_jaxopts = state_first and PARAMETERS.intersection(names[1:])
    with contextlib.suppress(TypeError):
        signature.bind(None, None, None)
        if not is_jaxopts:
            return
    raise TypeError(
        f"the step must take (params, z, x), got one of ({', '.join(names)}); {ORDER}"
    )


def check_state(name: str, y: Any) -> None:
    """A TypeError unless a state holds arrays or numbers, a ValueError if empty."""

    def holds_numbers(node: Any) -> bool:
        return isinstance(node, list) and any(
            isinstance(entry, int | float) for entry in node
        )

    leaves = jax.tree_util.tree_leaves_with_path(y, is_leaf=holds_numbers)
    require(leaves, name, "hold at least one array", f"{y!r}")
    for path, leaf in leaves:
        check_array(f"{name}{jax.tree_util.keystr(path)}", leaf)


def check_step(before: Any, after: Any, *, what: str = "the step") -> None:
    """A ValueError unless a step kept structure, shapes and dtypes of its state.

    The states are arrays or their shapes. The message names both.
    """
    old = jax.tree.structure(before)
    new = jax.tree.structure(after)
    if old != new:
        raise ValueError(f"{what} must keep the state's structure, {old} became {new}")
    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, leaf), result in zip(leaves, jax.tree.leaves(after), strict=True):
        if (leaf.shape, leaf.dtype) != (result.shape, result.dtype):
            name = f"y{jax.tree_util.keystr(path)}"
            was = f"{leaf.dtype}{list(leaf.shape)}"
            became = f"{result.dtype}{list(result.shape)}"
            raise ValueError(
                f"{what} must keep shape and dtype, {name} {was} became {became}"
            )


def first_layer(params: Any, num_layers: int, *, tied: bool) -> Any:
    """The parameters of the first layer.

    A ValueError unless they are tied or all stacked over the layers.
    """
    if tied:
        return params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        shape = np.shape(leaf)
        name = f"params{jax.tree_util.keystr(path)}"
        allowed = f"have a leading axis of {num_layers=} when tied=False"
        require(shape[:1] == (num_layers,), name, allowed, f"shape {shape}")
    return jax.tree.map(lambda leaf: leaf[0], params)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program and of its inner programs."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params):
            if hasattr(inner, "eqns"):
                yield from equations(inner)
