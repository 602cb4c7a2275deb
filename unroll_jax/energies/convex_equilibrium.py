"""Equilibria on convex potentials: layers that are 1-Lipschitz in their input."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import ODD, SIZE, checked, in_interval, one_of, require
from unroll_jax.arrays import broadcasts, check_event
from unroll_jax.descent import Descent
from unroll_jax.energies.convex_potential import (
    SCALINGS,
    ConvexPotentialParams,
    as_wide,
    potential,
    potential_gradient,
    potential_init,
    with_checked_params,
)
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone
from unroll_jax.energies.examples import DIM, Example

__all__ = ["convex_equilibrium", "convex_equilibrium_example"]


@checked(
    dim=SIZE,
    width=SIZE,
    kernel_size=ODD,
    strength=in_interval("(0, 1/2]"),
    scaling=one_of(SCALINGS),
)
def convex_equilibrium(
    dim: int,
    width: int,
    *,
    kernel_size: int | None = None,
    strength: float = 0.5,
    activation: str | Monotone = "relu",
    scaling: str = "gershgorin",
) -> Descent:
    r"""A layer whose equilibrium is 1-Lipschitz in its input.

    With psi of `convex_potential`, convex and 1-smooth,

    .. math:: z' = c \nabla \psi(z + x) , \qquad
              E(z) = \tfrac12 |z|^2 - c \, \psi(z + x) .

    E is strongly convex for c < 1, and a step is a gradient step of length 1 below a
    quadratic of curvature 1: it never raises E. Iterations contract at the rate c or
    faster to the only equilibrium z(x). With eigenvalues h in [0, 1] of the Hessian of
    psi, :math:`dz/dx` has the eigenvalues :math:`c h / (1 - c h)`, and for
    :math:`c \le 1/2`

    .. math:: |z(x_1) - z(x_2)| \le |x_1 - x_2| , \qquad
              |r(x_1) - r(x_2)| \le |x_1 - x_2| , \quad r(x) = x - 2 z(x) .

    The reflection r keeps the directions that z loses; use it between layers. An
    isometry V in front of the layer (`unroll_jax.certificates.pad_channels`, for
    instance) changes neither bound.

    Args:
      dim, width: width, or channels, of the state z and of the input x, and number of
        hidden units or channels.
      kernel_size: side of the square kernel of a convolution, odd. None for vectors.
      strength: c in (0, 1/2], unitless.
      activation, scaling: as in `convex_potential`.

    Returns:
      A `Descent` with `ConvexPotentialParams` for `equilibrium`. z is (*batch, dim), or
      (*batch, height, width, dim), and ``x`` broadcasts to it. None is 0.

    Source: the equilibrium is OptEq, Xie et al. (2021), eq. 3, with T of Araujo et al.
    (2023). Both Lipschitz constants are ours.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax as uj
      >>> layer = convex_equilibrium(4, 8)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> x = jax.random.normal(jax.random.key(1), (2, 4))
      >>> z, info = uj.equilibrium(layer, params, jnp.zeros((2, 4)), x)
      >>> reflected = x - 2.0 * z
      >>> bool(jnp.linalg.norm(z[0] - z[1]) <= jnp.linalg.norm(x[0] - x[1]))
      True
    """
    sigma = resolve_monotone(activation)
    if kernel_size is None:
        event: tuple[int | None, ...] = (dim,)
        init = potential_init((width, dim), dim, scaling)
    else:
        event = (None, None, dim)
        shape = (kernel_size, kernel_size, dim, width)
        init = potential_init(shape, kernel_size**2 * dim, scaling)

    def prepare(
        params: ConvexPotentialParams, z: Any, x: Any
    ) -> tuple[ConvexPotentialParams, Array, Array]:
        """Returns params, z and z + x in the dtype of the computation."""
        check_event("z", z, event)
        if x is None:
            params, wide = as_wide(params, z)
            return params, wide, wide
        check_event("x", x, event)
        shape = jnp.shape(z)
        fits = broadcasts(jnp.shape(x), shape)
        require(fits, "x", f"broadcast to z's shape {shape}", jnp.shape(x))
        params, wide, given = as_wide(params, z, x)
        return params, wide, wide + given

    def energy(
        params: ConvexPotentialParams, z: Array, x: Array | None = None
    ) -> Float[Array, "*batch"]:
        params, wide, total = prepare(params, z, x)
        half_square = 0.5 * jnp.sum(wide**2, axis=tuple(range(-len(event), 0)))
        gap = half_square - strength * potential(params, total, sigma)
        # Beyond the range of the dtype both are infinite. The first is larger.
        return jnp.where(jnp.isinf(half_square), jnp.inf, gap)

    def step(params: ConvexPotentialParams, z: Array, x: Array | None = None) -> Array:
        params, _, total = prepare(params, z, x)
        return (strength * potential_gradient(params, total, sigma)).astype(z.dtype)

    layer = Descent(init=init, energy=energy, step=step, symmetric=True)
    return with_checked_params(layer)


def convex_equilibrium_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """More hidden units than the state has numbers, and the largest strength."""
    key_z, key_x = jax.random.split(key)
    z = jax.random.normal(key_z, (*batch, DIM))
    x = jax.random.normal(key_x, (*batch, DIM))
    return convex_equilibrium(DIM, 2 * DIM), z, x
