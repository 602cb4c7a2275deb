"""Gradient steps on convex potentials, dense and convolutional.

They move no two states apart.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import ODD, SIZE, checked, in_interval, one_of
from unroll_jax.arrays import check_event
from unroll_jax.descent import Descent
from unroll_jax.energies.equilibrium.monotone import (
    Monotone,
    antiderivative,
    resolve_monotone,
)
from unroll_jax.energies.equilibrium.opteq_params import opteq_linear
from unroll_jax.energies.examples import DIM, Example
from unroll_jax.energies.tokens import check_params, with_param_check
from unroll_jax.norm_bounds import conv_norm_bound, matrix_norm_bound
from unroll_jax.numerics import compute_dtype, full_precision
from unroll_jax.placement import vary_like

__all__ = [
    "SCALINGS",
    "ConvexPotentialParams",
    "as_wide",
    "convex_potential",
    "convex_potential_conv",
    "convex_potential_conv_example",
    "convex_potential_example",
    "potential",
    "potential_gradient",
    "potential_init",
    "potential_scaling",
    "relative_q",
    "smallest_overlap",
    "transposed_linear",
    "with_checked_params",
]

# Choices of T.
SCALINGS = ("gershgorin", "norm")


class ConvexPotentialParams(NamedTuple):
    """Weights of one layer. The rank of W gives its kind.

    Attributes:
      W: (width, dim), or a kernel (height, width, channels of z, hidden channels) of a
        convolution.
      b: one number per hidden unit or channel.
      log_q: the same, the logarithm of q. None for ``scaling="norm"``.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import convex_potential
      >>> params = jax.jit(convex_potential(4, 6).init)(jax.random.key(0))
      >>> jax.tree.map(lambda leaf: leaf.shape, params)
      ConvexPotentialParams(W=(6, 4), b=(6,), log_q=(6,))
    """

    W: Float[Array, "..."]
    b: Float[Array, " hidden"]
    log_q: Float[Array, " hidden"] | None = None


@checked(
    dim=SIZE, width=SIZE, step_size=in_interval("(0, 2]"), scaling=one_of(SCALINGS)
)
def convex_potential(
    dim: int,
    width: int,
    *,
    step_size: float = 2.0,
    activation: str | Monotone = "relu",
    scaling: str = "gershgorin",
) -> Descent:
    r"""A gradient step on a convex potential whose gradient is 1-Lipschitz.

    .. math:: \psi(z) = \sum_i \frac{s((W z + b)_i)}{T_i} , \quad s' = \sigma , \qquad
              z' = z - a \nabla \psi(z) = z - a W^T T^{-1} \sigma(W z + b) .

    T is diagonal with :math:`W^T T^{-1} W \le I`. Slopes of sigma lie in [0, 1], so the
    Hessian of psi lies between 0 and I. For every :math:`0 < a \le 2` and every W, b

    .. math:: \psi(z') \le \psi(z) , \qquad |z'_1 - z'_2| \le |z_1 - z_2| .

    A chain of such steps is 1-Lipschitz, whatever its depth:
    `unroll_jax.certificates.certified_radius` turns its margins into radii. By default

    .. math:: T_i = \sum_j |W W^T|_{ij} \, q_j / q_i , \qquad q > 0 ,

    which by Gershgorin's theorem bounds :math:`W W^T` for every q, without iterations.
    log q is learned. ``scaling="norm"`` has :math:`T_i = |W|_2^2` for all units, by
    `matrix_norm_bound`. Units with W_i = 0 have no effect, nor has q below e^-40 of the
    largest.

    Args:
      dim, width: width of the state z, and number of hidden units.
      step_size: a in (0, 2], unitless. At 2 a step can reflect, and keeps most of z.
      activation: sigma, a name of `MONOTONES` or a `Monotone`.
      scaling: "gershgorin", or "norm".

    Returns:
      A `Descent` with `ConvexPotentialParams`. States are (*batch, dim), and the layer
      ignores x.

    Source: Araujo et al. (2023), "A unified algebraic perspective on Lipschitz neural
    networks", their layer SLL (a = 2, ReLU). With "norm", Meunier et al. (2022), "A
    dynamical system perspective for Lipschitz neural networks", the convex potential
    layer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> layer = convex_potential(4, 8)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> z = jax.random.normal(jax.random.key(1), (2, 4))
      >>> stepped = layer.step(params, z)
      >>> bool(jnp.linalg.norm(stepped[0] - stepped[1]) <= jnp.linalg.norm(z[0] - z[1]))
      True
      >>> bool((layer.energy(params, stepped) <= layer.energy(params, z)).all())
      True
    """
    init = potential_init((width, dim), dim, scaling)
    return _layer(init, (dim,), step_size, resolve_monotone(activation))


@checked(
    channels=SIZE,
    width=SIZE,
    kernel_size=ODD,
    step_size=in_interval("(0, 2]"),
    scaling=one_of(SCALINGS),
)
def convex_potential_conv(
    channels: int,
    width: int,
    *,
    kernel_size: int = 3,
    step_size: float = 2.0,
    activation: str | Monotone = "relu",
    scaling: str = "gershgorin",
) -> Descent:
    r"""`convex_potential` whose W is a convolution with zero padding.

    T has one number per hidden channel. With :math:`K_{ij}` the autocorrelation of the
    kernel between hidden channels i and j,

    .. math:: T_i = \sum_j \sum_\delta |K_{ij}(\delta)| \, q_j / q_i , \qquad
              K_{ij}(\delta) = \sum_{t, c} W_{t, c, i} W_{t + \delta, c, j} ,

    which bounds the convolution on images of any size: zero padding takes a part of the
    unbounded operator, whose norm is no larger.

    Args:
      channels, width: channels of the state z, and hidden channels.
      kernel_size: side of the square kernel, odd.
      step_size, activation: as in `convex_potential`.
      scaling: "gershgorin", or "norm" by `conv_norm_bound` on images of z's size.

    Returns:
      A `Descent` with `ConvexPotentialParams`. States are (*batch, height, width,
      channels).

    Source: as `convex_potential`.

    Example:
      >>> import jax
      >>> layer = convex_potential_conv(2, 4)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> jax.jit(layer.step)(params, jax.numpy.ones((3, 6, 6, 2))).shape
      (3, 6, 6, 2)
    """
    shape = (kernel_size, kernel_size, channels, width)
    init = potential_init(shape, kernel_size**2 * channels, scaling)
    return _layer(init, (None, None, channels), step_size, resolve_monotone(activation))


def potential_init(
    shape: tuple[int, ...], fan_in: int, scaling: str
) -> Callable[[jax.Array], ConvexPotentialParams]:
    """Returns the ``init`` of weights W of a shape, of any scale: T divides by it."""
    width = shape[0] if len(shape) == 2 else shape[-1]

    def init(key: jax.Array) -> ConvexPotentialParams:
        W = jax.random.normal(key, shape) / math.sqrt(fan_in)
        log_q = jnp.zeros(width) if scaling == "gershgorin" else None
        return ConvexPotentialParams(W, jnp.zeros(width), log_q)

    return init


def potential(
    params: ConvexPotentialParams, z: Float[Array, "..."], sigma: Monotone
) -> Float[Array, "*batch"]:
    """psi(z), of params and z in one dtype."""
    hidden = opteq_linear(params.W, z) + params.b
    weighted = _inverse_scaling(params, z) * antiderivative(sigma)(hidden)
    axes = (-1,) if params.W.ndim == 2 else (-3, -2, -1)
    return jnp.sum(weighted, axis=axes)


def potential_gradient(
    params: ConvexPotentialParams, z: Float[Array, "..."], sigma: Monotone
) -> Float[Array, "..."]:
    """The gradient of psi, W^T T^-1 sigma(W z + b), of params and z in one dtype."""
    hidden = opteq_linear(params.W, z) + params.b
    weighted = _inverse_scaling(params, z) * sigma.value(hidden)
    return transposed_linear(params.W, weighted)


def transposed_linear(
    W: Float[Array, "..."], hidden: Float[Array, "..."]
) -> Float[Array, "..."]:
    """W^T times hidden states, in one dtype."""
    if W.ndim == 2:
        return hidden @ W
    # The transpose of a zero-padded convolution with an odd kernel is one with the
    # kernel turned by half a circle.
    return opteq_linear(jnp.swapaxes(W[::-1, ::-1], 2, 3), hidden)


@full_precision()  # a T below its bound would let states move apart
def potential_scaling(
    params: ConvexPotentialParams, image_shape: tuple[int, int] | None = None
) -> Float[Array, " hidden"]:
    """Returns T, one number per hidden unit or channel, 0 for units without effect.

    Args:
      params: weights, with log_q for Gershgorin's bound or without for the norm.
      image_shape: height and width of the images, for the norm of a convolution.
    """
    W, log_q = params.W, params.log_q
    if log_q is None:
        if W.ndim == 2:
            size = matrix_norm_bound(W)
        else:
            assert image_shape is not None
            size = conv_norm_bound(W, image_shape)
        total = jnp.broadcast_to(size**2, params.b.shape)
        q = jnp.ones_like(total)
    else:
        overlap = jnp.abs(W @ W.T) if W.ndim == 2 else _absolute_autocorrelation(W)
        q = relative_q(log_q)
        total = overlap @ q

    # Products of smaller weights may be subnormal, which count as 0: T would be too
    # small. Without such a unit the step is a step on another potential.
    smallest = smallest_overlap(float(jnp.finfo(total.dtype).eps) / 2)
    return jnp.where(total < smallest, 0.0, total / q)


def relative_q(log_q: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
    """q over its largest number, and at least e^-40.

    T is a bound for every q > 0. Smaller numbers would leave the range of the dtype.
    """
    return jnp.exp(jnp.maximum(log_q - jax.lax.stop_gradient(jnp.max(log_q)), -40.0))


def smallest_overlap(unit: float) -> float:
    """The sum over j of |W W^T|_ij q_j below which a unit has no effect."""
    dtype = jnp.float32 if unit > 1e-10 else jnp.float64
    return float(jnp.finfo(dtype).tiny) / unit**2


def as_wide(
    params: ConvexPotentialParams, *states: Any
) -> tuple[ConvexPotentialParams, *tuple[Any, ...]]:
    """Returns params and states in one dtype, float32 at least.

    They vary over the same axes of a `jax.shard_map`.
    """
    dtype = compute_dtype(*states, *params)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (params, *states))
    return (wide[0], *(vary_like(state, wide) for state in wide[1:]))


def with_checked_params(descent: Descent) -> Descent:
    """Returns the descent with functions that check the shapes of their params."""

    @functools.cache
    def made() -> ConvexPotentialParams:
        return jax.eval_shape(descent.init, jax.eval_shape(lambda: jax.random.key(0)))

    return with_param_check(descent, lambda params: check_params(params, made()))


def convex_potential_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """More hidden units than the state has numbers, and the longest step."""
    return convex_potential(DIM, 2 * DIM), jax.random.normal(key, (*batch, DIM)), None


def convex_potential_conv_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Small images, with a smooth activation and shorter steps."""
    layer = convex_potential_conv(2, 3, step_size=1.5, activation="tanh")
    return layer, jax.random.normal(key, (*batch, 4, 3, 2)), None


def _layer(
    init: Callable[[jax.Array], ConvexPotentialParams],
    event: tuple[int | None, ...],
    step_size: float,
    sigma: Monotone,
) -> Descent:
    def energy(
        params: ConvexPotentialParams, z: Array, x: Any = None
    ) -> Float[Array, "*batch"]:
        check_event("z", z, event)
        params, wide = as_wide(params, z)
        return potential(params, wide, sigma)

    def step(params: ConvexPotentialParams, z: Array, x: Any = None) -> Array:
        check_event("z", z, event)
        params, wide = as_wide(params, z)
        after = wide - step_size * potential_gradient(params, wide, sigma)
        return after.astype(z.dtype)

    return with_checked_params(Descent(init=init, energy=energy, step=step))


def _inverse_scaling(params: ConvexPotentialParams, z: Array) -> Array:
    """Returns 1 / T, with 0 for units without effect, and NaN where T overflows."""
    image_shape = None if params.W.ndim == 2 else (z.shape[-3], z.shape[-2])
    scaling = potential_scaling(params, image_shape)
    absent = scaling == 0.0
    inverse = jnp.where(absent, 0.0, 1.0 / jnp.where(absent, 1.0, scaling))
    # At 0 the layer would be the identity in silence.
    return jnp.where(jnp.isinf(scaling), jnp.nan, inverse)


def _absolute_autocorrelation(W: Float[Array, "k k i o"]) -> Float[Array, "o o"]:
    """Returns the sums over all shifts of |K(shift)|, by one product.

    K at the opposite shift is the transpose of K, so half of the shifts are enough.
    """
    rows, columns, _, outer = W.shape
    sides = range(1 - columns, columns)
    half = [
        (down, side) for down in range(rows) for side in sides if (down, side) > (0, 0)
    ]
    flat = W.reshape(-1, outer)
    unshifted = jnp.abs(flat.T @ flat)
    if not half:
        return unshifted
    padded = jnp.pad(W, [(0, rows - 1), (columns - 1, columns - 1), (0, 0), (0, 0)])

    def shifted(shift: Array) -> Array:
        start = (shift[0], shift[1] + columns - 1, 0, 0)
        return jax.lax.dynamic_slice(padded, start, W.shape)

    # One gather: slices of their own take seconds to compile.
    every = jax.vmap(shifted)(jnp.array(half)).reshape(len(half), -1, outer)
    correlation = jnp.tensordot(every, flat, [[1], [0]])
    one_side = jnp.sum(jnp.abs(correlation), axis=0)
    return unshifted + one_side + one_side.T
