"""Checks of what a layer is given: params, masks, and an x that is no anchor (keys, signals, features)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.descent import Descent, blank_absent, broadcasts, check_array
from unroll_jax.products import linear

__all__ = ["check_input", "check_known", "check_params", "guarded", "project", "sum_present"]


def check_input(x: Any, tokens: tuple[int, ...], *, width: int, what: str, present: Any = None) -> None:
    """Checks that x holds ``what``: floating rows of the width asked for, whose leading axes broadcast to ``tokens``.

    Raises:
      TypeError: if x is not of a floating dtype.
      ValueError: if x is None, its shape does not fit, or a value that is known and present is not finite.
    """
    if x is None:
        raise ValueError(f"x must hold {what}, got None")
    check_array("x", x)
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise TypeError(f"x must have a floating dtype, got {jnp.result_type(x)}; cast it first")
    shape = jnp.shape(x)
    if len(shape) < 2 or shape[-1] != width or not broadcasts(shape[:-1], tokens):
        wanted = (*tokens, width)
        raise ValueError(f"x must hold {what} of shape {wanted}, or broadcasting to it, got shape {shape}")
    if isinstance(x, Tracer) or isinstance(present, Tracer) or not getattr(x, "is_fully_addressable", True):
        return
    finite = np.isfinite(np.asarray(x))
    if present is not None:
        finite = finite | ~np.asarray(present)[..., None]
    if not finite.all():
        raise ValueError(f"x must be finite, but x{np.argwhere(~finite)[0].tolist()} is not")


def check_known(name: str, value: Any) -> None:
    """Checks that an option which a layer is made with is no traced array.

    Raises:
      ValueError: if it is one.
    """
    if isinstance(value, Tracer):
        raise ValueError(
            f"{name} must be known when the layer is made, got a traced array of shape {value.shape}; "
            f"make the layer outside jit, or from a NumPy array"
        )


def guarded(descent: Descent, kind: type) -> Descent:
    """``descent`` with functions that refuse params of another kind than it was made for, and what is no key.

    Args:
      descent: a layer.
      kind: type of its params, a NamedTuple of arrays (or of such tuples); None may stand for an array.

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
    """Checks that a layer's params are of the shape that it was made for; None stands for no array.

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


def project(tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(per_token: Float[Array, "*batch n"], present: Any) -> Float[Array, "*batch"]:
    """The sum over the tokens that are there; ``present`` is a boolean (*batch, n), or None if all are."""
    return jnp.sum(per_token if present is None else blank_absent(per_token[..., None], present)[..., 0], axis=-1)
