"""Upper bounds of the norms of matrices and convolutions, by squared Gram matrices."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.numerics import compute_dtype, full_precision, over, round_up

__all__ = ["conv_norm_bound", "matrix_norm_bound"]

# With k = 10 `matrix_norm_bound` is within a factor rank^(1 / 4096) of the norm: 0.1%
# for rank 100.
SQUARINGS = 10
# Roundings of the logarithms in `_gram_power` and of their exponential. They suffice
# for matrices of up to a million rows and columns.
LOGARITHMS = 64


def matrix_norm_bound(
    A: Array, *, num_squarings: int = SQUARINGS
) -> Float[Array, "*batch"]:
    r"""An upper bound of the spectral norm of matrices, without a decomposition.

    .. math:: |A|_2 \le \bigl| (A^* A)^{2^k} \bigr|_F^{1 / 2^{k + 1}}
              \le r^{1 / 2^{k + 2}} |A|_2 , \qquad r = rank(A) ,

    with k = ``num_squarings``. It is computed in float32 at least, and rounded up by
    h + m + 64 machine epsilons. Its products lose less.

    The derivative costs one product more. With the bound b, singular values
    :math:`\sigma_i` and singular vectors :math:`u_i, v_i`, the derivative along M is

    .. math:: Re \langle G , M \rangle , \qquad q = 2^{k + 1} + 2 , \qquad
              G = b \sum_i \sigma_i^{q - 1} u_i v_i^* / \sum_i \sigma_i^q .

    The exact derivative has :math:`q = 2^{k + 2}`. The two agree along A, if all
    singular values are equal, and if one is far above the others. Second derivatives
    differentiate G. At A = 0 the derivative is 0.

    Args:
      A: matrices, (*batch, h, m), real or complex. Fewer axes are a ValueError.
      num_squarings: k. Each halves the logarithm of the excess.

    Returns:
      One number per matrix, at least its norm, in float32 or wider.

    Source: Delattre et al. (2023), "Efficient bound of Lipschitz constant for
    convolutional layers by Gram iteration".

    Example:
      >>> import jax.numpy as jnp
      >>> A = jnp.array([[3.0, 0.0], [0.0, 1.0]])
      >>> round(float(matrix_norm_bound(A)), 3)
      3.0
      >>> round(float(matrix_norm_bound(A, num_squarings=0)), 3)
      3.009
    """
    A = jnp.asarray(A)
    require(A.ndim >= 2, "A", "hold matrices (*batch, h, m)", f"shape {A.shape}")
    return _matrix_norm_bound(A, int(num_squarings))


@functools.partial(jax.jit, static_argnums=1, inline=True)
@full_precision(always=True)
def _matrix_norm_bound(A: Array, num_squarings: int) -> Array:
    A = A.astype(compute_dtype(A))
    height, width = A.shape[-2:]

    # Squares of entries leave the range of float32 beyond 1e19, and below 1e-19.
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(A), axis=(-2, -1), initial=0.0))
    A = over(A, scale[..., None, None])

    # The transpose has the same norm, and may have the smaller Gram matrix.
    tall = A if width <= height else A.mT
    bound = scale * _gram_bound(tall, num_squarings)
    return round_up(bound, height + width + LOGARITHMS)


def conv_norm_bound(
    kernel: Float[Array, "k l i o"],
    image_shape: tuple[int, int],
    *,
    num_squarings: int = SQUARINGS,
) -> Float[Array, ""]:
    r"""An upper bound of the spectral norm of a zero-padded convolution.

    The convolution has stride 1 ("SAME"), on images of one size. It is part of a
    circular convolution on larger images, by the kernel's size less 1. The norm of the
    circular one is

    .. math:: \max_\theta |\hat K(\theta)|_2 , \qquad
              \hat K(\theta) = \sum_t K_t e^{-i \langle \theta, t \rangle} ,

    over the frequencies of the larger image. :math:`\hat K(\theta)` is a small matrix,
    of channels in and out. The bound is slightly above the true norm. On images much
    larger than the kernel both approach the maximum over all frequencies. The bound is
    rounded up, and differentiable.

    Args:
      kernel: (height, width, channels in, channels out).
      image_shape: height and width of the images.
      num_squarings: as in `matrix_norm_bound`.

    Source: Sedghi, Gupta, Long (2019) for the circular convolution. That it bounds the
    padded one is ours.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> box = jnp.ones((3, 1, 1, 1))  # adds up three pixels
      >>> bound = jax.jit(conv_norm_bound, static_argnums=1)
      >>> round(float(bound(box, (8, 1))), 3)  # of constant images, but for their edges
      3.0
    """
    kernel = jnp.asarray(kernel)
    kernel = kernel.astype(compute_dtype(kernel))
    taps, channels = kernel.shape[:2], kernel.shape[2:]
    sizes = tuple(n + k - 1 for n, k in zip(image_shape, taps, strict=True))
    symbol = jnp.fft.rfft2(kernel, s=sizes, axes=(0, 1)).reshape(-1, *channels)

    # Only the largest matrix is differentiated.
    constant = jax.lax.stop_gradient(symbol)
    bounds = matrix_norm_bound(constant, num_squarings=num_squarings)
    largest = symbol[jnp.argmax(bounds)]
    bound = matrix_norm_bound(largest, num_squarings=num_squarings)

    # A transform rounds once for each of its levels, relative to the sum of the taps'
    # norms. By Parseval that is at most this multiple of the largest symbol's norm.
    levels = 1.0 + math.log2(math.prod(sizes))
    return round_up(bound, levels * math.sqrt(math.prod(taps) * min(channels)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gram_bound(A: Array, num_squarings: int) -> Array:
    return _gram_power(A, num_squarings)[1]


# The precision again: a loop differentiates its body after the caller's setting ended.
@_gram_bound.defjvp
@full_precision(always=True)
def _(
    num_squarings: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (A,), (tangent,) = primals, tangents
    power, bound = _gram_power(A, num_squarings)
    direction = A @ power

    # <A, A P>: scaled by it, the derivative along A is the bound.
    along_A = jnp.real(jnp.sum(A.conj() * direction, axis=(-2, -1)))
    slope = bound / jnp.where(along_A == 0.0, 1.0, along_A)
    return bound, slope * jnp.real(jnp.sum(direction.conj() * tangent, axis=(-2, -1)))


def _gram_power(A: Array, num_squarings: int) -> tuple[Array, Array]:
    """Returns (A* A)^(2^k), scaled to Frobenius norm 1 or 0, and its bound of |A|_2."""
    gram = A.mT.conj() @ A
    # The power is exp(logarithm) times gram, which stays in range.
    logarithm = jnp.zeros(A.shape[:-2], jnp.real(gram).dtype)
    for _ in range(num_squarings):
        gram, size = _normalise(gram)
        logarithm = 2.0 * (logarithm + size)
        gram = _square(gram)
    gram, last = _normalise(gram)
    return gram, jnp.exp((logarithm + last) / 2 ** (num_squarings + 1))


def _normalise(gram: Array) -> tuple[Array, Array]:
    """Returns the matrix over its Frobenius norm, and the norm's logarithm."""
    square = jnp.sum(jnp.real(gram * gram.conj()), axis=(-2, -1))
    size = jnp.sqrt(jnp.where(square == 0.0, 1.0, square))
    logarithm = jnp.where(square == 0.0, -jnp.inf, jnp.log(size))
    return gram / size[..., None, None].astype(gram.dtype), logarithm


def _square(gram: Array) -> Array:
    """H H of Hermitian matrices H = R + i I.

    Three real products are enough: R is symmetric and I antisymmetric, so R I + I R is
    R I less its transpose.
    """
    if not jnp.iscomplexobj(gram):
        return gram @ gram
    real, imaginary = jnp.real(gram), jnp.imag(gram)
    mixed = real @ imaginary
    real_part = real @ real - imaginary @ imaginary
    return jax.lax.complex(real_part, mixed - mixed.mT)
