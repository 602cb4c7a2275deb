"""The convex functions that OptEq and deep OptEq minimise: phi, envelopes, and Phi."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import check, checked, in_interval, require
from unroll_jax.arrays import check_square
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone
from unroll_jax.energies.equilibrium.opteq import opteq_potential
from unroll_jax.energies.equilibrium.opteq_params import (
    OptEqParams,
    event_axes,
    opteq_hidden,
    refuse_expansive,
)
from unroll_jax.numerics import compute_dtype

__all__ = ["deep_opteq_objective", "opteq_objective", "opteq_preimage"]


@checked(skip=in_interval("(0, 1]"))
def opteq_objective(
    params: OptEqParams,
    z: Float[Array, "..."],
    x: Float[Array, "..."] | None = None,
    *,
    activation: str | Monotone = "relu",
    skip: float = 1.0,
    allow_expansive: bool = False,
) -> Float[Array, "*batch"]:
    r"""The convex function whose prox a layer is.

    It is phi for a = 1, and :math:`a M^{1-a}_\phi` for a skip connection:

    .. math:: \phi(z) = \psi^*(z) - \tfrac12 |z|^2
              = 1^T s^*(W^{-T} z) - \langle U x + b, W^{-T} z \rangle
              - \tfrac12 |z|^2

    for a square invertible W: infinite where :math:`W^{-T} z` is outside the range of
    sigma (with ReLU, negative somewhere). For a < 1 W may be any matrix or convolution
    with :math:`|W|_2 \le 1`. The value is finite everywhere:

    .. math:: a M^{1-a}_\phi(z) = \min_u a \phi(u) + \frac{a}{2 (1 - a)} |u - z|^2
              = \max_w \langle w, z \rangle - a \psi(w)
              - \tfrac{1 - a}2 |w|^2 - \tfrac12 |z|^2 .

    At the maximum :math:`a f(w) + (1 - a) w = z` (`opteq_preimage`), at the minimum u =
    f(w). For a = 1 and any W the value at z = f(w) is
    :math:`\langle w, z \rangle - \psi(w) - \tfrac12 |z|^2`. At an equilibrium that is
    the energy of `opteq`.

    Args:
      params: of `opteq` or `opteq_conv`.
      z: where to evaluate, (*batch, m) or (*batch, height, width, channels).
      x: the input, or None.
      activation, skip: as in `opteq`.
      allow_expansive: whether a W of norm above 1 is allowed, outside of jit, where it
        is known. The function is not convex then, and for a < 1 the value need not be
        the one above.

    Returns:
      One number per example, in float32 at least, differentiable in z and the
      parameters.

    Raises:
      ValueError: if, for skip = 1, W is not square or sigma has no conjugate, or if a
        known |W| > 1 is not allowed.

    Source: Xie et al. (2021), Theorem 1, the formula after it, and Theorem 2 with its
    proof.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> params = OptEqParams(W=0.5 * jnp.eye(1), U=None, b=jnp.array([1.5]))
      >>> measure = jax.value_and_grad(opteq_objective, argnums=1)
      >>> value, slope = measure(params, jnp.ones(1))
      >>> round(float(value), 4), round(float(slope[0]), 4)
      (-1.5, 0.0)

    There phi(z) = 3/2 z^2 - 3 z for z >= 0: the minimum is at the equilibrium z = 1.
    """
    sigma = resolve_monotone(activation)
    if not allow_expansive:
        refuse_expansive(params, z)
    z = z.astype(compute_dtype(z, params.W))
    if skip == 1.0:
        return _conjugate(params, z, x, sigma)
    axes = event_axes(params)
    # The derivative of a maximum is the partial derivative at the maximiser.
    w = jax.lax.stop_gradient(opteq_preimage(params, z, x, activation=sigma, skip=skip))
    inner = jnp.sum(w * z - 0.5 * (1.0 - skip) * w**2 - 0.5 * z**2, axis=axes)
    return inner - skip * opteq_potential(params, w, x, activation=sigma)


def opteq_preimage(
    params: OptEqParams,
    z: Float[Array, "..."],
    x: Float[Array, "..."] | None = None,
    *,
    activation: str | Monotone = "relu",
    skip: float,
) -> Float[Array, "..."]:
    r"""w with a f(w) + (1 - a) w = z, for a < 1 and :math:`|W|_2 \le 1`.

    f(w) is then the prox of (1 - a) phi at z. It is found by accelerated gradient on
    :math:`a \psi(w) + \tfrac{1-a}2 |w|^2 - \langle w, z \rangle`, which is strongly
    convex with constant 1 - a and 1-smooth: the error falls by :math:`1 - \sqrt{1 - a}`
    a step, to rounding.

    Source: Nesterov (2018), "Lectures on convex optimization", method 2.2.22.
    """
    check("skip", skip, in_interval("(0, 1)"))
    sigma = resolve_monotone(activation)
    root = math.sqrt(1.0 - skip)
    momentum = (1.0 - root) / (1.0 + root)
    # Enough to reach round-off: the start is off by a factor of 1 / (1 - a) at most.
    digits = -math.log(float(jnp.finfo(z.dtype).eps)) - 2.0 * math.log(root)
    num_steps = 2 * math.ceil((digits + 2.0) / root)

    def potential(w: Array) -> Array:
        return jnp.sum(opteq_potential(params, w, x, activation=sigma))

    def descend(pair: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        w, ahead = pair
        slope = skip * jax.grad(potential)(ahead) + (1.0 - skip) * ahead - z
        after = ahead - slope
        return (after, after + momentum * (after - w)), None

    (w, _), _ = jax.lax.scan(descend, (z, z), length=num_steps)
    return w


def deep_opteq_objective(
    params: Sequence[OptEqParams],
    blocks: Sequence[Float[Array, "..."]],
    x: Float[Array, "..."] | None = None,
    *,
    activation: str | Monotone = "relu",
    skip: float = 1.0,
    allow_expansive: bool = False,
) -> Float[Array, "*batch"]:
    r"""Phi of a deep OptEq, over one block per layer.

    .. math:: \Phi(\tilde z) = \sum_l a M^{1-a}_{\phi_l}(z_l)

    An equilibrium of `multi_block` solves
    :math:`0 \in \partial \Phi(\tilde z) + (I - P) \tilde z`. For L = 2 it minimises
    :math:`\Phi(z_1, z_2) + \tfrac12 |z_1 - z_2|^2`, and for L = 1 it minimises Phi.

    Args:
      params: of the layers.
      blocks: z_1 to z_L, as the state of `multi_block`.
      x: the input, or None.
      activation, skip, allow_expansive: as in `opteq_objective`, common to the layers.

    Returns:
      One number per example, differentiable in the blocks and the parameters.

    Source: Xie et al. (2021), Theorem 2 and Corollary 1.

    Example:
      >>> import jax.numpy as jnp
      >>> params = OptEqParams(W=0.5 * jnp.eye(1), U=None, b=jnp.array([1.5]))
      >>> blocks = [jnp.ones(1), jnp.ones(1)]  # phi(1) = -3/2
      >>> round(float(deep_opteq_objective([params, params], blocks)), 4)
      -3.0
    """
    allowed = f"be as many as layers, {len(params)}"
    require(len(params) == len(blocks), "blocks", allowed, len(blocks))
    values = []
    for layer_params, z in zip(params, blocks, strict=True):
        value = opteq_objective(
            layer_params,
            z,
            x,
            activation=activation,
            skip=skip,
            allow_expansive=allow_expansive,
        )
        values.append(value)
    return sum(values[1:], values[0])


def _conjugate(
    params: OptEqParams, z: Array, x: Array | None, sigma: Monotone
) -> Float[Array, "*batch"]:
    check_square("W", params.W, "with skip < 1 it may be any matrix")
    if sigma.conjugate is None:
        raise ValueError(
            "activation must have a conjugate for skip = 1, got None; with skip < 1 it"
            " needs none"
        )
    W = params.W.astype(z.dtype)
    t = jnp.linalg.solve(W.T, z[..., None])[..., 0]

    # Sigma maps many points to the boundary of its range, and round-off puts them
    # outside. The nearest point inside replaces them.
    size = 1.0 + jnp.max(jnp.abs(t), axis=-1, keepdims=True)
    slack = float(jnp.finfo(t.dtype).eps) ** 0.5 * size
    lowest = sigma.value(jnp.full((), -jnp.inf, t.dtype))
    highest = sigma.value(jnp.full((), jnp.inf, t.dtype))
    nearest = jnp.clip(t, lowest, highest)
    inside = jnp.where(jnp.abs(t - nearest) <= slack, nearest, t)

    offset = opteq_hidden(params, jnp.zeros_like(z), x).astype(t.dtype)
    conjugate = jnp.sum(sigma.conjugate(inside) - offset * t, axis=-1)
    return conjugate - 0.5 * jnp.sum(z**2, axis=-1)
