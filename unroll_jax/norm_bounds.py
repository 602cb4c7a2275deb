"""Upper bounds of the norms of matrices and of convolutions, by squaring Gram
matrices."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.numerics import full_precision, over

__all__ = ["conv_norm_bound", "matrix_norm_bound"]

# of `matrix_norm_bound`, which is then within a factor rank^(1 / 4096) of the norm,
# 0.1% for rank 100
SQUARINGS = 10


@full_precision()
def matrix_norm_bound(
    A: Array, *, num_squarings: int = SQUARINGS
) -> Float[Array, "*batch"]:
    r"""An upper bound of the spectral norm of matrices (*batch, h, m), real or complex,
    without a decomposition.

    .. math:: |A|_2 \le \bigl| (A^* A)^{2^k} \bigr|_F^{1 / 2^{k + 1}} \le r^{1 / 2^{k + 2}} |A|_2 , \qquad r = rank(A) ,

    with k = ``num_squarings``, up to rounding. Differentiable, for one product more.
    With the bound b and the singular values :math:`\sigma_i` of the vectors
    :math:`u_i, v_i`, the derivative along M is taken to be

    .. math:: Re \langle G , M \rangle , \qquad
              G = b \sum_i \sigma_i^{q - 1} u_i v_i^* / \sum_i \sigma_i^q , \qquad q = 2^{k + 1} + 2 .

    The bound's own has :math:`q = 2^{k + 2}`: the same along A, where all singular
    values are equal, and where one is far above the others. Second derivatives
    differentiate G; at A = 0 it is 0.

    Args:
      A: matrices, (*batch, h, m), real or complex; a ValueError for fewer axes.
      num_squarings: k; each halves the logarithm of the excess.

    Returns:
      One number per matrix, at least its norm up to rounding.

    Source: Delattre et al. (2023), "Efficient bound of Lipschitz constant for
    convolutional layers by Gram iteration".

    Example:
      >>> import jax.numpy as jnp
      >>> A = jnp.array([[3.0, 0.0], [0.0, 1.0]])
      >>> (
      ...     round(float(matrix_norm_bound(A)), 3),
      ...     float(matrix_norm_bound(A, num_squarings=0)) > 3.0,
      ... )
      (3.0, True)
    """
    require(
        jnp.ndim(A) >= 2, "A", "hold matrices (*batch, h, m)", f"shape {jnp.shape(A)}"
    )
    # Squares of entries leave the range of float32 beyond 1e19, and below 1e-19.
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(A), axis=(-2, -1), initial=0.0))
    scale = jnp.where(scale == 0.0, 1.0, scale)
    A = over(A, scale[..., None, None])
    # of the same norm
    tall = A if A.shape[-1] <= A.shape[-2] else jnp.swapaxes(A, -1, -2)
    return scale * _gram_bound(tall, num_squarings)


def conv_norm_bound(
    kernel: Float[Array, "k l i o"],
    image_shape: tuple[int, int],
    *,
    num_squarings: int = SQUARINGS,
) -> Float[Array, ""]:
    r"""An upper bound of the spectral norm of a zero-padded convolution ("SAME", stride
    1) on images of one size.

    Such a convolution is part of a circular one on images larger by the kernel less 1,
    whose norm is

    .. math:: \max_\theta |\hat K(\theta)|_2 , \qquad \hat K(\theta) = \sum_t K_t e^{-i \langle \theta, t \rangle} ,

    over the frequencies of that larger image, one small matrix each. Above the true
    norm by little: on images much larger than the kernel both approach the maximum over
    all frequencies. Differentiable.

    Args:
      kernel: (height, width, channels in, channels out).
      image_shape: height and width of the images.
      num_squarings: as in `matrix_norm_bound`.

    Source: Sedghi, Gupta, Long (2019) for the circular convolution; that it bounds the
    padded one is ours.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> box, bound = (
      ...     jnp.ones((3, 1, 1, 1)),
      ...     jax.jit(conv_norm_bound, static_argnums=1),
      ... )  # adds up three pixels
      >>> round(
      ...     float(bound(box, (8, 1))), 3
      ... )  # reached by constant images, but for their edges
      3.0
    """
    sizes = tuple(n + k - 1 for n, k in zip(image_shape, kernel.shape[:2], strict=True))
    symbol = jnp.fft.rfft2(kernel, s=sizes, axes=(0, 1)).reshape(-1, *kernel.shape[2:])
    largest = jnp.argmax(
        matrix_norm_bound(jax.lax.stop_gradient(symbol), num_squarings=num_squarings)
    )
    # only this one is differentiated
    return matrix_norm_bound(symbol[largest], num_squarings=num_squarings)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gram_bound(A: Array, num_squarings: int) -> Array:
    return _gram_power(A, num_squarings)[1]


@_gram_bound.defjvp
@full_precision()  # loops differentiate their body when the caller's setting is gone
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

    def normed(gram: Array) -> tuple[Array, Array]:
        square = jnp.sum(jnp.real(gram * gram.conj()), axis=(-2, -1))
        size = jnp.sqrt(jnp.where(square == 0.0, 1.0, square))
        return gram / size[..., None, None], jnp.where(
            square == 0.0, -jnp.inf, jnp.log(size)
        )

    for _ in range(num_squarings):
        gram, taken = normed(gram)
        logarithm = 2.0 * (logarithm + taken)
        gram = _square(gram)
    gram, last = normed(gram)
    return gram, jnp.exp((logarithm + last) / 2 ** (num_squarings + 1))


def _square(gram: Array) -> Array:
    """H H of Hermitian matrices; of complex ones by three real products, as i (R I +
    I R) is skew of R I."""
    if not jnp.iscomplexobj(gram):
        return gram @ gram
    real, imaginary = jnp.real(gram), jnp.imag(gram)
    mixed = real @ imaginary
    return jax.lax.complex(
        real @ real - imaginary @ imaginary, mixed - jnp.swapaxes(mixed, -1, -2)
    )
