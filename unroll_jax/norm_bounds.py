"""Upper bounds of the norms of matrices and convolutions, by squared Gram matrices."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.numerics import compute_dtype, full_precision, over, round_up

__all__ = ["conv_norm_bound", "matrix_norm_bound"]

# `matrix_norm_bound` is then within a factor rank^(1 / 4096) of the norm, 0.1% for rank
# 100.
SQUARINGS = 10
# Roundings of the logarithms in `_gram_power` and of their exponential, for matrices of
# up to a million rows and columns.
LOGARITHMS = 64


@full_precision(always=True)
def matrix_norm_bound(
    A: Array, *, num_squarings: int = SQUARINGS
) -> Float[Array, "*batch"]:
    r"""An upper bound of the spectral norm of matrices, without a decomposition.

    .. math:: |A|_2 \le \bigl| (A^* A)^{2^k} \bigr|_F^{1 / 2^{k + 1}}
              \le r^{1 / 2^{k + 2}} |A|_2 , \qquad r = rank(A) ,

    with k = ``num_squarings``. It is computed in float32 at least, and rounded up by
    h + m + 64 machine epsilons, more than its products lose.

    Differentiable, for one product more. With the bound b and the singular values
    :math:`\sigma_i` of the vectors :math:`u_i, v_i`, the derivative along M is taken to
    be

    .. math:: Re \langle G , M \rangle , \qquad q = 2^{k + 1} + 2 , \qquad
              G = b \sum_i \sigma_i^{q - 1} u_i v_i^* / \sum_i \sigma_i^q .

    The bound's own has :math:`q = 2^{k + 2}`: the same along A, where all singular
    values are equal, and where one is far above the others. Second derivatives
    differentiate G. At A = 0 it is 0.

    Args:
      A: matrices, (*batch, h, m), real or complex; a ValueError for fewer axes.
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
    require(
        jnp.ndim(A) >= 2, "A", "hold matrices (*batch, h, m)", f"shape {jnp.shape(A)}"
    )
    A = jnp.asarray(A)
    A = A.astype(compute_dtype(A))
    # Squares of entries leave the range of float32 beyond 1e19, and below 1e-19.
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(A), axis=(-2, -1), initial=0.0))
    scale = jnp.where(scale == 0.0, 1.0, scale)
    A = over(A, scale[..., None, None])
    height, width = A.shape[-2:]
    # The transpose has the same norm, and may have the smaller Gram matrix.
    tall = A if width <= height else jnp.swapaxes(A, -1, -2)
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
    circular one on images larger by the kernel less 1, whose norm is

    .. math:: \max_\theta |\hat K(\theta)|_2 , \qquad
              \hat K(\theta) = \sum_t K_t e^{-i \langle \theta, t \rangle} ,

    over the frequencies of that larger image, one small matrix each. The bound is
    slightly above the true norm: on images much larger than the kernel both approach
    the maximum over all frequencies. It is rounded up, and differentiable.

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

    bounds = matrix_norm_bound(
        jax.lax.stop_gradient(symbol), num_squarings=num_squarings
    )
    largest = symbol[jnp.argmax(bounds)]  # the only one that is differentiated
    bound = matrix_norm_bound(largest, num_squarings=num_squarings)

    # A transform rounds once for each of its levels, relative to the sum of the taps'
    # norms. By Parseval that is at most this multiple of the largest symbol's norm.
    levels = 1.0 + math.log2(math.prod(sizes))
    return round_up(bound, levels * math.sqrt(math.prod(taps) * min(channels)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gram_bound(A: Array, num_squarings: int) -> Array:
    return _gram_power(A, num_squarings)[1]


@_gram_bound.defjvp
# loops differentiate their body when the caller's setting is gone
@full_precision(always=True)
def _(
    num_squarings: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (A,), (moved,) = primals, tangents
    power, bound = _gram_power(A, num_squarings)
    towards = A @ power
    # <A, A P>: along A the bound grows as itself
    share = jnp.real(jnp.sum(A.conj() * towards, axis=(-2, -1)))
    slope = bound / jnp.where(share == 0.0, 1.0, share)
    return bound, slope * jnp.real(jnp.sum(towards.conj() * moved, axis=(-2, -1)))


def _gram_power(A: Array, num_squarings: int) -> tuple[Array, Array]:
    """(A* A)^(2^k), of Frobenius norm 1 or 0, and the bound of |A|_2 that it makes."""
    gram = jnp.swapaxes(A, -1, -2).conj() @ A
    # of the factor taken out of gram so far
    logarithm = jnp.zeros(A.shape[:-2], jnp.real(gram).dtype)
    for _ in range(num_squarings):
        gram, taken = _normalise(gram)
        logarithm = 2.0 * (logarithm + taken)
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

    Three real products are enough for complex ones: R I + I R is R I less its
    transpose.
    """
    if not jnp.iscomplexobj(gram):
        return gram @ gram
    real, imaginary = jnp.real(gram), jnp.imag(gram)
    mixed = real @ imaginary
    return jax.lax.complex(
        real @ real - imaginary @ imaginary, mixed - jnp.swapaxes(mixed, -1, -2)
    )
