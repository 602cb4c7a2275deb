r"""Weights W with :math:`I - W \succeq m I`, dense or convolutional: what makes an equilibrium unique for any input."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from unroll_jax.arguments import ODD, POSITIVE, at_least, checked, require

__all__ = ["MonotoneParams", "monotone_init", "monotone_product", "monotone_resolvent", "monotone_weight"]


class MonotoneParams(NamedTuple):
    """A and B, and the Frobenius norms that they are brought to; the rank of A tells their kind.

    Attributes:
      A: (m, m), or a kernel (height, width, c, c) of a convolution.
      B: the same.
      A_scale: norm of A.
      B_scale: norm of B.

    Example:
      >>> import jax
      >>> params = monotone_init(jax.random.key(0), size=4, kernel_size=3)
      >>> params.A.shape, float(params.A_scale)
      ((3, 3, 4, 4), 1.0)
    """

    A: Float[Array, "..."]
    B: Float[Array, "..."]
    A_scale: Float[Array, ""]
    B_scale: Float[Array, ""]


@checked(size=at_least(1), kernel_size=ODD)
def monotone_init(key: jax.Array, size: int, kernel_size: int | None = None) -> MonotoneParams:
    """Random A and B with scales of 1.

    Args:
      key: of the random numbers.
      size: width m, or channels c.
      kernel_size: side of the kernels, odd; None is dense.

    Returns:
      `MonotoneParams` in float32.

    Raises:
      ValueError: if size is below 1, or kernel_size even or below 1.

    Example:
      >>> import jax
      >>> monotone_init(jax.random.key(0), size=4).A.shape
      (4, 4)
    """
    shape = (size, size) if kernel_size is None else (kernel_size, kernel_size, size, size)
    A, B = (jax.random.normal(matrix_key, shape) / math.sqrt(math.prod(shape)) for matrix_key in jax.random.split(key))
    return MonotoneParams(A, B, jnp.ones(()), jnp.ones(()))


@checked(margin=POSITIVE)
def monotone_weight(
    params: MonotoneParams, *, margin: float = 1.0, image_shape: tuple[int, int] | None = None
) -> Inexact[Array, "..."]:
    r"""W, of which the symmetric part of I - W is at least m:

    .. math:: W = (1 - m) I - A^T A + B - B^T , \qquad A = g_A A_0 / |A_0|_F , \quad B = g_B B_0 / |B_0|_F .

    Convolutions wrap around the edges of images of one size. The discrete Fourier transform then takes W apart into one
    small matrix per frequency, and so it is returned.

    Args:
      params: A_0, B_0 and the scales g.
      margin: m, positive.
      image_shape: height and width of the images, for kernels.

    Returns:
      (m, m); or complex (height, width // 2 + 1, c, c), at the frequencies of `jax.numpy.fft.rfft2`.

    Raises:
      ValueError: if margin is not positive, or image_shape is not that of images at least as large as the kernels.
      TypeError: if params are no `MonotoneParams`.

    Source: Winston and Kolter (2020), Proposition 1 and Appendix C. In their code the scale of convolutions multiplies
    :math:`A^T A`: it is the square of g_A here. Their g_B is the same, and their dense layer has no scales.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> W = monotone_weight(monotone_init(jax.random.key(0), size=3), margin=0.5)
      >>> bool(jnp.linalg.eigvalsh(jnp.eye(3) - 0.5 * (W + W.T)).min() >= 0.5 - 1e-4)
      True
    """
    if not isinstance(params, MonotoneParams):
        raise TypeError(
            f"params must be MonotoneParams, got {type(params).__name__}; monotone_init(key, size) makes them"
        )
    A, B = (
        scale * raw / jnp.linalg.norm(raw.ravel())
        for raw, scale in ((params.A, params.A_scale), (params.B, params.B_scale))
    )
    if A.ndim == 4:
        A, B = (_symbol(kernel, image_shape) for kernel in (A, B))

    def adjoint(M: Array) -> Array:
        return jnp.swapaxes(M, -1, -2).conj()

    return (1.0 - margin) * jnp.eye(A.shape[-1], dtype=A.dtype) - adjoint(A) @ A + B - adjoint(B)


def monotone_resolvent(W: Inexact[Array, "..."], step_size: float | Float[Array, ""] = 1.0) -> Inexact[Array, "..."]:
    r"""V = (I + \alpha (I - W))^{-1}, in the form that W has; its norm is at most :math:`1 / (1 + \alpha m)`.

    Args:
      W: of `monotone_weight`.
      step_size: alpha, positive.

    Returns:
      V, of the shape and dtype of W.

    Source: Winston and Kolter (2020), Section 3.3.

    Example:
      >>> import jax.numpy as jnp
      >>> monotone_resolvent(-jnp.eye(2), step_size=0.5).tolist()  # 1 / (1 + 0.5 * 2)
      [[0.5, 0.0], [0.0, 0.5]]
    """
    identity = jnp.eye(W.shape[-1], dtype=W.dtype)
    return jnp.linalg.inv((1.0 + step_size) * identity - step_size * W)


def monotone_product(W: Inexact[Array, "..."], z: Float[Array, "..."]) -> Float[Array, "..."]:
    """W z for vectors (*batch, m), or images (*batch, height, width, c); of a resolvent V as of W.

    Args:
      W: of `monotone_weight`, (m, m) or at the frequencies of images.
      z: vectors or images that W was made for.

    Returns:
      W z, of the shape of z.

    Example:
      >>> import jax.numpy as jnp
      >>> monotone_product(jnp.array([[0.0, 2.0], [1.0, 0.0]]), jnp.array([3.0, 4.0])).tolist()
      [8.0, 3.0]
    """
    if W.ndim == 2:
        return z @ W.T
    transformed = jnp.einsum("hwoi,...hwi->...hwo", W, jnp.fft.rfft2(z, axes=(-3, -2)))
    return jnp.fft.irfft2(transformed, s=z.shape[-3:-1], axes=(-3, -2)).astype(z.dtype)


def _symbol(kernel: Float[Array, "k l i o"], image_shape: tuple[int, int] | None) -> Inexact[Array, "h w o i"]:
    """The matrices of a circular convolution whose kernel is centred on the pixel it computes, one per frequency."""
    window = kernel.shape[:2]
    fits = image_shape is not None and all(size >= side for size, side in zip(image_shape, window, strict=True))
    require(fits, "image_shape", f"be at least the kernels' {window}", image_shape)
    assert image_shape is not None
    padded = jnp.zeros((*image_shape, *kernel.shape[2:]), kernel.dtype).at[: window[0], : window[1]].set(kernel)
    centred = jnp.roll(padded, [-(side // 2) for side in window], axis=(0, 1))
    # A layer correlates with its kernel, which conjugates; matrices map channels in to channels out.
    return jnp.swapaxes(jnp.fft.rfft2(centred, axes=(0, 1)).conj(), -1, -2)
