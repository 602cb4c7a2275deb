"""Checks of a layer's parameters, and of an x that is not an anchor: keys, signals, features."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.arguments import require
from unroll_jax.arrays import broadcasts, check_array, check_dtype, check_finite
from unroll_jax.descent import Descent

__all__ = ["check_input", "check_params", "guarded"]


def check_input(x: Any, tokens: tuple[int, ...], *, width: int, what: str, present: Any = None) -> None:
    """Checks that x holds ``what``: floating rows of the width asked for, whose leading axes broadcast to ``tokens``.

    Raises:
      TypeError: if x is not of a floating dtype.
      ValueError: if x is None, its shape does not fit, or a value that is known and present is not finite.
    """
    require(x is not None, "x", f"hold {what}", "None")
    check_array("x", x)
    check_dtype("x", x)
    shape, wanted = jnp.shape(x), (*tokens, width)
    fits = len(shape) >= 2 and shape[-1] == width and broadcasts(shape[:-1], tokens)
    require(fits, "x", f"hold {what} of shape {wanted}, or broadcasting to it", f"shape {shape}")
    check_finite("x", x, present)


def guarded(descent: Descent, kind: type) -> Descent:
    """``descent`` with functions that check the type of params, and that a key is one.

    Args:
      descent: a layer.
      kind: type of its params, a NamedTuple of arrays (or of such tuples); None may replace an array.

    Returns:
      The same layer; its functions raise a TypeError that names the leaf.
    """

    def of_params(function: Any) -> Any:
        if not callable(function):
            return function

        @functools.wraps(function)
        def checked(params: Any, *rest: Any, **named: Any) -> Any:
            _check_kind(params, kind)
            return function(params, *rest, **named)

        return checked

    def init(key: jax.Array) -> Any:
        if not any(jnp.issubdtype(getattr(key, "dtype", bool), dtype) for dtype in (jax.dtypes.prng_key, jnp.uint32)):
            raise TypeError(f"key must be one of jax.random.key, got {key!r}")
        return descent.init(key)

    return Descent(init, *map(of_params, descent[1:]))


def check_params(name: str, array: Any, shape: tuple[int, ...] | None) -> None:
    """Checks that a layer's params are of the shape that it was made for; None is not an array.

    Raises:
      ValueError: if they are not.
    """
    if (None if array is None else jnp.shape(array)) != shape:
        got = "None" if array is None else f"shape {jnp.shape(array)}"
        raise ValueError(f"{name} must be {shape}, got {got}; init(key) makes it")


def _check_kind(params: Any, kind: type) -> None:
    if not isinstance(params, kind):
        raise TypeError(f"params must be {kind.__name__}, got {type(params).__name__}; init(key) makes them")
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: not isinstance(node, tuple))
    for path, leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | None):
            place = f"params{jax.tree_util.keystr(path)}"
            raise TypeError(f"{place} must be an array, got {type(leaf).__name__}; jnp.asarray makes one")
