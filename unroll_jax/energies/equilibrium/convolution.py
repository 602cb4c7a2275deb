"""Convolutions whose derivatives are quick inside of loops, on CPUs too."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

__all__ = ["convolve"]


@jax.custom_jvp
def convolve(
    kernel: Float[Array, "k l i o"], images: Float[Array, "b h w i"]
) -> Float[Array, "b h w o"]:
    """The convolution ("SAME", stride 1) of images with a kernel.

    It is that of neural networks. Its derivatives are of any order and in both modes.
    On CPU they pass through one product with all shifts of the image: in loops, where
    equilibria are found, XLA has no fast kernels for the convolutions that autodiff
    makes.
    """
    return _convolve(kernel, images)


@functools.partial(convolve.defjvp, symbolic_zeros=True)
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    kernel, images = primals
    by_kernel, by_images = tangents
    moved = jnp.zeros((*images.shape[:-1], kernel.shape[-1]), images.dtype)
    if not isinstance(by_kernel, SymbolicZero):
        moved = moved + _linear(jnp.asarray(by_kernel), images)
    if not isinstance(by_images, SymbolicZero):
        moved = moved + _linear(kernel, jnp.asarray(by_images))
    return convolve(kernel, images), moved


def _linear(kernel: Array, images: Array) -> Array:
    """The convolution as one product on CPUs, and as JAX's convolution elsewhere.

    The platform is that of compilation, which need not be the default one in a trace.
    """
    # JAX does not transpose a convolution of images sharded on an explicit mesh.
    if any(axes is not None for axes in jax.typeof(images).sharding.spec):
        return _multiply(kernel, images)
    return jax.lax.platform_dependent(kernel, images, cpu=_multiply, default=_convolve)


def _convolve(kernel: Array, images: Array) -> Array:
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _multiply(kernel: Array, images: Array) -> Array:
    """One product for all taps, then shifts and sums.

    Reverse mode ends with the product, which XLA computes once.
    """
    rows, columns, inner, outer = kernel.shape
    height, width = images.shape[1:3]
    moved = images.reshape(-1, inner) @ jnp.moveaxis(kernel, 2, 0).reshape(inner, -1)
    moved = moved.reshape(*images.shape[:3], rows * columns * outer)
    total = jnp.zeros((*images.shape[:3], outer), moved.dtype)
    for place, tap in enumerate(jnp.split(moved, rows * columns, axis=-1)):
        # Tap (i, j) of output (y, x) sees input (y + down, x + right).
        down = place // columns - (rows - 1) // 2
        right = place % columns - (columns - 1) // 2
        around = [(max(-down, 0), max(down, 0)), (max(-right, 0), max(right, 0))]
        padded = jnp.pad(tap, [(0, 0), *around, (0, 0)])
        moved_tap = padded[:, max(down, 0) :, max(right, 0) :]
        total = total + moved_tap[:, :height, :width]
    return total
