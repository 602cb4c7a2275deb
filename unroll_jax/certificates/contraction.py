"""Convergence rates of equilibria: contraction factors, iterations needed, errors
left."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.certificates.weights import ImageShape, weight_norm_bound
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

__all__ = ["contraction_bound", "equilibrium_lipschitz", "error_bound", "picard_steps"]


def contraction_bound(
    params: OptEqParams | Sequence[OptEqParams],
    *,
    skip: float = 1.0,
    image_shape: ImageShape | None = None,
) -> Float[Array, ""]:
    r"""A Lipschitz constant of a layer or a deep OptEq, for every state, input and
    activation.

    .. math:: c = \prod_l \bigl( a |W_l|_2^2 + 1 - a \bigr) .

    Below 1 the equilibrium is unique and Picard iterations converge to it at this rate
    or faster.

    Args:
      params: of `opteq` or `opteq_conv`, or a sequence of them as `deep_opteq` has.
      skip: a, common to the layers.
      image_shape: height and width of the images, for convolutions.

    Source: Xie et al. (2021), remarks after Theorems 1 and 4.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import certificates, opteq, unroll
      >>> layer, x, start = opteq(8, 16, 3), jnp.ones(3), jnp.zeros(8)
      >>> params = certificates.spectral_normalise(
      ...     layer.init(jax.random.key(0)), bound=0.7
      ... )
      >>> c, first = (
      ...     certificates.contraction_bound(params),
      ...     layer.step(params, start, x),
      ... )
      >>> k = int(
      ...     certificates.picard_steps(c, jnp.linalg.norm(first - start), tol=1e-3)
      ... )  # known in advance
      >>> z, _ = unroll(layer, params, start, x, num_layers=k)
      >>> left = certificates.error_bound(
      ...     c, jnp.linalg.norm(layer.step(params, z, x) - z)
      ... )
      >>> k, bool(left <= 1e-3)
      (11, True)
    """
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    rates = [
        skip * weight_norm_bound(layer.W, image_shape) ** 2 + 1.0 - skip
        for layer in layers
    ]
    return jnp.prod(jnp.stack(rates))


def equilibrium_lipschitz(
    params: OptEqParams | Sequence[OptEqParams],
    *,
    skip: float = 1.0,
    image_shape: ImageShape | None = None,
) -> Float[Array, ""]:
    r"""A Lipschitz constant of :math:`x \mapsto z^*(x)`, the equilibrium of a layer or
    a deep OptEq, in its input.

    A layer :math:`f_l(z, x) = a W_l^T \sigma(W_l z + U_l x + b_l) + (1 - a) z` moves at
    most :math:`c_l` times as much as z and :math:`a |W_l| |U_l|` times as much as x. A
    layer's share passes the layers behind it, and returns as z:

    .. math:: |z^*(x) - z^*(x')| \le \frac{\sum_l a |W_l|_2 |U_l|_2 \prod_{k > l} c_k}{1 - \prod_l c_l} |x - x'| ,
              \qquad c_l = a |W_l|_2^2 + 1 - a ,

    which for one layer is :math:`|W| |U| / (1 - |W|^2)` for every a. It is attained
    where all singular directions meet and sigma has slope 1. It is of the exact
    equilibrium; `error_bound` bounds a solver's distance to it.

    Args:
      params, skip, image_shape: as in `contraction_bound`. Layers without U add
        nothing. sigma is 1-Lipschitz.

    Returns:
      The constant; infinite where `contraction_bound` is not below 1.

    Source: Pabbaraju, Winston and Kolter (2021), "Estimating Lipschitz constants of
    monotone deep equilibrium models", bound the same map of monotone networks; this
    sum, which is of contractions, is ours.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import certificates
      >>> from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
      >>> layer = OptEqParams(
      ...     W=jnp.array([[0.5]]), U=jnp.array([[3.0]]), b=jnp.zeros(1)
      ... )
      >>> float(
      ...     certificates.equilibrium_lipschitz(layer)
      ... )  # z = 0.5 (0.5 z + 3 x), so z = 2 x
      2.0
    """
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    slope, contraction = 0.0, 1.0
    for layer in layers:
        size = weight_norm_bound(layer.W, image_shape)
        rate = skip * size**2 + 1.0 - skip
        seen = (
            0.0
            if layer.U is None
            else skip * size * weight_norm_bound(layer.U, image_shape)
        )
        slope, contraction = rate * slope + seen, rate * contraction
    # NaN stays NaN
    bound = slope / jnp.where(contraction >= 1.0, 1.0, 1.0 - contraction)
    return jnp.where(contraction >= 1.0, jnp.inf, bound)


@checked(tol=POSITIVE)
def picard_steps(
    contraction: Float[Array, "..."] | float,
    residual: Float[Array, "*batch"] | float,
    tol: float,
) -> Float[Array, "*batch"]:
    r"""Picard iterations after which the equilibrium is met to ``tol``, known before
    the first.

    .. math:: |z_k - z^*| \le \frac{c^k}{1 - c} |f(z_0) - z_0| \le tol .

    Args:
      contraction: c, of `contraction_bound`.
      residual: \|f(z_0) - z_0\| of the first state.
      tol: of the distance to the equilibrium, in the units of the residual; positive.

    Returns:
      The least such k; infinite where c is not below 1 and the residual not 0.

    Source: Banach's fixed-point theorem.

    Example:
      >>> float(picard_steps(0.5, residual=1.0, tol=2.0**-9))
      10.0
    """
    distance = error_bound(contraction, residual)
    rate = jnp.where(contraction < 1.0, contraction, 0.5)
    excess = jnp.log(jnp.maximum(distance / tol, 1.0))
    return jnp.ceil(
        excess / -jnp.log(jnp.maximum(rate, jnp.finfo(distance.dtype).tiny))
    )


def error_bound(
    contraction: Float[Array, "..."] | float, residual: Float[Array, "*batch"] | float
) -> Float[Array, "*batch"]:
    """|z - z*| <= |f(z) - z| / (1 - c): how far the equilibrium can be; infinite where
    c is not below 1.

    Args:
      contraction, residual: c, as of `contraction_bound`, and |f(z) - z|, (*batch,).

    Source: Banach's fixed-point theorem.

    Example:
      >>> float(error_bound(0.5, 0.25)), float(error_bound(1.0, 0.25))
      (0.5, inf)
    """
    contraction, residual = jnp.broadcast_arrays(
        jnp.asarray(contraction), jnp.asarray(residual)
    )
    bound = residual / jnp.where(contraction >= 1.0, 1.0, 1.0 - contraction)
    return jnp.where((contraction >= 1.0) & (residual > 0.0), jnp.inf, bound)
