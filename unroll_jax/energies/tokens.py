"""Presence, dtypes and checks of layers on tokens, in one place: an energy's file is
its equation."""

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
)
from unroll_jax.descent import Anchor, Descent
from unroll_jax.numerics import compute_dtype, linear

__all__ = [
    "Plain",
    "Rows",
    "Tokens",
    "as_anchor",
    "blank_absent",
    "check_kind",
    "check_tokens",
    "guarded",
    "no_params",
    "on_tokens",
    "plain",
    "project",
    "sum_present",
]


class Tokens(NamedTuple):
    """Input of a plain energy or step, in the dtype of the computation, with 0 in place
    of absent tokens.

    Attributes:
      y, x: the tokens; the anchor or other input, or None.
      present, dtype: boolean (*batch, n), or None if every token is there; of the
        tokens outside.
    """

    y: Float[Array, "*batch n d"]
    x: Any
    present: Bool[Array, "..."] | None
    dtype: Any


class Plain(NamedTuple):
    """Functions of ``(params, tokens)`` without checks or casts; a step's values of
    absent tokens do not count.

    Attributes:
      energy: ``-> (*batch,)``, which leaves absent tokens out of its sum.
      step: ``-> y'``, in any floating dtype.
      step_and_energy: both at once, or None.
    """

    energy: Callable[[Any, Tokens], Float[Array, "*batch"]]
    step: Callable[[Any, Tokens], Float[Array, "*batch n d"]]
    step_and_energy: Callable[[Any, Tokens], tuple[Array, Array]] | None = None


class Rows(NamedTuple):
    """An input x other than an anchor: rows of numbers, whose leading axes broadcast to
    the tokens.

    Attributes:
      what, width: their content, for messages; numbers in a row, 0 where x must be
        None.
      separate: whether they are not one a token, but keys or pairs, which
        `Anchor.present` then marks.
      optional: whether x may be None.
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
    rows: Rows | None = None,
) -> Descent:
    """A layer from plain functions of ``(params, tokens)``, see `Plain`.

    Params must have the type and shapes that ``init`` makes. All arrays enter in one
    dtype, float32 at least. Absent tokens enter as 0 and stay. A composite layer takes
    the plain functions of its parts by `plain`.

    Args:
      init: as in `Descent`; it makes None, or a NamedTuple of arrays and None.
      energy, step, step_and_energy: as in `Plain`.
      dim, num_tokens: width and number of the tokens; None is any.
      rows: what x holds; None is an anchor.
    """

    separate = rows is not None and rows.separate

    @functools.cache
    def made() -> Any:
        return jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))

    def read(params: Any, y: Any, x: Any) -> tuple[Any, Tokens]:
        x, present = as_anchor(x)
        there = None if separate else present
        check_tokens(y, Anchor(x if rows is None else None, there), dim=dim)
        if there is not None:
            there = present = jnp.broadcast_to(there, y.shape[:-1])
        require(
            num_tokens in (None, y.shape[-2]),
            "y",
            f"hold {num_tokens} rows",
            y.shape[-2],
        )
        if rows is not None:
            _check_rows(rows, x, y.shape[:-1], present)
        dtype = compute_dtype(y, *jax.tree.leaves(params), None if rows is None else x)
        params, wide, given = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype),
            (params, blank_absent(y, there), blank_absent(x, present)),
        )
        return params, Tokens(wide, given, present, jnp.result_type(y))

    def write(stepped: Array, y: Array, present: Any) -> Array:
        stepped = stepped.astype(y.dtype)
        return (
            stepped
            if present is None or separate
            else jnp.where(present[..., None], stepped, y)
        )

    def energy_of(params: Any, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        return energy(*read(params, y, x))

    def step_of(params: Any, y: Array, x: Any = None) -> Array:
        params, tokens = read(params, y, x)
        return write(step(params, tokens), y, tokens.present)

    def both_of(
        params: Any, y: Array, x: Any = None
    ) -> tuple[Array, Float[Array, "*batch"]]:
        assert step_and_energy is not None
        params, tokens = read(params, y, x)
        stepped, value = step_and_energy(params, tokens)
        return write(stepped, y, tokens.present), value

    layer = Descent(
        init, energy_of, step_of, None if step_and_energy is None else both_of
    )
    layer = guarded(layer, lambda params: _check_params(params, made()))
    for function, of_tokens in zip(
        layer[1:4], (energy, step, step_and_energy), strict=True
    ):
        if function is not None:
            setattr(function, PLAIN, (of_tokens, separate))
    return layer


# The attribute of a layer's function that holds the plain one and `Rows.separate`;
# wrappers may copy it.
PLAIN = "on_tokens"


def plain(descent: Descent) -> Plain:
    """The plain functions that `on_tokens` made a layer of."""

    def find(function: Any) -> Any:
        return function and getattr(function, PLAIN)[0]

    return Plain(*map(find, descent[1:4]))


def present_of(descent: Descent, x: Any) -> Any:
    """The marks of the tokens that are there, or None; an `Anchor` of keys or pairs
    marks no tokens."""
    _, separate = getattr(descent.step, PLAIN, (None, False))
    return None if separate else as_anchor(x).present


def no_params(key: jax.Array) -> None:
    """The ``init`` of a layer without parameters."""
    return None


def as_anchor(x: Any) -> Anchor:
    """``x`` as an `Anchor`: itself, or an anchor of tokens that are all there."""
    return x if isinstance(x, Anchor) else Anchor(x)


def blank_absent(tokens: Any, present: Any) -> Any:
    """``tokens`` (..., n, d) with 0 for the absent ones: padding, even NaN, affects
    nothing."""
    return (
        tokens
        if tokens is None or present is None
        else jnp.where(present[..., None], tokens, 0.0)
    )


def project(
    tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None
) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(
    per_token: Float[Array, "*batch n"], present: Any
) -> Float[Array, "*batch"]:
    """The sum over the tokens that are there; ``present`` is a boolean (*batch, n),
    or None if all are."""
    return jnp.sum(
        per_token if present is None else jnp.where(present, per_token, 0.0), axis=-1
    )


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """A TypeError or ValueError unless ``y`` holds floating tokens (*batch, n, d) and
    the anchor ``x`` fits it.

    Values that are known (not traced) must be finite, but for tokens absent from an
    `Anchor`.
    """
    x, present = as_anchor(x)
    if y is None:
        raise TypeError("y must be an array, got None")
    for name, value in (("y", y), ("x", x), ("x.present", present)):
        check_array(name, value)
        check_dtype(name, value, jnp.bool_ if name == "x.present" else jnp.floating)
    shape = jnp.shape(y)
    require(
        len(shape) >= 2,
        "y",
        "be (*batch, n, d) with at least two axes",
        f"shape {shape}",
    )
    require(
        0 not in shape[-2:],
        "y",
        "hold at least one token of at least one number",
        f"shape {shape}",
    )
    require(
        dim in (None, shape[-1]),
        "y",
        f"have tokens of width dim={dim}",
        f"shape {shape}",
    )
    for name, value, what, target in (
        ("x", x, "shape", shape),
        ("x.present", present, "tokens", shape[:-1]),
    ):
        fits = value is None or broadcasts(jnp.shape(value), target)
        require(
            fits, name, f"broadcast to y's {what} {target}", f"shape {np.shape(value)}"
        )
    check_finite("y", y, present)
    check_finite("x", x, present)


def _check_rows(rows: Rows, x: Any, tokens: tuple[int, ...], present: Any) -> None:
    """The same of an input of `Rows`."""
    if x is None:
        return require(rows.optional, "x", f"hold {rows.what}", "None")
    require(
        rows.width > 0,
        "x",
        "be None for a layer made without input_dim",
        "an array",
        "pass input_dim to learn U",
    )
    check_array("x", x)
    check_dtype("x", x)
    shape = jnp.shape(x)
    if rows.separate:
        check_dtype("x.present", present, jnp.bool_)
        check_shape("x.present", present, shape[:-1], ", one entry a row of x")
        tokens = (*tokens[:-1], max(shape[-2], 1) if len(shape) >= 2 else 1)
    fits = (
        len(shape) >= 2 and shape[-1] == rows.width and broadcasts(shape[:-1], tokens)
    )
    wanted = f"hold {rows.what} of shape {(*tokens, rows.width)}, or broadcasting to it"
    require(fits, "x", wanted, f"shape {shape}")
    check_finite("x", x, present)


def guarded(descent: Descent, check: Callable[[Any], None]) -> Descent:
    """``descent`` with functions that check their params first; ``init`` raises a
    TypeError unless it gets a key."""

    def of_params(function: Any) -> Any:
        if not callable(function):
            return function

        @functools.wraps(function)
        def checked(params: Any, *rest: Any, **named: Any) -> Any:
            check(params)
            return function(params, *rest, **named)

        return checked

    def init(key: jax.Array) -> Any:
        if not any(
            jnp.issubdtype(getattr(key, "dtype", bool), dtype)
            for dtype in (jax.dtypes.prng_key, jnp.uint32)
        ):
            raise TypeError(f"key must be one of jax.random.key, got {key!r}")
        return descent.init(key)

    return Descent(init, *map(of_params, descent[1:]))


def check_kind(params: Any, kind: type) -> None:
    """A TypeError unless params are of a type and hold arrays, None, or tuples of
    such."""
    if not isinstance(params, kind):
        raise TypeError(
            f"params must be {kind.__name__}, got {type(params).__name__}; init(key)"
            " makes them"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda node: not isinstance(node, tuple)
    ):
        if not isinstance(leaf, jax.Array | np.ndarray | None):
            name = f"params{jax.tree_util.keystr(path)}"
            raise TypeError(
                f"{name} must be an array, got {type(leaf).__name__}; jnp.asarray"
                " makes one"
            )


def _check_params(params: Any, made: Any) -> None:
    """An error unless params, a NamedTuple, are of the type and shapes of those that
    ``init`` makes."""
    if made is not None:
        check_kind(params, type(made))
        for name, array, like in zip(made._fields, params, made, strict=True):
            shape, wanted = (getattr(leaf, "shape", None) for leaf in (array, like))
            got = "None" if shape is None else f"shape {shape}"
            require(shape == wanted, name, f"be {wanted}", got, "init(key) makes it")
