"""Checks of arrays: kind, shape, and the values that are known."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from unroll_jax.arguments import require

__all__ = [
    "broadcasts",
    "check_array",
    "check_dtype",
    "check_finite",
    "check_known",
    "check_shape",
    "check_square",
]

DTYPES = {
    jnp.floating: "have a floating dtype",
    jnp.integer: "be integers",
    jnp.bool_: "be boolean",
}


def check_array(name: str, value: Any) -> None:
    """A TypeError unless ``value`` is an array, a number, or None: JAX takes no
    lists."""
    dtype = getattr(value, "dtype", None)
    # dtypes of keys have no kind
    is_array = dtype is not None and getattr(dtype, "kind", "V") not in "OSU"
    if (
        value is not None
        and not is_array
        and not isinstance(value, int | float | complex)
    ):
        raise TypeError(
            f"{name} must be an array, got {type(value).__name__}; jnp.asarray"
            " makes one"
        )


def check_dtype(name: str, value: Any, kind: Any = jnp.floating) -> None:
    """A TypeError unless an array, if there is one, is of a kind of `DTYPES`."""
    dtype = (
        kind
        if value is None
        else getattr(value, "dtype", None) or jnp.result_type(value)
    )
    if not jnp.issubdtype(dtype, kind):
        raise TypeError(f"{name} must {DTYPES[kind]}, got {dtype}; cast it first")


def check_shape(name: str, value: Any, shape: tuple[int, ...], why: str = "") -> None:
    """A ValueError unless an array, if there is one, has a shape; ``why`` follows
    the shape in the message."""
    require(
        value is None or np.shape(value) == shape,
        name,
        f"have shape {shape}{why}",
        np.shape(value),
    )


def check_square(name: str, value: Any, way_out: str = "") -> None:
    """A ValueError unless an array is a square matrix."""
    shape = np.shape(value)
    require(
        len(shape) == 2 and shape[0] == shape[-1],
        name,
        "be a square matrix",
        f"shape {shape}",
        way_out,
    )


def check_finite(name: str, value: Any, present: Any = None) -> None:
    """A ValueError that names the first NaN or infinity where values are known, but
    for rows that are not present."""
    if value is None or any(isinstance(known, Tracer) for known in (value, present)):
        return
    # parts of it lie on other hosts
    if not getattr(value, "is_fully_addressable", True):
        return
    value = np.asarray(value)
    finite = np.isfinite(value)
    if present is not None and not finite.all():
        finite, there = np.broadcast_arrays(finite, np.asarray(present)[..., None])
        value, finite = np.broadcast_to(value, finite.shape), finite | ~there
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(
            f"{name} must be finite, but {name}{list(place)} is {value[place]}"
        )


def check_known(name: str, value: Any) -> None:
    """A ValueError if an option of a layer is a traced array."""
    if isinstance(value, Tracer):
        raise ValueError(
            f"{name} must be known when the layer is made, got a traced array of shape"
            f" {value.shape}; make the layer outside jit, or from a NumPy array"
        )


def broadcasts(shape: tuple[Any, ...], target: tuple[Any, ...]) -> bool:
    """Returns whether an array of ``shape`` broadcasts to ``target``."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(padded) == len(target) and all(
        a in (1, b) for a, b in zip(padded, target, strict=True)
    )
