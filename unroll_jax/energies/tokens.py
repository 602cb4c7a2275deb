"""Presence, dtypes and checks, common to all layers on tokens."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import (
    broadcasts,
    check_array,
    check_dtype,
    check_finite,
    check_shape,
    not_an_array,
)
from unroll_jax.descent import Anchor, Descent, Unchecked
from unroll_jax.numerics import compute_dtype, linear

__all__ = [
    "InputRows",
    "Tokens",
    "as_anchor",
    "check_kind",
    "check_params",
    "check_tokens",
    "no_params",
    "on_tokens",
    "project",
    "sum_present",
    "unchecked",
    "with_param_check",
    "zero_masked",
]


class Tokens(NamedTuple):
    """Input of an unchecked energy or step.

    Arrays are in the dtype of the computation, with 0 in place of absent tokens.

    Attributes:
      y: the tokens.
      x: the anchor or other input, or None.
      present: boolean (*batch, n), or None if every token is present.
      dtype: dtype of the tokens outside.
    """

    y: Float[Array, "*batch n d"]
    x: Any
    present: Bool[Array, "..."] | None
    dtype: Any


class InputRows(NamedTuple):
    """An input x other than an anchor: rows whose leading axes broadcast to the tokens.

    Attributes:
      what: their content, for messages.
      width: numbers in a row. 0 if x must be None.
      separate: True if the rows are keys or pairs. `Anchor.present` then marks these.
        False for one row per token.
      optional: True if x may be None.
    """

    what: str
    width: int
    separate: bool = False
    optional: bool = False


def on_tokens(
    init: Callable[[jax.Array], Any],
    energy: Callable[[Any, Tokens], Float[Array, "*batch"]],
    step: Callable[[Any, Tokens], Float[Array, "*batch n d"]],
    step_and_energy: Callable[[Any, Tokens], tuple[Array, Array]] | None = None,
    *,
    dim: int | None = None,
    num_tokens: int | None = None,
    rows: InputRows | None = None,
) -> Descent:
    """Makes a layer from unchecked functions of ``(params, tokens)``.

    Params must have the type and shapes that ``init`` makes. All arrays are cast to one
    dtype, float32 at least. Absent tokens are 0 inside, and the step returns them as
    they were. A composite layer takes the functions of its parts by `unchecked`.

    Args:
      init: as in `Descent`. It makes None, or a NamedTuple of arrays and None.
      energy, step, step_and_energy: as in `Unchecked`.
      dim, num_tokens: width and number of the tokens. None is any.
      rows: what x holds. None is an anchor.
    """
    functions = Unchecked(energy, step, step_and_energy)
    marks_tokens = rows is None or not rows.separate

    @functools.cache
    def param_shapes() -> Any:
        return jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))

    def prepare(params: Any, y: Any, x: Any) -> tuple[Any, Tokens]:
        x, present = as_anchor(x)
        anchor = x if rows is None else None
        mask = present if marks_tokens else None
        check_tokens(y, Anchor(anchor, mask), dim=dim)
        if mask is not None:
            mask = jnp.broadcast_to(mask, y.shape[:-1])
            present = mask
        fits = num_tokens in (None, y.shape[-2])
        require(fits, "y", f"hold {num_tokens} rows", y.shape[-2])
        if rows is not None:
            _check_input(rows, x, y.shape[:-1], present)

        # An anchor takes the dtype of the tokens. Keys or a signal may widen it.
        dtype = compute_dtype(y, *jax.tree.leaves(params), None if rows is None else x)
        arrays = params, zero_masked(y, mask), zero_masked(x, present)
        params, wide, given = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype), arrays
        )
        return params, Tokens(wide, given, present, jnp.result_type(y))

    def finish(stepped: Array, y: Array, present: Any) -> Array:
        """Returns the step in the dtype of y. Absent tokens stay."""
        stepped = stepped.astype(y.dtype)
        if present is None or not marks_tokens:
            return stepped
        return jnp.where(present[..., None], stepped, y)

    def checked_energy(params: Any, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        return energy(*prepare(params, y, x))

    def checked_step(params: Any, y: Array, x: Any = None) -> Array:
        params, tokens = prepare(params, y, x)
        return finish(step(params, tokens), y, tokens.present)

    def checked_both(
        params: Any, y: Array, x: Any = None
    ) -> tuple[Array, Float[Array, "*batch"]]:
        assert step_and_energy is not None
        params, tokens = prepare(params, y, x)
        stepped, value = step_and_energy(params, tokens)
        return finish(stepped, y, tokens.present), value

    layer = Descent(
        init,
        checked_energy,
        checked_step,
        None if step_and_energy is None else checked_both,
        unchecked=functions,
    )
    return with_param_check(layer, lambda params: check_params(params, param_shapes()))


def unchecked(descent: Descent) -> Unchecked:
    """The unchecked functions of a layer that `on_tokens` made."""
    assert descent.unchecked is not None
    return descent.unchecked


def no_params(key: jax.Array) -> None:
    """The ``init`` of a layer without parameters."""
    return None


def as_anchor(x: Any) -> Anchor:
    """Returns ``x`` as an `Anchor`. One that is not marks no tokens as absent."""
    return x if isinstance(x, Anchor) else Anchor(x)


def zero_masked(tokens: Any, present: Any) -> Any:
    """Returns ``tokens`` (..., n, d) with 0 for the absent ones, whatever they hold."""
    if tokens is None or present is None:
        return tokens
    return jnp.where(present[..., None], tokens, 0.0)


def project(
    tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None
) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(
    per_token: Float[Array, "*batch n"], present: Any
) -> Float[Array, "*batch"]:
    """Sums over the tokens present, a boolean (*batch, n), or None if all are."""
    if present is not None:
        per_token = jnp.where(present, per_token, 0.0)
    return jnp.sum(per_token, axis=-1)


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """Raises unless ``y`` holds floating tokens (*batch, n, d) and the anchor x fits.

    Concrete values must be finite, except for tokens absent from an `Anchor`.

    Raises:
      TypeError: if an array has another dtype.
      ValueError: if an array has another shape, or is not finite.
    """
    x, present = as_anchor(x)
    if y is None:
        raise TypeError("y must be an array, got None")
    for name, value in (("y", y), ("x", x), ("x.present", present)):
        check_array(name, value)
        check_dtype(name, value, jnp.bool_ if name == "x.present" else jnp.floating)
    shape = jnp.shape(y)
    got = f"shape {shape}"
    wanted = "be (*batch, n, d) with at least two axes"
    require(len(shape) >= 2, "y", wanted, got)
    wanted = "hold at least one token of at least one number"
    require(0 not in shape[-2:], "y", wanted, got)
    wanted = f"have tokens of width dim={dim}"
    require(dim in (None, shape[-1]), "y", wanted, got)
    _check_broadcast("x", x, "shape", shape)
    _check_broadcast("x.present", present, "tokens", shape[:-1])
    check_finite("y", y, present)
    check_finite("x", x, present)


def _check_broadcast(name: str, value: Any, what: str, target: tuple[int, ...]) -> None:
    fits = value is None or broadcasts(jnp.shape(value), target)
    wanted = f"broadcast to y's {what} {target}"
    require(fits, name, wanted, f"shape {np.shape(value)}")


def _check_input(
    rows: InputRows, x: Any, tokens: tuple[int, ...], present: Any
) -> None:
    """Raises as `check_tokens` does, for an input of `InputRows`."""
    if x is None:
        return require(rows.optional, "x", f"hold {rows.what}", "None")
    takes_x = rows.width > 0
    wanted = "be None for a layer made without input_dim"
    require(takes_x, "x", wanted, "an array", "pass input_dim to learn U")

    check_array("x", x)
    check_dtype("x", x)
    shape = jnp.shape(x)
    if rows.separate:
        check_dtype("x.present", present, jnp.bool_)
        check_shape("x.present", present, shape[:-1], ", one entry a row of x")
        count = shape[-2] if len(shape) >= 2 else 1
        tokens = (*tokens[:-1], max(count, 1))

    has_width = len(shape) >= 2 and shape[-1] == rows.width
    fits = has_width and broadcasts(shape[:-1], tokens)
    wanted = f"hold {rows.what} of shape {(*tokens, rows.width)}, or broadcasting to it"
    require(fits, "x", wanted, f"shape {shape}")
    check_finite("x", x, present)


def with_param_check(descent: Descent, check: Callable[[Any], None]) -> Descent:
    """Returns ``descent`` with functions that check their params first.

    Its ``init`` raises a TypeError unless it gets a key.
    """

    def with_check(function: Any) -> Any:
        if not callable(function):
            return function

        @functools.wraps(function)
        def checked(params: Any, *rest: Any, **named: Any) -> Any:
            check(params)
            return function(params, *rest, **named)

        return checked

    def init(key: jax.Array) -> Any:
        dtype = getattr(key, "dtype", bool)
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if not (is_key or jnp.issubdtype(dtype, jnp.uint32)):
            raise TypeError(f"key must be one of jax.random.key, got {key!r}")
        return descent.init(key)

    return Descent(init, *map(with_check, descent[1:]))


def check_kind(params: Any, kind: type) -> None:
    """Raises TypeError unless params are of a type and hold arrays, None, or tuples."""
    if not isinstance(params, kind):
        raise TypeError(
            f"params must be {kind.__name__}, got {type(params).__name__}; init(key)"
            " makes them"
        )
    leaves = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda node: not isinstance(node, tuple)
    )
    for path, leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | None):
            raise not_an_array(f"params{jax.tree_util.keystr(path)}", leaf)


def check_params(params: Any, like: Any) -> None:
    """Raises unless params, a NamedTuple, have the type and shapes that ``init`` makes.

    ``like`` is what ``init`` makes, None for a layer without parameters.
    """
    if like is None:
        return
    check_kind(params, type(like))
    for name, array, leaf in zip(like._fields, params, like, strict=True):
        shape = getattr(array, "shape", None)
        wanted = getattr(leaf, "shape", None)
        got = "None" if shape is None else f"shape {shape}"
        require(shape == wanted, name, f"be {wanted}", got, "init(key) makes it")
