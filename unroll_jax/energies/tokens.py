"""Tokens that may be absent: anchors, masks, and checks of both."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import broadcasts, check_array, check_dtype, check_finite
from unroll_jax.descent import Anchor
from unroll_jax.numerics import linear

__all__ = ["as_anchor", "blank_absent", "check_tokens", "project", "sum_present"]


def as_anchor(x: Any) -> Anchor:
    """``x`` as an `Anchor`: itself, or an anchor of tokens that are all there."""
    return x if isinstance(x, Anchor) else Anchor(x)


def blank_absent(tokens: Any, present: Any) -> Any:
    """``tokens`` (..., n, d) with 0 for the absent ones, so that what padding holds, NaN even, reaches nothing."""
    return tokens if tokens is None or present is None else jnp.where(present[..., None], tokens, 0.0)


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """Checks that ``y`` holds floating tokens (*batch, n, d) and that the anchor ``x`` fits it.

    Values that are known (not traced) must be finite, but for tokens that an `Anchor` says are absent.

    Raises:
      TypeError: if ``y`` or ``x`` is no array of a floating dtype, or ``x.present`` not of booleans.
      ValueError: if the ranks or widths do not fit, there is no token, or a value that is known is not finite.
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
