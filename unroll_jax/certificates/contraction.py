"""Convergence rates of equilibria: norms of weights, contraction factors, iterations needed, errors left."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams, opteq_linear
from unroll_jax.norm_bounds import conv_norm_bound, matrix_norm_bound
from unroll_jax.spectral import spectral_norm

__all__ = [
    "check_weight_norms",
    "contraction_bound",
    "equilibrium_lipschitz",
    "error_bound",
    "picard_steps",
    "spectral_normalise",
    "weight_norm",
    "weight_norm_bound",
]

ImageShape = tuple[int, int]


@typed
def weight_norm(
    W: Float[Array, "..."], image_shape: ImageShape | None = None, *, num_steps: int = 100, key: jax.Array | None = None
) -> Float[Array, ""]:
    """|W|_2 of a matrix or of a zero-padded convolution, by power iteration: from below, see `spectral_norm`.

    Args:
      W: (h, m), or a kernel (height, width, channels in, channels out).
      image_shape: height and width of the images, for a kernel.
      num_steps: as in `spectral_norm`.
      key: as in `spectral_norm`.

    Returns:
      A scalar.

    Raises:
      ValueError: if W is neither, or a kernel comes without image_shape.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(weight_norm(jnp.diag(jnp.array([3.0, 1.0])))), 3)
      3.0
    """
    shape = _domain(W, image_shape)
    like = jax.ShapeDtypeStruct(shape, W.dtype)
    return spectral_norm(lambda z: opteq_linear(W, z), like, num_steps=num_steps, key=key)


def weight_norm_bound(W: Float[Array, "..."], image_shape: ImageShape | None = None) -> Float[Array, ""]:
    """|W|_2 from above, up to rounding: what a certificate needs. See `matrix_norm_bound` and `conv_norm_bound`.

    Args:
      W: (h, m), or a kernel (height, width, channels in, channels out).
      image_shape: height and width of the images, for a kernel.

    Returns:
      A scalar.

    Raises:
      ValueError: if W is neither, or a kernel comes without image_shape.

    Example:
      >>> import jax.numpy as jnp
      >>> 3.0 <= float(weight_norm_bound(jnp.diag(jnp.array([3.0, 1.0])))) < 3.01
      True
    """
    height_width = _domain(W, image_shape)[:-1]
    return matrix_norm_bound(W) if W.ndim == 2 else conv_norm_bound(W, (height_width[0], height_width[1]))


@typed
def contraction_bound(
    params: OptEqParams | Sequence[OptEqParams], *, skip: float = 1.0, image_shape: ImageShape | None = None
) -> Float[Array, ""]:
    r"""A Lipschitz constant of a layer or a deep OptEq, for every state, input and activation.

    .. math:: c = \prod_l \bigl( a |W_l|_2^2 + 1 - a \bigr) .

    Below 1 the equilibrium is unique and Picard iterations converge to it at this rate or faster.

    Args:
      params: of `opteq` or `opteq_conv`, or a sequence of them as `deep_opteq` has.
      skip: a, common to the layers.
      image_shape: height and width of the images, for convolutions.

    Source: Xie et al. (2021), remarks after Theorems 1 and 4.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import certificates, opteq, unroll
      >>> layer, x, start = opteq(8, 16, 3), jnp.ones(3), jnp.zeros(8)
      >>> params = certificates.spectral_normalise(layer.init(jax.random.key(0)), bound=0.7)
      >>> c, first = certificates.contraction_bound(params), layer.step(params, start, x)
      >>> k = int(certificates.picard_steps(c, jnp.linalg.norm(first - start), tol=1e-3))  # known in advance
      >>> z, _ = unroll(layer, params, start, x, num_layers=k)
      >>> left = certificates.error_bound(c, jnp.linalg.norm(layer.step(params, z, x) - z))
      >>> k, bool(left <= 1e-3)
      (11, True)
    """
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    rates = [skip * weight_norm_bound(layer.W, image_shape) ** 2 + 1.0 - skip for layer in layers]
    return jnp.prod(jnp.stack(rates))


@typed
def equilibrium_lipschitz(
    params: OptEqParams | Sequence[OptEqParams], *, skip: float = 1.0, image_shape: ImageShape | None = None
) -> Float[Array, ""]:
    r"""A Lipschitz constant of :math:`x \mapsto z^*(x)`, the equilibrium of a layer or a deep OptEq, in its input.

    A layer :math:`f_l(z, x) = a W_l^T \sigma(W_l z + U_l x + b_l) + (1 - a) z` moves by at most :math:`c_l` times as
    much as z and by at most :math:`a |W_l| |U_l|` times as much as x. What layer l adds then passes the layers behind
    it, and what reaches the end comes back in as z:

    .. math:: |z^*(x) - z^*(x')| \le \frac{\sum_l a |W_l|_2 |U_l|_2 \prod_{k > l} c_k}{1 - \prod_l c_l} |x - x'| ,
              \qquad c_l = a |W_l|_2^2 + 1 - a ,

    which for one layer is :math:`|W| |U| / (1 - |W|^2)`, whatever a is. It is attained where all singular directions
    meet and sigma has slope 1. It is of the exact equilibrium; `error_bound` says how far a solver's can be from it.

    Args:
      params: of `opteq` or `opteq_conv`, or a sequence of them as `deep_opteq` has. Layers without U add nothing. sigma
        is 1-Lipschitz, as every `Monotone` is.
      skip: a, common to the layers.
      image_shape: height and width of the images, for convolutions.

    Returns:
      The constant; infinite where `contraction_bound` is not below 1.

    Source: Pabbaraju, Winston and Kolter (2021), "Estimating Lipschitz constants of monotone deep equilibrium models",
    bound the same map of monotone networks; this sum, which is of contractions, is ours.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import certificates
      >>> from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
      >>> layer = OptEqParams(W=jnp.array([[0.5]]), U=jnp.array([[3.0]]), b=jnp.zeros(1))
      >>> float(certificates.equilibrium_lipschitz(layer))  # z = 0.5 (0.5 z + 3 x), so z = 2 x
      2.0
    """
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    slope, contraction = 0.0, 1.0
    for layer in layers:
        size = weight_norm_bound(layer.W, image_shape)
        rate = skip * size**2 + 1.0 - skip
        seen = 0.0 if layer.U is None else skip * size * weight_norm_bound(layer.U, image_shape)
        slope, contraction = rate * slope + seen, rate * contraction
    contracts = contraction < 1.0
    return jnp.where(contracts, slope / jnp.where(contracts, 1.0 - contraction, 1.0), jnp.inf)


@typed
def picard_steps(
    contraction: Float[Array, "..."] | float, residual: Float[Array, "*batch"] | float, tol: float
) -> Float[Array, "*batch"]:
    r"""Picard iterations after which the equilibrium is met to ``tol``, known before the first.

    .. math:: |z_k - z^*| \le \frac{c^k}{1 - c} |f(z_0) - z_0| \le tol .

    Args:
      contraction: c, of `contraction_bound`.
      residual: \|f(z_0) - z_0\| of the first state.
      tol: of the distance to the equilibrium, in the units of the residual; positive.

    Returns:
      The least such k; infinite where c is not below 1 and the residual not 0.

    Raises:
      ValueError: if tol is not positive.

    Source: Banach's fixed-point theorem.

    Example:
      >>> float(picard_steps(0.5, residual=1.0, tol=2.0**-9))
      10.0
    """
    if not tol > 0.0:
        raise ValueError(f"tol must be positive, got {tol}")
    contraction, residual = jnp.broadcast_arrays(jnp.asarray(contraction), jnp.asarray(residual))
    contracts = contraction < 1.0
    rate = jnp.where(contracts, contraction, 0.5)
    distance = error_bound(rate, residual)
    done = (residual == 0.0) | (contracts & (distance <= tol))
    excess = jnp.log(jnp.where(done, 1.0, distance / tol))
    steps = jnp.ceil(excess / -jnp.log(jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)))
    return jnp.where(done, 0.0, jnp.where(contracts, steps, jnp.inf))


def error_bound(
    contraction: Float[Array, "..."] | float, residual: Float[Array, "*batch"] | float
) -> Float[Array, "*batch"]:
    """|z - z*| <= |f(z) - z| / (1 - c): how far the equilibrium can be; infinite where c is not below 1.

    Example:
      >>> float(error_bound(0.5, 0.25)), float(error_bound(1.0, 0.25))
      (0.5, inf)
    """
    contraction, residual = jnp.broadcast_arrays(jnp.asarray(contraction), jnp.asarray(residual))
    contracts = contraction < 1.0
    bound = residual / jnp.where(contracts, 1.0 - contraction, 1.0)
    return jnp.where(residual == 0.0, 0.0, jnp.where(contracts, bound, jnp.inf))


@typed
def spectral_normalise(
    params: OptEqParams,
    *,
    bound: float = 0.95,
    image_shape: ImageShape | None = None,
    certified: bool = True,
    num_steps: int = 20,
) -> OptEqParams:
    r"""The parameters with W scaled down, if it must be, to a norm of at most ``bound``.

    .. math:: W \min(1, bound / |W|_2) .

    Do it once, before the equilibrium is solved and not inside the step. The gradient passes through the norm.

    Args:
      params: of `opteq` or `opteq_conv`.
      bound: positive; below 1 the layer contracts.
      image_shape: height and width of the images, for a convolution.
      certified: whether to divide by an upper bound of the norm, so that the result keeps to ``bound`` for certain;
        else by power iteration of ``num_steps``, which may leave it slightly above and costs less for wide
        convolutions.
      num_steps: of power iteration.

    Returns:
      The parameters, with another W.

    Raises:
      ValueError: if bound is not positive, or W and image_shape do not fit.

    Source: Miyato et al. (2018), "Spectral normalization for generative adversarial networks", with a cap and not a
    fixed norm.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import OptEqParams
      >>> params = spectral_normalise(OptEqParams(W=2.0 * jnp.eye(1), U=None, b=jnp.zeros(1)), bound=0.5)
      >>> round(params.W.item(), 3)
      0.5
    """
    if not bound > 0.0:
        raise ValueError(f"bound must be positive, got {bound}")
    if not hasattr(params, "W"):
        raise TypeError(f"params must hold a weight W, as OptEqParams do, got {type(params).__name__}")
    W = params.W
    size = weight_norm_bound(W, image_shape) if certified else weight_norm(W, image_shape, num_steps=num_steps)
    return params._replace(W=W * jnp.where(size > bound, bound / jnp.where(size > bound, size, 1.0), 1.0))


@typed
def check_weight_norms(
    params: OptEqParams | Sequence[OptEqParams], *, bound: float = 1.0, image_shape: ImageShape | None = None
) -> None:
    """Checks, outside jit, that every |W|_2 is at most ``bound``: without that a layer need not have an equilibrium.

    The norm is taken from below, so that no weights within the bound are refused for rounding.

    Args:
      params: of `opteq` or `opteq_conv`, or a sequence of them.
      bound: of every |W|_2.
      image_shape: height and width of the images, for convolutions.

    Raises:
      ValueError: if a norm is above the bound, or not a number.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import OptEqParams
      >>> params = OptEqParams(W=2.0 * jnp.eye(2), U=None, b=jnp.zeros(2))  # with these it raises
      >>> check_weight_norms(spectral_normalise(params, bound=0.5), bound=0.5)
    """
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    for place, layer in enumerate(layers):
        size = float(weight_norm(layer.W, image_shape))
        if not size <= bound * (1.0 + 1e-5):  # rounding of float32 products
            raise ValueError(
                f"|W| must be at most {bound}, got {size:.4g} in layer {place}; keep it there with spectral_normalise"
            )


def _domain(W: Array, image_shape: ImageShape | None) -> tuple[int, ...]:
    if W.ndim == 2:
        return (W.shape[1],)
    if W.ndim != 4:
        raise ValueError(f"W must be a matrix or a kernel of rank 4, got shape {W.shape}")
    if image_shape is None:
        raise ValueError("image_shape must be given for a convolution, got None")
    return (*image_shape, W.shape[2])
