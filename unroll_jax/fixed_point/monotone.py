"""Monotone operator networks: weights with a unique equilibrium, and its splitting."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from unroll_jax.arguments import ODD, POSITIVE, at_least, checked, require
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.fixed_point.equilibrium import equilibrium
from unroll_jax.fixed_point.status import EquilibriumInfo
from unroll_jax.spectral import unit

__all__ = [
    "MonotoneParams",
    "monotone_equilibrium",
    "monotone_init",
    "monotone_product",
    "monotone_resolvent",
    "monotone_weight",
    "peaceman_rachford",
]


class MonotoneParams(NamedTuple):
    """Matrices A and B (m, m), or kernels (height, width, c, c), and their norms.

    The scales are the Frobenius norms given to A and B.

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
def monotone_init(
    key: jax.Array, size: int, kernel_size: int | None = None
) -> MonotoneParams:
    """Random A and B with scales of 1, as `MonotoneParams` in float32.

    Args:
      key: of the random numbers.
      size: width m, or channels c.
      kernel_size: side of the kernels, odd; None is dense.

    Example: see `MonotoneParams`.
    """
    shape: tuple[int, ...] = (size, size)
    if kernel_size is not None:
        shape = (kernel_size, kernel_size, size, size)

    def draw(key: jax.Array) -> Array:
        return jax.random.normal(key, shape) / math.sqrt(math.prod(shape))

    A, B = map(draw, jax.random.split(key))
    return MonotoneParams(A, B, jnp.ones(()), jnp.ones(()))


@checked(margin=POSITIVE)
def monotone_weight(
    params: MonotoneParams,
    *,
    margin: float = 1.0,
    image_shape: tuple[int, int] | None = None,
) -> Inexact[Array, "..."]:
    r"""W such that the symmetric part of I - W is at least m:

    .. math:: W = (1 - m) I - A^T A + B - B^T , \qquad A = g_A A_0 / |A_0|_F , \quad
              B = g_B B_0 / |B_0|_F .

    Convolutions wrap around the edges of images of one size. Then W is returned as one
    small matrix per frequency.

    Args:
      params, margin: A_0, B_0 and the scales g; m, positive.
      image_shape: height and width of the images, for kernels.

    Returns:
      (m, m); or complex (height, width // 2 + 1, c, c), at the frequencies of
      `jax.numpy.fft.rfft2`.

    Source: Winston and Kolter (2020), Proposition 1 and Appendix C. In their code the
    scale of convolutions multiplies :math:`A^T A`: it is the square of g_A here. Their
    g_B is the same, and their dense layer has no scales.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> W = monotone_weight(monotone_init(jax.random.key(0), size=3), margin=0.5)
      >>> bool(jnp.linalg.eigvalsh(jnp.eye(3) - 0.5 * (W + W.T)).min() >= 0.5 - 1e-4)
      True
    """
    if not isinstance(params, MonotoneParams):
        raise TypeError(
            f"params must be MonotoneParams, got {type(params).__name__};"
            " monotone_init(key, size) makes them"
        )
    # zeros stay zeros
    A = params.A_scale * unit(params.A)
    B = params.B_scale * unit(params.B)
    if A.ndim == 4:
        A = _symbol(A, image_shape)
        B = _symbol(B, image_shape)

    def adjoint(M: Array) -> Array:
        return jnp.swapaxes(M, -1, -2).conj()

    identity = jnp.eye(A.shape[-1], dtype=A.dtype)
    return (1.0 - margin) * identity - adjoint(A) @ A + B - adjoint(B)


def monotone_resolvent(
    W: Inexact[Array, "..."], step_size: float | Float[Array, ""] = 1.0
) -> Inexact[Array, "..."]:
    r"""Returns V = (I + \alpha (I - W))^{-1}, in the form that W has.

    Its norm is at most :math:`1 / (1 + \alpha m)`.
    """
    identity = jnp.eye(W.shape[-1], dtype=W.dtype)
    return jnp.linalg.inv((1.0 + step_size) * identity - step_size * W)


def monotone_product(
    W: Inexact[Array, "..."], z: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Returns W z for vectors (*batch, m), or images (*batch, height, width, c).

    W may be a resolvent V too.
    """
    if W.ndim == 2:
        return z @ W.T
    transformed = jnp.einsum("hwoi,...hwi->...hwo", W, jnp.fft.rfft2(z, axes=(-3, -2)))
    return jnp.fft.irfft2(transformed, s=z.shape[-3:-1], axes=(-3, -2)).astype(z.dtype)


def peaceman_rachford(
    V: Inexact[Array, "..."],
    u: Array,
    x: Array,
    *,
    activation: Proximal,
    step_size: float | Float[Array, ""],
) -> Array:
    r"""One step of Peaceman-Rachford splitting, two reflections after one another:

    .. math:: z = prox_{\alpha f}(u) , \quad v = 2 z - u , \quad
              u' = 2 V (v + \alpha x) - v , \qquad V = (I + \alpha (I - W))^{-1} .

    At a fixed point u, z is the equilibrium :math:`z = \sigma(W z + x)`. It converges
    for every alpha > 0.

    Source: Winston and Kolter (2020), Section 3.3.
    """
    reflected = 2.0 * _prox(activation, u, step_size) - u
    return 2.0 * monotone_product(V, reflected + step_size * x) - reflected


@checked(step_size=POSITIVE)
def monotone_equilibrium(
    W: Inexact[Array, "..."],
    x: Float[Array, "..."],
    *,
    step_size: float | None = None,
    activation: str | Proximal = "relu",
    **options: Any,
) -> tuple[Float[Array, "..."], EquilibriumInfo]:
    r"""The equilibrium :math:`z = \sigma(W z + x)` of a monotone operator network.

    It has implicit gradients. There is one, for every x, if
    :math:`I - W \succeq m I` with m > 0 and sigma is nondecreasing and 1-Lipschitz.

    Args:
      W: of `monotone_weight`.
      x: (*batch, m), or images (*batch, height, width, c) of the size that W was made
        for.
      step_size: alpha > 0 of `peaceman_rachford`; None is 1.
      activation: sigma, a name of `PROXIMALS` or a `Proximal` whose prox at step size 1
        is sigma.
      **options: of `equilibrium`, on the splitting's step. Its solver is "picard" by
        default, the splitting itself, and ``tol`` is relative to its state u.

    Returns:
      ``(z, info)``; ``info`` is of the splitting's iteration.

    Source: Winston and Kolter (2020), Section 3. Their backward pass is a splitting
    too; here any of `ADJOINTS`.

    Example:
      >>> import jax.numpy as jnp
      >>> W, x = -jnp.eye(2), jnp.array([2.0, -2.0])
      >>> z, info = monotone_equilibrium(W, x)  # z = relu(x - z)
      >>> [round(value, 3) for value in z.tolist()], bool(info.converged)
      ([1.0, 0.0], True)
    """
    _check_shapes(W, x)
    sigma = resolve_proximal(activation)
    length = step_size or 1.0
    resolvent = monotone_resolvent(W, length)
    event = 1 if W.ndim == 2 else 3

    def step(V: Any, u: Array, x: Array) -> Array:
        return peaceman_rachford(V, u, x, activation=sigma, step_size=length)

    options = {"solver": "picard", "batch_ndim": x.ndim - event} | options
    u, info = equilibrium(step, resolvent, jnp.zeros_like(x), x, **options)
    return _prox(sigma, u, length), info


def _prox(activation: Proximal, z: Array, step_size: Any) -> Array:
    """The prox of a penalty that is separable over rows, for a state of any rank."""
    return activation.prox(z.reshape(-1, z.shape[-1]), step_size).reshape(z.shape)


def _check_shapes(W: Array, x: Array) -> None:
    if W.ndim == 2:
        sizes = x.shape[-1:]
        what = f"vectors of width {W.shape[-1]}"
    else:
        # W has the frequencies of half of an image's width.
        sizes = list(x.shape[-3:])
        sizes[-2:-1] = [side // 2 + 1 for side in sizes[-2:-1]]
        what = "images of the size and channels"
    fits = tuple(sizes) == (*W.shape[:-2], W.shape[-1])
    require(
        fits,
        "x",
        f"hold {what} that W was made for",
        f"x of shape {x.shape} and W of shape {W.shape}",
    )


def _symbol(
    kernel: Float[Array, "k l i o"], image_shape: tuple[int, int] | None
) -> Inexact[Array, "h w o i"]:
    """Returns the matrices of a circular convolution, one per frequency.

    Its kernel is centred on the pixel that it computes.
    """
    window = kernel.shape[:2]
    sizes = image_shape or (0, 0)
    extra = [size - side for size, side in zip(sizes, window, strict=True)]
    allowed = f"be at least the kernels' {window}"
    require(min(extra) >= 0, "image_shape", allowed, image_shape)
    padded = jnp.pad(kernel, [(0, extra[0]), (0, extra[1]), (0, 0), (0, 0)])
    centred = jnp.roll(padded, [-(side // 2) for side in window], axis=(0, 1))
    # A layer correlates with its kernel, which conjugates; matrices map channels in to
    # channels out.
    return jnp.swapaxes(jnp.fft.rfft2(centred, axes=(0, 1)).conj(), -1, -2)
