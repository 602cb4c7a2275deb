"""The weights of OptEq layers: how they act on states, and a check of their norms."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.energies.equilibrium.convolution import convolve
from unroll_jax.numerics import common_dtype, compute_dtype
from unroll_jax.spectral import spectral_norm

__all__ = [
    "OptEqParams",
    "absorb_input",
    "event_axes",
    "opteq_hidden",
    "opteq_linear",
    "refuse_expansive",
]


class OptEqParams(NamedTuple):
    """Weights of one layer. The rank of W gives its kind.

    Attributes:
      W: (width, dim), or a kernel (height, width, channels of z, hidden channels) of a
        convolution.
      U: the same from the input x, or None for a layer that does not see x.
      b: one number per hidden unit or channel.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import opteq
      >>> jax.tree.map(lambda leaf: leaf.shape, opteq(4, 8, 3).init(jax.random.key(0)))
      OptEqParams(W=(8, 4), U=(8, 3), b=(8,))
    """

    W: Float[Array, "..."]
    U: Float[Array, "..."] | None
    b: Float[Array, " hidden"]


def opteq_linear(W: Float[Array, "..."], z: Float[Array, "..."]) -> Float[Array, "..."]:
    """W z: a product for a matrix (h, m) and z (*batch, m).

    For a kernel and an image it is a zero-padded convolution.
    """
    dtype = common_dtype(W, z)
    W, z = W.astype(dtype), z.astype(dtype)
    if W.ndim == 2:
        return z @ W.T
    images = convolve(W, z.reshape(-1, *z.shape[-3:]))
    return images.reshape(*z.shape[:-3], *images.shape[1:])


def opteq_hidden(
    params: OptEqParams, z: Float[Array, "..."], x: Float[Array, "..."] | None
) -> Float[Array, "..."]:
    """Returns W z + U x + b, the argument of sigma."""
    return _plus(opteq_linear(params.W, z), absorb_input(params, x).b)


def absorb_input(params: OptEqParams, x: Float[Array, "..."] | None) -> OptEqParams:
    """The same layer for only this x, with x = None.

    b becomes U x + b, computed once, with the axes of x.
    """
    if params.U is None or x is None:
        return params
    return params._replace(U=None, b=_plus(opteq_linear(params.U, x), params.b))


def event_axes(params: OptEqParams) -> tuple[int, ...]:
    """The axes of one example's state: the last, or the last three of images."""
    return (-1,) if params.W.ndim == 2 else (-3, -2, -1)


def refuse_expansive(params: OptEqParams, z: Float[Array, "..."]) -> None:
    """A ValueError unless a known |W|_2 is at most 1 on states like z.

    Otherwise a layer need have no equilibrium. Values are known outside of jit, and if
    a jitted function closes over them. Power iteration approaches the norm from below,
    so no valid weights fail.
    """
    W = jax.lax.stop_gradient(params.W) if isinstance(params.W, Tracer) else params.W
    if isinstance(W, Tracer) or not getattr(W, "is_fully_addressable", True):
        return
    with jax.ensure_compile_time_eval():
        event = jnp.shape(z)[event_axes(params)[0] :]
        # Here each operation on constants compiles alone: the key is an argument.
        size = float(
            _norm_from_below(jnp.asarray(W, compute_dtype(W)), event, jax.random.key(0))
        )
    # The rounding of float32 products, or of the weights.
    slack = max(1e-5, float(jnp.finfo(W.dtype).eps))
    if not size <= 1.0 + slack:
        raise ValueError(
            f"|W| must be at most 1, got {size:.4g}: keep it there"
            " (certificates.spectral_normalise), or pass allow_expansive=True, which"
            " promises no equilibrium"
        )


def _plus(a: Array, b: Array) -> Array:
    dtype = common_dtype(a, b)
    return a.astype(dtype) + b.astype(dtype)


@functools.partial(jax.jit, static_argnums=1)
def _norm_from_below(
    W: Float[Array, "..."], event: tuple[int, ...], key: jax.Array
) -> Float[Array, ""]:
    return spectral_norm(
        lambda z: opteq_linear(W, z), jax.ShapeDtypeStruct(event, W.dtype), key=key
    )
