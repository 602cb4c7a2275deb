"""Norms of the weights of equilibria: measured, bounded, checked and capped."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, require
from unroll_jax.energies.equilibrium.opteq_params import opteq_linear
from unroll_jax.norm_bounds import conv_norm_bound, matrix_norm_bound
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import norm, spectral_norm

__all__ = ["spectral_normalise", "weight_norm", "weight_norm_bound"]

ImageShape = tuple[int, int]


def weight_norm(
    W: Float[Array, "..."],
    image_shape: ImageShape | None = None,
    *,
    num_steps: int = 100,
    key: jax.Array | None = None,
) -> Float[Array, ""]:
    """|W|_2 of a matrix or of a zero-padded convolution, by power iteration.

    It is approached from below, in float32 at least, see `spectral_norm`.

    Args:
      W: (h, m), or a kernel (height, width, channels in, channels out). Another rank is
        a ValueError.
      image_shape: height and width of the images, which a kernel needs.
      num_steps, key: as in `spectral_norm`.

    Example:
      >>> import jax.numpy as jnp
      >>> W = jnp.diag(jnp.array([3.0, 1.0]))
      >>> round(float(weight_norm(W)), 3), 3.0 <= float(weight_norm_bound(W)) < 3.01
      (3.0, True)
    """
    shape = _domain(W, image_shape)
    W = jnp.asarray(W, compute_dtype(W))
    like = jax.ShapeDtypeStruct(shape, W.dtype)
    return spectral_norm(
        lambda z: opteq_linear(W, z), like, num_steps=num_steps, key=key
    )


def weight_norm_bound(
    W: Float[Array, "..."], image_shape: ImageShape | None = None
) -> Float[Array, ""]:
    """|W|_2 from above, as certificates need.

    See `matrix_norm_bound` and `conv_norm_bound`, which round up.

    Example: see `weight_norm`.
    """
    *image, _ = _domain(W, image_shape)
    return conv_norm_bound(W, (image[0], image[1])) if image else matrix_norm_bound(W)


@checked(bound=POSITIVE)
def spectral_normalise(
    params: Any,
    *,
    bound: float = 0.95,
    image_shape: ImageShape | None = None,
    certified: bool = True,
    num_steps: int = 20,
    where: Callable[[str], bool] | None = None,
) -> Any:
    r"""Scales every weight W down, where it must, to a norm of at most ``bound``.

    .. math:: W \min(1, bound / |W|_2) .

    Do it once, before the equilibrium is solved and not inside the step. The gradient
    passes through the norm.

    Args:
      params: of `opteq` or `opteq_conv`, whose W is scaled. Or any pytree, such as
        parameters of flax or a module of Equinox, of which every matrix and every
        kernel (height, width, channels in, channels out) is scaled.
      bound: positive. Below 1 an OptEq layer contracts, and so does a step
        z -> s(z W + u) with a 1-Lipschitz s.
      image_shape: height and width of the images, for convolutions.
      certified: divides by an upper bound of the norm, with room for the rounding to
        W's dtype. The result is then within ``bound`` for certain. In bfloat16 its norm
        is up to some percent below. False divides by the result of a power iteration.
        The norm may then end slightly above, at less cost for wide convolutions.
      num_steps: steps of the power iteration.
      where: chooses weights of a pytree by their path, as in
        ``lambda path: "recurrent" in path``. None takes all.

    Raises:
      ValueError: if bound is not positive, or W and image_shape do not fit.
      TypeError: if params hold no weight.

    Source: Miyato et al. (2018), "Spectral normalization for generative adversarial
    networks". Here the norm is capped.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import OptEqParams
      >>> params = spectral_normalise(
      ...     OptEqParams(W=2.0 * jnp.eye(1), U=None, b=jnp.zeros(1)), bound=0.5
      ... )
      >>> round(params.W.item(), 3)
      0.5
    """

    def cap(W: Array) -> Array:
        wide = jnp.asarray(W, compute_dtype(W))
        if certified:
            size = weight_norm_bound(W, image_shape)
            largest = size + _rounding_of_norm(wide, W.dtype)
        else:
            size = largest = weight_norm(W, image_shape, num_steps=num_steps)
        above = size > bound
        factor = jnp.where(above, bound / jnp.where(above, largest, 1.0), 1.0)
        return (wide * factor).astype(W.dtype)

    if where is None and hasattr(params, "W") and hasattr(params, "_replace"):
        return params._replace(W=cap(params.W))
    return _map_weights(cap, params, where)


def _rounding_of_norm(W: Array, dtype: Any) -> Array:
    """Bounds how much rounding W, and W times a factor below 1, adds to |W|_2.

    Each entry changes by at most half the spacing of ``dtype`` and twice that of
    products. The norm of the change is at most its Frobenius norm, times the root of
    the number of taps of a kernel.
    """
    taps = math.prod(W.shape[:-2])
    spacing = 0.5 * jnp.finfo(dtype).eps + 2.0 * jnp.finfo(W.dtype).eps
    # Numbers near 0 have a fixed spacing.
    least = jnp.finfo(dtype).smallest_subnormal * math.sqrt(W.size)
    return math.sqrt(taps) * (float(spacing) * norm(W) + float(least))


def _map_weights(
    function: Callable[[Array], Any], params: Any, where: Callable[[str], bool] | None
) -> Any:
    """Applies ``function`` to the matrices and kernels at paths that ``where`` chooses.

    Raises:
      TypeError: if there are none.
    """

    def is_chosen(path: Any, leaf: Any) -> bool:
        if getattr(leaf, "ndim", 0) not in (2, 4):
            return False
        return where is None or where(jax.tree_util.keystr(path))

    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    chosen = [is_chosen(path, leaf) for path, leaf in leaves]
    if not any(chosen):
        names = [jax.tree_util.keystr(path) for path, _ in leaves[:5]]
        paths = ", ".join(names) or "no leaves"
        raise TypeError(
            "params must hold a weight W, as OptEqParams do, or matrices at paths that"
            f" where chooses, got {type(params).__name__} with {paths}"
        )
    results = []
    for (_, leaf), use in zip(leaves, chosen, strict=True):
        results.append(function(jnp.asarray(leaf)) if use else leaf)
    return structure.unflatten(results)


def _domain(W: Array, image_shape: ImageShape | None) -> tuple[int, ...]:
    if W.ndim == 2:
        return (W.shape[1],)
    require(W.ndim == 4, "W", "be a matrix or a kernel of rank 4", f"shape {W.shape}")
    if image_shape is None:
        raise ValueError("image_shape must be given for a convolution, got None")
    return (*image_shape, W.shape[2])
