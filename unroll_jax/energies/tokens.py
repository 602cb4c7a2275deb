"""Layers on tokens: presence, dtype, anchors and checks are handled here, so that an energy's file is its equation."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import broadcasts, check_array, check_dtype, check_finite
from unroll_jax.descent import Anchor, Descent
from unroll_jax.numerics import compute_dtype, linear

__all__ = [
    "Tokens",
    "as_anchor",
    "blank_absent",
    "check_input",
    "check_tokens",
    "guarded",
    "on_tokens",
    "project",
    "sum_present",
]


class Tokens(NamedTuple):
    """Input of an energy or a step, in the dtype of the computation, with 0 in place of absent tokens.

    Attributes:
      y: the tokens.
      x: the anchor or other input, or None.
      present: boolean (*batch, n), or None if every token is there.
      dtype: of the tokens outside.
    """

    y: Float[Array, "*batch n d"]
    x: Float[Array, "..."] | None
    present: Bool[Array, "..."] | None
    dtype: Any


def on_tokens(
    params: type | None,
    init: Callable[[jax.Array], Any],
    energy: Callable[[Any, Tokens], Float[Array, "*batch"]],
    step: Callable[[Any, Tokens], Float[Array, "*batch n d"]],
    step_and_energy: Callable[[Any, Tokens], tuple[Array, Array]] | None = None,
    *,
    dim: int | None = None,
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    check_x: Callable[[Any, tuple[int, ...], Any], None] | None = None,
    x_widens: bool = False,
    x_is_keys: bool = False,
) -> Descent:
    """A layer from an energy and a step on `Tokens`.

    Arguments are checked; states below float32 are computed on in float32; absent tokens enter nothing and stay.

    Args:
      params: type of the parameters, a NamedTuple of arrays; None if there are none.
      init: as in `Descent`.
      energy: ``(params, tokens) -> (*batch,)``; it leaves absent tokens out of its sum.
      step: ``(params, tokens) -> y'``, in any floating dtype.
      step_and_energy: both at once, or None.
      dim: width of the tokens; None is any.
      shapes: shapes of arrays of the parameters, by name.
      check_x: ``(x, shape of the tokens without their width, present) -> None``; None checks an anchor.
      x_widens: whether the dtype of x counts towards that of the computation, as that of the parameters does.
      x_is_keys: whether ``present`` is of the rows of x, and all tokens are there.
    """

    def read(values: Any, y: Any, x: Any) -> Tokens:
        x, present = as_anchor(x)
        there = None if x_is_keys else present
        check_tokens(y, Anchor(x if check_x is None else None, there), dim=dim)
        if check_x is not None:
            check_x(x, y.shape[:-1], present)
        for name, shape in (shapes or {}).items():
            _check_params(name, getattr(values, name), shape)
        dtype = compute_dtype(y, *jax.tree.leaves(values), x if x_widens else None)
        wide = jnp.asarray(blank_absent(y, there), dtype)
        given = None if x is None else jnp.asarray(blank_absent(x, present), dtype)
        return Tokens(wide, given, present, jnp.result_type(y))

    def write(stepped: Array, y: Array, present: Any) -> Array:
        stepped = stepped.astype(y.dtype)
        return stepped if present is None or x_is_keys else jnp.where(present[..., None], stepped, y)

    def energy_of(params: Any, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        return energy(params, read(params, y, x))

    def step_of(params: Any, y: Array, x: Any = None) -> Array:
        tokens = read(params, y, x)
        return write(step(params, tokens), y, tokens.present)

    def both_of(params: Any, y: Array, x: Any = None) -> tuple[Array, Float[Array, "*batch"]]:
        assert step_and_energy is not None
        tokens = read(params, y, x)
        stepped, value = step_and_energy(params, tokens)
        return write(stepped, y, tokens.present), value

    layer = Descent(init, energy_of, step_of, None if step_and_energy is None else both_of)
    return layer if params is None else guarded(layer, params)


def as_anchor(x: Any) -> Anchor:
    """``x`` as an `Anchor`: itself, or an anchor of tokens that are all there."""
    return x if isinstance(x, Anchor) else Anchor(x)


def blank_absent(tokens: Any, present: Any) -> Any:
    """``tokens`` (..., n, d) with 0 for the absent ones, so that what padding holds, NaN even, reaches nothing."""
    return tokens if tokens is None or present is None else jnp.where(present[..., None], tokens, 0.0)


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """A TypeError or ValueError unless ``y`` holds floating tokens (*batch, n, d) and the anchor ``x`` fits it.

    Values that are known (not traced) must be finite, but for tokens absent from an `Anchor`.
    """
    x, present = as_anchor(x)
    if y is None:
        raise TypeError("y must be an array, got None")
    for name, value in (("y", y), ("x", x), ("x.present", present)):
        check_array(name, value)
        check_dtype(name, value, jnp.bool_ if name == "x.present" else jnp.floating)
    shape = jnp.shape(y)
    require(len(shape) >= 2, "y", "be (*batch, n, d) with at least two axes", f"shape {shape}")
    require(0 not in shape[-2:], "y", "hold at least one token of at least one number", f"shape {shape}")
    require(dim in (None, shape[-1]), "y", f"have tokens of width dim={dim}", f"shape {shape}")
    for name, value, what, target in (("x", x, "shape", shape), ("x.present", present, "tokens", shape[:-1])):
        fits = value is None or broadcasts(jnp.shape(value), target)
        require(fits, name, f"broadcast to y's {what} {target}", f"shape {np.shape(value)}")
    check_finite("y", y, present)
    check_finite("x", x, present)


def check_input(x: Any, tokens: tuple[int, ...], present: Any = None, *, width: int, what: str) -> None:
    """An error unless x holds ``what``: floating rows of a width, whose leading axes broadcast to ``tokens``.

    Values that are known and present must be finite.
    """
    require(x is not None, "x", f"hold {what}", "None")
    check_array("x", x)
    check_dtype("x", x)
    shape, wanted = jnp.shape(x), (*tokens, width)
    fits = len(shape) >= 2 and shape[-1] == width and broadcasts(shape[:-1], tokens)
    require(fits, "x", f"hold {what} of shape {wanted}, or broadcasting to it", f"shape {shape}")
    check_finite("x", x, present)


def guarded(descent: Descent, kind: type) -> Descent:
    """``descent`` with functions that raise a TypeError, naming the leaf, where params or a key are not such.

    ``kind`` is the type of its params, a NamedTuple of arrays (or of such tuples); None may replace an array.
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


def project(tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(per_token: Float[Array, "*batch n"], present: Any) -> Float[Array, "*batch"]:
    """The sum over the tokens that are there; ``present`` is a boolean (*batch, n), or None if all are."""
    return jnp.sum(per_token if present is None else blank_absent(per_token[..., None], present)[..., 0], axis=-1)


def _check_params(name: str, array: Any, shape: tuple[int, ...] | None) -> None:
    if (None if array is None else jnp.shape(array)) != shape:
        got = "None" if array is None else f"shape {jnp.shape(array)}"
        raise ValueError(f"{name} must be {shape}, got {got}; init(key) makes it")


def _check_kind(params: Any, kind: type) -> None:
    if not isinstance(params, kind):
        raise TypeError(f"params must be {kind.__name__}, got {type(params).__name__}; init(key) makes them")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: not isinstance(node, tuple)):
        if not isinstance(leaf, jax.Array | np.ndarray | None):
            name = f"params{jax.tree_util.keystr(path)}"
            raise TypeError(f"{name} must be an array, got {type(leaf).__name__}; jnp.asarray makes one")
