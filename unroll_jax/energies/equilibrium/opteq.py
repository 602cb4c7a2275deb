"""OptEq: gradients of convex potentials, whose equilibria solve a convex problem."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import ODD, SHARE, SIZE, checked, require
from unroll_jax.arrays import broadcasts, check_event
from unroll_jax.descent import Descent, Factored
from unroll_jax.energies.equilibrium.monotone import (
    Monotone,
    antiderivative,
    resolve_monotone,
)
from unroll_jax.energies.equilibrium.opteq_params import (
    OptEqParams,
    absorb_input,
    event_axes,
    opteq_hidden,
    refuse_expansive,
)
from unroll_jax.energies.examples import DIM, Example
from unroll_jax.energies.tokens import check_kind, with_param_check
from unroll_jax.norm_bounds import conv_norm_bound, matrix_norm_bound
from unroll_jax.numerics import compute_dtype
from unroll_jax.placement import vary_like

__all__ = [
    "opteq",
    "opteq_conv",
    "opteq_conv_example",
    "opteq_example",
    "opteq_potential",
]

# Spectral norm of W at initialisation. Below 1 the equilibrium is unique and iterations
# contract.
INITIAL_NORM = 0.9
# Images on which a convolution has this norm at initialisation. On larger images the
# norm is a little larger.
INITIAL_IMAGE = (32, 32)


@checked(dim=SIZE, width=SIZE, input_dim=SIZE, skip=SHARE)
def opteq(
    dim: int,
    width: int,
    input_dim: int | None = None,
    *,
    activation: str | Monotone = "relu",
    skip: float = 1.0,
    allow_expansive: bool = False,
) -> Descent:
    r"""OptEq: a layer that is the gradient of a convex potential.

    .. math:: f(z) = \nabla_z \psi(z) , \quad
              \psi(z) = 1^T s(W z + U x + b) , \quad s' = \sigma , \\
              z' = a f(z) + (1 - a) z , \qquad E(z) = \tfrac12 |z|^2 - \psi(z) .

    -psi is concave, so E lies below a quadratic of curvature 1. The step is a gradient
    step of length a <= 1 on E, so it never raises E, for every W. With
    :math:`|W|_2 \le 1` E is convex. Then the fixed points, the same for every a,
    minimise E and also :math:`\phi = \psi^* - \tfrac12 |.|^2` (`opteq_objective`). f is
    the prox of phi, and E its Moreau envelope. With :math:`|W|_2 < 1` there is exactly
    one fixed point. Initial weights have norm 0.9. Training may leave |W| <= 1, unless
    `unroll_jax.certificates.spectral_normalise` keeps it there.

    Args:
      dim, width: width m of the state z and hidden width h.
      input_dim: width of the input x, or None for a layer that does not see x.
      activation: sigma, a name of `MONOTONES` or a `Monotone`.
      skip: a in (0, 1], unitless. 1 has no skip connection.
      allow_expansive: whether `equilibrium` takes a known W of norm above 1, which need
        have no equilibrium.

    Returns:
      A `Descent` with `OptEqParams`. States are (*batch, dim), ``x`` broadcasts to
      (*batch, input_dim). None is 0.

    Source: Xie et al. (2021), eqs. 3 and 5, Theorem 1 (mu = 1). The Moreau form after
    it is :math:`a M^{1-a}_\phi`, as in Theorem 2. Section 2.2 prints it without the
    factor a.

    Example:
      >>> import jax
      >>> layer = opteq(4, 8, 3)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> x, z = jax.random.normal(jax.random.key(1), (5, 3)), jax.numpy.zeros((5, 4))
      >>> after = jax.jit(layer.step)(params, z, x)
      >>> energy = jax.jit(layer.energy)
      >>> fell = energy(params, after, x) < energy(params, z, x)
      >>> bool(fell.all())
      True
    """

    def init(key: jax.Array) -> OptEqParams:
        key_W, key_U = jax.random.split(key)
        W = jax.random.normal(key_W, (width, dim))
        W = W * (INITIAL_NORM / matrix_norm_bound(W))
        U = None
        if input_dim is not None:
            U = jax.random.normal(key_U, (width, input_dim)) / math.sqrt(input_dim)
        return OptEqParams(W, U, jnp.zeros(width))

    layer = _layer(init, (dim,), (input_dim,), activation, skip, allow_expansive)

    def factored(params: OptEqParams, x: Array | None) -> Factored:
        offset = absorb_input(params, x).b
        return Factored(params.W, offset, resolve_monotone(activation).value, skip)

    return layer._replace(factored=factored)


@checked(channels=SIZE, width=SIZE, input_channels=SIZE, kernel_size=ODD, skip=SHARE)
def opteq_conv(
    channels: int,
    width: int,
    input_channels: int | None = None,
    *,
    kernel_size: int = 3,
    activation: str | Monotone = "relu",
    skip: float = 1.0,
    allow_expansive: bool = False,
) -> Descent:
    """OptEq whose W and U are convolutions with zero padding.

    Potential, energy and step are those of `opteq`.

    Args:
      channels, width: channels of the state z and hidden channels.
      input_channels: channels of the input x, or None for a layer that does not see x.
      kernel_size: side of the square kernels, odd.
      activation, skip, allow_expansive: as in `opteq`.

    Returns:
      A `Descent` with params `OptEqParams`. States are (*batch, height, width,
      channels), ``x`` broadcasts to (*batch, height, width, input_channels). None is 0.
      Initially W has norm 0.9 on 32 x 32 images, more on larger ones.

    Source: Xie et al. (2021), Section 5: the networks there are convolutional, with the
    formulas of `opteq`.

    Example:
      >>> import jax
      >>> layer = opteq_conv(2, 4, 1)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> x = jax.random.normal(jax.random.key(1), (3, 6, 6, 1))
      >>> jax.jit(layer.step)(params, jax.numpy.zeros((3, 6, 6, 2)), x).shape
      (3, 6, 6, 2)
    """
    window = (kernel_size, kernel_size)

    def init(key: jax.Array) -> OptEqParams:
        key_W, key_U = jax.random.split(key)
        W = jax.random.normal(key_W, (*window, channels, width))
        W = W * (INITIAL_NORM / conv_norm_bound(W, INITIAL_IMAGE))
        U = None
        if input_channels is not None:
            fan_in = kernel_size**2 * input_channels
            normal = jax.random.normal(key_U, (*window, input_channels, width))
            U = normal / math.sqrt(fan_in)
        return OptEqParams(W, U, jnp.zeros(width))

    event = (None, None, channels)
    input_event = (None, None, input_channels)
    return _layer(init, event, input_event, activation, skip, allow_expansive)


def opteq_potential(
    params: OptEqParams,
    z: Float[Array, "..."],
    x: Float[Array, "..."] | None = None,
    *,
    activation: str | Monotone = "relu",
) -> Float[Array, "*batch"]:
    """psi(z) = 1^T s(W z + U x + b), whose gradient is the layer."""
    summed = antiderivative(resolve_monotone(activation))(opteq_hidden(params, z, x))
    return jnp.sum(summed, axis=event_axes(params))


def opteq_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """OptEq with more hidden units than its state has, and a skip connection."""
    key_z, key_x = jax.random.split(key)
    z = jax.random.normal(key_z, (*batch, DIM))
    x = jax.random.normal(key_x, (*batch, DIM - 1))
    return opteq(DIM, 2 * DIM, DIM - 1, skip=0.8), z, x


def opteq_conv_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Convolutional OptEq on small images, with a smooth activation."""
    key_z, key_x = jax.random.split(key)
    z = jax.random.normal(key_z, (*batch, 4, 3, 2))
    x = jax.random.normal(key_x, (*batch, 4, 3, 1))
    return opteq_conv(2, 3, 1, activation="tanh"), z, x


def _layer(
    init: Callable[[jax.Array], OptEqParams],
    event: tuple[int | None, ...],
    input_event: tuple[int | None, ...],
    activation: str | Monotone,
    skip: float,
    allow_expansive: bool,
) -> Descent:
    sigma = resolve_monotone(activation)

    def prepare(params: OptEqParams, z: Any, x: Any) -> Array:
        check_event("z", z, event)
        if x is not None and input_event[-1] is not None:
            check_event("x", x, input_event)
            batch = jnp.shape(z)[: -len(event)]
            x_batch = jnp.shape(x)[: -len(event)]
            allowed = f"have the batch axes {batch} of z or broadcast to them"
            require(broadcasts(x_batch, batch), "x", allowed, x_batch)
        return vary_like(z.astype(compute_dtype(z, params.W)), (params, x))

    def energy(
        params: OptEqParams, z: Array, x: Array | None = None
    ) -> Float[Array, "*batch"]:
        wide = prepare(params, z, x)
        half_square = 0.5 * jnp.sum(wide**2, axis=event_axes(params))
        # Beyond the range of the dtype both are infinite. For |W| <= 1 the first is the
        # larger.
        gap = half_square - opteq_potential(params, wide, x, activation=sigma)
        return jnp.where(jnp.isinf(half_square), jnp.inf, gap)

    def step(params: OptEqParams, z: Array, x: Array | None = None) -> Array:
        wide = prepare(params, z, x)

        def potential(z: Array) -> Array:
            return jnp.sum(opteq_potential(params, z, x, activation=sigma))

        after = jax.grad(potential)(wide)
        if skip != 1.0:
            after = wide + skip * (after - wide)
        return after.astype(z.dtype)

    check = None if allow_expansive else refuse_expansive
    layer = Descent(init=init, energy=energy, step=step, symmetric=True, check=check)
    return with_param_check(layer, lambda params: check_kind(params, OptEqParams))
