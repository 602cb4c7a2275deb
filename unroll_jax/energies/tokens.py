"""Layers on tokens: presence, dtype and anchors are handled here, so that an energy's file is its equation."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import broadcasts, check_array, check_dtype, check_finite
from unroll_jax.descent import Anchor, Descent
from unroll_jax.energies.inputs import check_params, guarded
from unroll_jax.numerics import compute_dtype, linear

__all__ = ["Tokens", "as_anchor", "blank_absent", "check_tokens", "on_tokens", "project", "sum_present"]


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
    """

    def read(values: Any, y: Any, x: Any) -> Tokens:
        x, present = as_anchor(x)
        check_tokens(y, Anchor(x if check_x is None else None, present), dim=dim)
        if check_x is not None:
            check_x(x, y.shape[:-1], present)
        for name, shape in (shapes or {}).items():
            check_params(name, getattr(values, name), shape)
        dtype = compute_dtype(y, *jax.tree.leaves(values), x if x_widens else None)
        wide = jnp.asarray(blank_absent(y, present), dtype)
        given = None if x is None else jnp.asarray(blank_absent(x, present), dtype)
        return Tokens(wide, given, present, jnp.result_type(y))

    def write(stepped: Array, y: Array, present: Any) -> Array:
        stepped = stepped.astype(y.dtype)
        return stepped if present is None else jnp.where(present[..., None], stepped, y)

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
    """Checks that ``y`` holds floating tokens (*batch, n, d) and that the anchor ``x`` fits it.

    Values that are known (not traced) must be finite, but for tokens absent from an `Anchor`.

    Raises:
      TypeError: if ``y`` or ``x`` is not an array of a floating dtype, or ``x.present`` not of booleans.
      ValueError: if the ranks or widths do not fit, y holds no token, or a value that is known is not finite.
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
    for name, value, target in (("x", x, shape), ("x.present", present, shape[:-1])):
        what = "y's shape" if name == "x" else "y's tokens"
        fits = value is None or broadcasts(jnp.shape(value), target)
        require(fits, name, f"broadcast to {what} {target}", f"shape {np.shape(value)}")
    check_finite("y", y, present)
    check_finite("x", x, present)


def project(tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(per_token: Float[Array, "*batch n"], present: Any) -> Float[Array, "*batch"]:
    """The sum over the tokens that are there; ``present`` is a boolean (*batch, n), or None if all are."""
    return jnp.sum(per_token if present is None else blank_absent(per_token[..., None], present)[..., 0], axis=-1)
