"""Checks of arrays: kind, shape, and the values that are known."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from unroll_jax.arguments import require

__all__ = [
    "broadcasts",
    "check_array",
    "check_concrete",
    "check_dtype",
    "check_event",
    "check_finite",
    "check_shape",
    "check_square",
    "common_dtype",
    "not_an_array",
    "widen_integers",
]

DTYPES = {
    jnp.floating: "have a floating dtype",
    jnp.integer: "be integers",
    jnp.bool_: "be boolean",
}


def check_array(name: str, value: Any) -> None:
    """A TypeError unless a value is an array, a number or None. JAX takes no lists."""
    if value is None or isinstance(value, int | float | complex):
        return
    dtype = getattr(value, "dtype", None)
    # dtypes of keys have no kind
    if dtype is None or getattr(dtype, "kind", "V") in "OSU":
        raise not_an_array(name, value)


def not_an_array(name: str, value: Any) -> TypeError:
    """Returns the error on a value that is no array, with the way to one."""
    way_out = (
        "if it is a module, pass its arrays (nnx.split, eqx.partition, linen's init)"
        if callable(value)
        else "jnp.asarray makes one"
    )
    return TypeError(f"{name} must be an array, got {type(value).__name__}; {way_out}")


def check_dtype(name: str, value: Any, kind: Any = jnp.floating) -> None:
    """A TypeError unless an array, if there is one, is of a kind of `DTYPES`."""
    if value is None:
        return
    dtype = getattr(value, "dtype", None) or jnp.result_type(value)
    if not jnp.issubdtype(dtype, kind):
        raise TypeError(f"{name} must {DTYPES[kind]}, got {dtype}; cast it first")


def check_shape(name: str, value: Any, shape: tuple[int, ...], why: str = "") -> None:
    """A ValueError unless an array, if there is one, has a shape.

    ``why`` follows the shape in the message.
    """
    require(
        value is None or np.shape(value) == shape,
        name,
        f"have shape {shape}{why}",
        np.shape(value),
    )


def check_event(name: str, value: Any, event: tuple[int | None, ...]) -> None:
    """Raises unless an array has floating entries and is (*batch, *event).

    The last size of ``event`` is checked. One of three axes is of images.
    """
    check_array(name, value)
    if value is None:
        raise TypeError(f"{name} must be an array, got None")
    check_dtype(name, value)
    shape = np.shape(value)
    axes = "height, width, " if len(event) == 3 else ""
    fits = len(shape) >= len(event) and shape[-1] == event[-1]
    require(fits, name, f"be (*batch, {axes}{event[-1]})", f"shape {shape}")


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
    """A ValueError that names the first NaN or infinity of known values.

    Rows that are not present may hold anything.
    """
    if value is None or isinstance(value, Tracer) or isinstance(present, Tracer):
        return
    # parts of it lie on other hosts
    if not getattr(value, "is_fully_addressable", True):
        return
    value = np.asarray(value)
    finite = np.isfinite(value)
    if present is not None and not finite.all():
        finite, there = np.broadcast_arrays(finite, np.asarray(present)[..., None])
        finite = finite | ~there
        value = np.broadcast_to(value, finite.shape)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(
            f"{name} must be finite, but {name}{list(place)} is {value[place]}"
        )


def check_concrete(name: str, value: Any) -> None:
    """A ValueError if an option of a layer is a traced array."""
    if isinstance(value, Tracer):
        raise ValueError(
            f"{name} must be known when the layer is made, got a traced array of shape"
            f" {value.shape}; make the layer outside jit, or from a NumPy array"
        )


def widen_integers(values: Any) -> Any:
    """Integers of int32 at least.

    JAX gives a Python number the dtype of the array that it meets: 300 is 44 for uint8.
    """
    return values.astype(jnp.int32) if values.dtype.itemsize < 4 else values


def common_dtype(*dtypes: Any) -> Any:
    """The dtype that holds all of these, also under strict promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, dtypes)


def broadcasts(shape: tuple[Any, ...], target: tuple[Any, ...]) -> bool:
    """Returns whether an array of ``shape`` broadcasts to ``target``."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(padded) == len(target) and all(
        a in (1, b) for a, b in zip(padded, target, strict=True)
    )
