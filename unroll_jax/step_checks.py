"""Checks of a step, of its state and of its parameters."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from unroll_jax.arguments import require
from unroll_jax.arrays import check_array

__all__ = ["ORDER", "check_order", "check_state", "check_step", "first_layer"]

STATES = frozenset({"z", "y", "x0", "z0", "state"})
PARAMETERS = frozenset({"params", "theta", "weights"})
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
