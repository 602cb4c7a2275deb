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
    """The convolution ("SAME", stride 1) of images with a kernel, as in networks.

    It has derivatives of any order, in both modes. On CPUs they use one product with
    all taps of the kernel. Equilibria are found in loops, and there XLA has no fast
    kernels for the convolutions that autodiff makes.
    """
    return _convolve(kernel, images)


@functools.partial(convolve.defjvp, symbolic_zeros=True)
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    kernel, images = primals
    kernel_tangent, images_tangent = tangents
    tangent = jnp.zeros((*images.shape[:-1], kernel.shape[-1]), images.dtype)
    if not isinstance(kernel_tangent, SymbolicZero):
        tangent = tangent + _linear(jnp.asarray(kernel_tangent), images)
    if not isinstance(images_tangent, SymbolicZero):
        tangent = tangent + _linear(kernel, jnp.asarray(images_tangent))
    return convolve(kernel, images), tangent


def _linear(kernel: Array, images: Array) -> Array:
    """The convolution as one product on CPUs, and as JAX's convolution elsewhere.

    The platform is the one compiled for. A trace does not know it.
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

    flat_kernel = jnp.moveaxis(kernel, 2, 0).reshape(inner, -1)
    products = images.reshape(-1, inner) @ flat_kernel
    products = products.reshape(*images.shape[:3], rows * columns * outer)

    total = jnp.zeros((*images.shape[:3], outer), products.dtype)
    for place, tap in enumerate(jnp.split(products, rows * columns, axis=-1)):
        # Tap (i, j) of output (y, x) sees input (y + down, x + right).
        down = place // columns - (rows - 1) // 2
        right = place % columns - (columns - 1) // 2

        # Inputs beyond the edge are 0.
        above, below = max(-down, 0), max(down, 0)
        before, after = max(-right, 0), max(right, 0)
        padded = jnp.pad(tap, [(0, 0), (above, below), (before, after), (0, 0)])
        total = total + padded[:, below:, after:][:, :height, :width]
    return total
