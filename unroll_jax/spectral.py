"""Norms and radii of linear maps and of Jacobians, from vector products alone."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.steps import full_precision

__all__ = [
    "conv_norm_bound",
    "jacobian_norm",
    "jacobian_penalty",
    "jacobian_radius",
    "matrix_norm_bound",
    "norm",
    "spectral_norm",
    "spectral_radius",
]

SQUARINGS = 10  # of `matrix_norm_bound`, which is then within a factor rank^(1 / 4096) of the norm, 0.1% for rank 100


@typed
@full_precision()
def spectral_norm(
    apply: Callable[[Any], Any],
    like: Any,
    *,
    num_steps: int = 100,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""The largest singular value of a linear map A, by power iteration on :math:`A^T A`; never above the true value.

    Differentiable in what ``apply`` closes over: the gradient is that of :math:`|A v|` at the vector v found, u v^T.

    Args:
      apply: the linear map, of pytrees shaped as ``like``; one map per example where there are batch axes.
      like: a pytree of arrays, or of their shapes and dtypes, in the domain.
      num_steps: products with A and with its transpose.
      key: of the random start; None is a fixed one.
      batch_ndim: how many leading axes of ``like`` are batch axes.

    Returns:
      One number per example, below the norm by a share that falls as log(D) / num_steps at worst.

    Raises:
      ValueError: if num_steps is below 1.

    Source: Kuczynski and Wozniakowski (1992) for the rate.
    """
    _check_steps(num_steps, 1)
    start = _random_like(like, key)
    transpose = jax.linear_transpose(apply, start)

    def step(v: Any, _: None) -> tuple[Any, None]:
        return _unit(transpose(apply(v))[0], batch_ndim), None

    v, _ = jax.lax.scan(step, _unit(start, batch_ndim), length=num_steps)
    return norm(apply(jax.lax.stop_gradient(v)), batch_ndim)


@typed
@full_precision()
def spectral_radius(
    apply: Callable[[Any], Any],
    like: Any,
    *,
    num_steps: int = 200,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""The largest modulus of an eigenvalue of a linear map A, symmetric or not, by the growth of norms.

    .. math:: r = ( |A^{2 k} v| / |A^k v| )^{1 / k} , \qquad k = num\_steps / 2 .

    A Rayleigh quotient says less than r where eigenvalues are complex: 0.45 for a rotation by 60 degrees of size 0.9.

    Args:
      apply: the linear map, from pytrees shaped as ``like`` to such pytrees.
      like: a pytree of arrays, or of their shapes and dtypes.
      num_steps: products with A, at least 2.
      key: of the random start; None is a fixed one.
      batch_ndim: how many leading axes of ``like`` are batch axes.

    Returns:
      One number per example; an estimate, from neither side, and exactly 0 where powers of A vanish.

    Raises:
      ValueError: if num_steps is below 2.

    Source: Gelfand's formula, with the growth of the start divided out.
    """
    _check_steps(num_steps, 2)

    def step(v: Any, _: None) -> tuple[Any, Array]:
        moved = apply(v)
        return _unit(moved, batch_ndim), norm(moved, batch_ndim)

    _, growths = jax.lax.scan(step, _unit(_random_like(like, key), batch_ndim), length=num_steps)
    return jnp.exp(jnp.mean(jnp.log(growths[num_steps // 2 :]), axis=0))


@typed
@full_precision()
def matrix_norm_bound(A: Array, *, num_squarings: int = SQUARINGS) -> Float[Array, "*batch"]:
    r"""An upper bound of the spectral norm of matrices (*batch, h, m), real or complex, without a decomposition.

    .. math:: |A|_2 \le \bigl| (A^* A)^{2^k} \bigr|_F^{1 / 2^{k + 1}} \le r^{1 / 2^{k + 2}} |A|_2 , \qquad r = rank(A) ,

    with k = ``num_squarings``, up to rounding. Differentiable, for one product more. With the bound b and the singular
    values :math:`\sigma_i` of the vectors :math:`u_i, v_i`, the derivative along M is taken to be

    .. math:: Re \langle G , M \rangle , \qquad
              G = b \sum_i \sigma_i^{q - 1} u_i v_i^* / \sum_i \sigma_i^q , \qquad q = 2^{k + 1} + 2 .

    The bound's own has :math:`q = 2^{k + 2}`: the same along A, where all singular values are equal, and where one is
    far above the others. Second derivatives are those of G; at A = 0 it is 0.

    Raises:
      ValueError: if A has fewer than two axes.

    Source: Delattre et al. (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram iteration".
    """
    if jnp.ndim(A) < 2:
        raise ValueError(f"A must hold matrices (*batch, h, m), got shape {jnp.shape(A)}")
    # Squares of entries leave the range of float32 beyond 1e19, and below 1e-19.
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(A), axis=(-2, -1), initial=0.0))
    scale = jnp.where(scale == 0.0, 1.0, scale)
    A = A / scale[..., None, None]
    tall = A if A.shape[-1] <= A.shape[-2] else jnp.swapaxes(A, -1, -2)  # of the same norm
    return scale * _gram_bound(tall, num_squarings)


@typed
def conv_norm_bound(
    kernel: Float[Array, "k l i o"], image_shape: tuple[int, int], *, num_squarings: int = SQUARINGS
) -> Float[Array, ""]:
    r"""An upper bound of the spectral norm of a zero-padded convolution ("SAME", stride 1) on images of one size.

    Such a convolution is part of a circular one on images larger by the kernel less 1, whose norm is

    .. math:: \max_\theta |\hat K(\theta)|_2 , \qquad \hat K(\theta) = \sum_t K_t e^{-i \langle \theta, t \rangle} ,

    over the frequencies of that larger image, one small matrix each. Above the true norm by little: on images much
    larger than the kernel both approach the maximum over all frequencies. Differentiable.

    Args:
      kernel: (height, width, channels in, channels out).
      image_shape: height and width of the images.
      num_squarings: as in `matrix_norm_bound`.

    Source: Sedghi, Gupta, Long (2019) for the circular convolution; that it bounds the padded one is ours.
    """
    sizes = tuple(n + k - 1 for n, k in zip(image_shape, kernel.shape[:2], strict=True))
    symbol = jnp.fft.rfft2(kernel, s=sizes, axes=(0, 1)).reshape(-1, *kernel.shape[2:])
    largest = jnp.argmax(matrix_norm_bound(jax.lax.stop_gradient(symbol), num_squarings=num_squarings))
    return matrix_norm_bound(symbol[largest], num_squarings=num_squarings)  # only this one is differentiated


@typed
def jacobian_norm(
    step: Callable[[Array], Array],
    z: Float[Array, "..."],
    *,
    num_steps: int = 100,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    """The spectral norm of the Jacobian of ``step`` at z, per example: how fast differences grow or shrink there."""
    push = lambda v: jax.jvp(step, (z,), (v,))[1]  # noqa: E731
    return spectral_norm(push, z, num_steps=num_steps, key=key, batch_ndim=batch_ndim)


@typed
def jacobian_radius(
    step: Callable[[Array], Array],
    z: Float[Array, "..."],
    *,
    num_steps: int = 200,
    key: jax.Array | None = None,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    """The spectral radius of the Jacobian of ``step`` at z, per example: the rate at which iterations end up going.

    It takes products with the transpose alone, so that a step with a `custom_vjp` inside will do.
    """
    _, pull = jax.vjp(step, z)
    return spectral_radius(lambda v: pull(v)[0], z, num_steps=num_steps, key=key, batch_ndim=batch_ndim)


@typed
def jacobian_penalty(
    step: Callable[[Array], Array],
    z: Float[Array, "..."],
    key: jax.Array,
    *,
    num_probes: int = 1,
    batch_ndim: int = 0,
) -> Float[Array, "*batch"]:
    r"""Hutchinson's estimate of :math:`|J|_F^2 / m`, J the Jacobian of ``step`` at z and m the entries of an example.

    .. math:: \frac{1}{m k} \sum_{i=1}^k |J^T v_i|^2 , \qquad v_i \sim N(0, 1) .

    Unbiased; differentiable in what ``step`` closes over and in z. Added to the loss it keeps equilibria easy to find.

    Args:
      step: ``z -> z'``, from arrays shaped as z to such arrays.
      z: where, usually at the equilibrium.
      key: of the probes; take a new one at every training step.
      num_probes: k, at least 1.
      batch_ndim: how many leading axes of z are batch axes.

    Raises:
      ValueError: if num_probes is below 1.

    Source: Bai, Koltun, Kolter (2021), "Stabilizing equilibrium models by Jacobian regularization", eq. 6.
    """
    if num_probes < 1:
        raise ValueError(f"num_probes must be at least 1, got {num_probes}")
    _, pull = jax.vjp(step, z)
    probes = jax.random.normal(key, (num_probes, *z.shape), z.dtype)
    pulled = jax.vmap(lambda v: pull(v)[0])(probes)
    axes = tuple(range(batch_ndim + 1, pulled.ndim))
    return jnp.mean(jnp.mean(pulled**2, axis=axes), axis=0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gram_bound(A: Array, num_squarings: int) -> Array:
    return _gram_power(A, num_squarings)[1]


@_gram_bound.defjvp
@full_precision()  # loops differentiate their body when the caller's setting is gone
def _(num_squarings: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (A,), (moved,) = primals, tangents
    power, bound = _gram_power(A, num_squarings)
    towards = A @ power
    share = jnp.real(jnp.sum(A.conj() * towards, axis=(-2, -1)))  # <A, A P>: along A the bound grows as itself
    slope = bound / jnp.where(share == 0.0, 1.0, share)
    return bound, slope * jnp.real(jnp.sum(towards.conj() * moved, axis=(-2, -1)))


def _gram_power(A: Array, num_squarings: int) -> tuple[Array, Array]:
    """(A* A)^(2^k), of Frobenius norm 1 or 0, and the bound of |A|_2 that it makes."""
    gram = jnp.swapaxes(A, -1, -2).conj() @ A
    logarithm = jnp.zeros(A.shape[:-2], jnp.real(gram).dtype)  # of the factor taken out of gram so far

    def normed(gram: Array) -> tuple[Array, Array]:
        square = jnp.sum(jnp.real(gram * gram.conj()), axis=(-2, -1))
        size = jnp.sqrt(jnp.where(square == 0.0, 1.0, square))
        return gram / size[..., None, None], jnp.where(square == 0.0, -jnp.inf, jnp.log(size))

    for _ in range(num_squarings):
        gram, taken = normed(gram)
        logarithm = 2.0 * (logarithm + taken)
        gram = _square(gram)
    gram, last = normed(gram)
    return gram, jnp.exp((logarithm + last) / 2 ** (num_squarings + 1))


def _square(gram: Array) -> Array:
    """H H of Hermitian matrices; of complex ones by three real products, as i (R I + I R) is skew of R I."""
    if not jnp.iscomplexobj(gram):
        return gram @ gram
    real, imaginary = jnp.real(gram), jnp.imag(gram)
    mixed = real @ imaginary
    return jax.lax.complex(real @ real - imaginary @ imaginary, mixed - jnp.swapaxes(mixed, -1, -2))


def norm(v: Any, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    """The Euclidean norm over all leaves and all axes behind the first ``batch_ndim``; its derivative at 0 is 0."""
    squares = [jnp.sum(leaf**2, axis=tuple(range(batch_ndim, leaf.ndim))) for leaf in jax.tree.leaves(v)]
    square = sum(squares[1:], squares[0])
    # The inner `where` keeps the derivative finite at 0; what is not a number stays so.
    return jnp.where(square == 0.0, 0.0, jnp.sqrt(jnp.where(square == 0.0, 1.0, square)))


def _unit(v: Any, batch_ndim: int) -> Any:
    size = norm(v, batch_ndim)
    size = jnp.where(size == 0.0, 1.0, size)
    return jax.tree.map(lambda leaf: leaf / size.reshape(size.shape + (1,) * (leaf.ndim - batch_ndim)), v)


def _random_like(like: Any, key: jax.Array | None) -> Any:
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(leaf_key, leaf.shape, leaf.dtype) for leaf_key, leaf in zip(keys, leaves, strict=True)]
    )


def _check_steps(num_steps: int, least: int) -> None:
    if num_steps < least:
        raise ValueError(f"num_steps must be at least {least}, got {num_steps}")
