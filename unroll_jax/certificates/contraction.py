"""Convergence of equilibria: contraction factors, iterations and remaining errors.

Every bound is computed in float32 at least, and rounded up.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.certificates.weights import ImageShape, weight_norm_bound
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.numerics import compute_dtype, round_up

__all__ = ["contraction_bound", "equilibrium_lipschitz", "error_bound", "picard_steps"]


def contraction_bound(
    params: OptEqParams | Sequence[OptEqParams],
    *,
    skip: float = 1.0,
    image_shape: ImageShape | None = None,
) -> Float[Array, ""]:
    r"""A Lipschitz constant of a layer or a deep OptEq, for every state and input.

    .. math:: c = \prod_l \bigl( a |W_l|_2^2 + 1 - a \bigr) .

    It holds for every activation. Below 1 the equilibrium is unique, and Picard
    iterations converge to it at this rate or faster.

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
      ...     jax.jit(layer.init)(jax.random.key(0)), bound=0.7
      ... )
      >>> residual = jax.jit(lambda z: jnp.linalg.norm(layer.step(params, z, x) - z))
      >>> c = certificates.contraction_bound(params)
      >>> k = int(certificates.picard_steps(c, residual(start), tol=1e-3))
      >>> z, _ = unroll(layer, params, start, x, num_layers=k)  # k is known in advance
      >>> k, bool(certificates.error_bound(c, residual(z)) <= 1e-3)
      (11, True)
    """
    layers, dtype = _layers(params)
    contraction = jnp.ones((), dtype)
    for layer in layers:
        size = weight_norm_bound(layer.W, image_shape).astype(dtype)
        contraction = round_up(contraction * _rate(size, skip), 1)
    return contraction


def equilibrium_lipschitz(
    params: OptEqParams | Sequence[OptEqParams],
    *,
    skip: float = 1.0,
    image_shape: ImageShape | None = None,
) -> Float[Array, ""]:
    r"""A Lipschitz constant of the equilibrium in its input, :math:`x \mapsto z^*(x)`.

    The equilibrium is that of a layer or a deep OptEq. A layer
    :math:`f_l(z, x) = a W_l^T \sigma(W_l z + U_l x + b_l) + (1 - a) z` has the
    Lipschitz constant :math:`c_l` in z and :math:`a |W_l| |U_l|` in x. The change of x
    in layer l passes through the layers behind it. At the equilibrium it also returns
    as a change of z:

    .. math:: |z^*(x) - z^*(x')| \le
              \frac{\sum_l a |W_l|_2 |U_l|_2 \prod_{k > l} c_k}{1 - \prod_l c_l}
              |x - x'| ,
              \qquad c_l = a |W_l|_2^2 + 1 - a .

    For one layer this is :math:`|W| |U| / (1 - |W|^2)` for every a. It is attained if
    the largest singular directions agree and sigma has slope 1. The bound is for the
    exact equilibrium. `error_bound` bounds a solver's distance to it.

    Args:
      params, skip, image_shape: as in `contraction_bound`. Layers without U add
        nothing. sigma is 1-Lipschitz.

    Returns:
      The constant, infinite where `contraction_bound` is not below 1.

    Source: Pabbaraju, Winston and Kolter (2021), "Estimating Lipschitz constants of
    monotone deep equilibrium models", bound the same map of monotone networks. This
    sum, which is of contractions, is ours.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import certificates
      >>> from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
      >>> layer = OptEqParams(
      ...     W=jnp.array([[0.5]]), U=jnp.array([[3.0]]), b=jnp.zeros(1)
      ... )
      >>> bound = certificates.equilibrium_lipschitz(layer)
      >>> round(float(bound), 3)  # z = 0.5 (0.5 z + 3 x), so z = 2 x
      2.0
    """
    layers, dtype = _layers(params)
    slope = jnp.zeros((), dtype)
    contraction = jnp.ones((), dtype)
    for layer in layers:
        size = weight_norm_bound(layer.W, image_shape).astype(dtype)
        rate = _rate(size, skip)
        slope = round_up(slope * rate, 1)
        contraction = round_up(contraction * rate, 1)
        if layer.U is not None:
            input_size = weight_norm_bound(layer.U, image_shape).astype(dtype)
            slope = round_up(slope + skip * round_up(size * input_size, 1), 2)
    # NaN stays NaN
    bound = slope / jnp.where(contraction >= 1.0, 1.0, 1.0 - contraction)
    return jnp.where(contraction >= 1.0, jnp.inf, round_up(bound, 4))


@checked(tol=POSITIVE)
def picard_steps(
    contraction: Float[Array, "..."] | float,
    residual: Float[Array, "*batch"] | float,
    tol: float,
) -> Float[Array, "*batch"]:
    r"""Picard iterations that reach the equilibrium to ``tol``, known before the first.

    .. math:: |z_k - z^*| \le \frac{c^k}{1 - c} |f(z_0) - z_0| \le tol .

    Args:
      contraction: c, of `contraction_bound`.
      residual: \|f(z_0) - z_0\| of the first state.
      tol: of the distance to the equilibrium, positive, in units of the residual.

    Returns:
      The least such k, or one more where rounding leaves it open. It is infinite where
      c is not below 1 and the residual not 0.

    Source: Banach's fixed-point theorem.

    Example:
      >>> float(picard_steps(0.5, residual=1.0, tol=1e-3))  # 2^-11 / (1 - 1/2) < 1e-3
      11.0
    """
    distance = error_bound(contraction, residual)
    contraction = _from_above(contraction).astype(distance.dtype)
    rate = jnp.where(contraction < 1.0, contraction, 0.5)
    rate = jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)
    excess = jnp.log(jnp.maximum(distance / tol, 1.0))
    return jnp.ceil(round_up(excess / -jnp.log(rate), 8))


def error_bound(
    contraction: Float[Array, "..."] | float, residual: Float[Array, "*batch"] | float
) -> Float[Array, "*batch"]:
    """|z - z*| <= |f(z) - z| / (1 - c): how far the equilibrium can be.

    It is infinite where c is not below 1.

    Args:
      contraction, residual: c, as of `contraction_bound`, and |f(z) - z|, (*batch,).

    Source: Banach's fixed-point theorem.

    Example:
      >>> round(float(error_bound(0.5, 0.25)), 3), float(error_bound(1.0, 0.25))
      (0.5, inf)
    """
    contraction, residual = _from_above(contraction), _from_above(residual)
    dtype = compute_dtype(contraction, residual)
    contraction, residual = jnp.broadcast_arrays(
        contraction.astype(dtype), residual.astype(dtype)
    )
    bound = residual / jnp.where(contraction >= 1.0, 1.0, 1.0 - contraction)
    unbounded = (contraction >= 1.0) & (residual > 0.0)
    return jnp.where(unbounded, jnp.inf, round_up(bound, 4))


def _layers(params: Any) -> tuple[tuple[OptEqParams, ...], Any]:
    """Returns the layers, and the dtype of their bounds."""
    layers = (params,) if isinstance(params, OptEqParams) else tuple(params)
    return layers, compute_dtype(*jax.tree.leaves(layers))


def _rate(size: Array, skip: float) -> Array:
    """Returns a |W|^2 + (1 - a), rounded up.

    Python computes 1 - a, in float64.
    """
    return round_up(skip * size**2 + (1.0 - skip), 4)


def _from_above(value: Any) -> Array:
    """Returns a number or array in float32 at least. A Python number is rounded up."""
    if isinstance(value, jax.Array):
        return value.astype(compute_dtype(value))
    exact = np.asarray(value, np.float64)
    dtype = jnp.result_type(float)
    with np.errstate(over="ignore"):
        near = exact.astype(dtype)
        return jnp.asarray(np.where(near < exact, np.nextafter(near, np.inf), near))
