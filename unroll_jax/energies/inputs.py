"""Checks of what a layer is given: params, masks, and an x that is no anchor (keys, signals, features)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.descent import blank_absent, broadcasts, linear

__all__ = ["check_input", "check_known", "check_params", "project", "sum_present"]


def check_input(x: Any, tokens: tuple[int, ...], *, width: int, what: str, present: Any = None) -> None:
    """Checks that x holds ``what``: floating rows of the width asked for, whose leading axes broadcast to ``tokens``.

    Raises:
      TypeError: if x is not of a floating dtype.
      ValueError: if x is None, its shape does not fit, or a value that is known and present is not finite.
    """
    if x is None:
        raise ValueError(f"x must hold {what}, got None")
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


def check_params(name: str, array: Any, shape: tuple[int, ...] | None) -> None:
    """Checks that a layer's params are of the shape that it was made for; None stands for no array.

    Raises:
      ValueError: if they are not.
    """
    if (None if array is None else jnp.shape(array)) != shape:
        got = "None" if array is None else f"shape {jnp.shape(array)}"
        raise ValueError(f"{name} must be {shape}, got {got}; init(key) makes it")


def project(tokens: Float[Array, "*batch n d"], W_a: Float[Array, "d k"] | None) -> Float[Array, "*batch n k"]:
    """tokens W_a in the tokens' dtype, or the tokens themselves where W_a is None."""
    return tokens if W_a is None else linear(tokens, W_a.astype(tokens.dtype))


def sum_present(per_token: Float[Array, "*batch n"], present: Any) -> Float[Array, "*batch"]:
    """The sum over the tokens that are there; ``present`` is a boolean (*batch, n), or None if all are."""
    return jnp.sum(per_token if present is None else blank_absent(per_token[..., None], present)[..., 0], axis=-1)
