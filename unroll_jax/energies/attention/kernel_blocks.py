"""The two Pallas kernels of `kernel`, each for one block of rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unroll_jax.energies.attention.rho import Elementwise

__all__ = ["Sizes", "backward_kernel", "forward_kernel"]


class Sizes(NamedTuple):
    """Tokens of a block, and the number of blocks of an example."""

    block: int
    blocks: int


class _Tile(NamedTuple):
    """A block of pairs.

    Attributes:
      distances: t, half the squared distances.
      logits: log rho'(t), -inf where there is no pair.
      slopes: the derivative of log rho'(t).
      pair: boolean, true for pairs of distinct tokens present.
    """

    distances: Array
    logits: Array
    slopes: Array
    pair: Array


def forward_kernel(
    z_ref: Any,
    y_ref: Any,
    here_ref: Any,
    mean_ref: Any,
    degree_ref: Any,
    energy_ref: Any,
    *,
    value: Elementwise | None,
    log_slope: Elementwise,
    sizes: Sizes,
) -> None:
    """Writes means, log degrees and energies of a block of rows.

    Energies are 0 where ``value`` is None.
    """
    row, load = _row(sizes)
    z_u, here_u = load(row, z_ref, here_ref)

    # The sums are relative to exp(largest), the largest weight of the row so far. They
    # are rescaled when it rises.
    def body(column: Any, carry: tuple) -> tuple:
        total, degree, largest, energy = carry
        z_v, y_v, here_v = load(column, z_ref, y_ref, here_ref)
        tile = _tile(z_u, z_v, here_u, here_v, row == column, log_slope)

        new_largest = jnp.maximum(largest, jnp.max(tile.logits, axis=1))
        # -inf - -inf would be NaN in a row without pairs
        shift = jnp.where(new_largest == -jnp.inf, 0.0, new_largest)
        weights = jnp.exp(tile.logits - shift[:, None])
        rescale = jnp.exp(largest - shift)

        if value is not None:
            values = jnp.where(tile.pair, value(tile.distances), 0.0)
            energy = energy + jnp.sum(values, axis=1)
        total = total * rescale[:, None] + _dot(weights.astype(y_v.dtype), y_v)
        degree = degree * rescale + jnp.sum(weights, axis=1)
        return total, degree, new_largest, energy

    zero = jnp.zeros(sizes.block, jnp.float32)
    zeros = jnp.zeros((sizes.block, y_ref.shape[1]), jnp.float32)
    start = zeros, zero, zero - jnp.inf, zero
    total, degree, largest, energy = jax.lax.fori_loop(0, sizes.blocks, body, start)

    divisor = jnp.where(degree == 0.0, 1.0, degree)  # a NaN stays one
    mean_ref[...] = total / divisor[:, None]
    degree_ref[...] = jnp.where(degree == 0.0, -jnp.inf, largest + jnp.log(divisor))
    energy_ref[...] = energy


def backward_kernel(
    z_ref: Any,
    y_ref: Any,
    here_ref: Any,
    g_ref: Any,
    shift_ref: Any,
    degree_ref: Any,
    e_ref: Any,
    dz_ref: Any,
    dy_ref: Any,
    *,
    log_slope: Elementwise,
    energy: bool,
    sizes: Sizes,
) -> None:
    """Writes the gradients in z and y of a block of rows.

    The equations and their names are those of `kernel_neighbourhood`. shift is h_u -
    g_u . m_u, and e counts only with ``energy``.
    """
    row, load = _row(sizes)
    refs = z_ref, y_ref, here_ref, g_ref, shift_ref, degree_ref, e_ref
    z_u, y_u, here_u, g_u, *numbers_u = load(row, *refs)
    shift_u, degree_u, e_u = (part[:, None] for part in numbers_u)

    def body(column: Any, carry: tuple) -> tuple:
        dz, dy = carry
        z_v, y_v, here_v, g_v, *numbers_v = load(column, *refs)
        shift_v, degree_v, e_v = (part[None, :] for part in numbers_v)
        tile = _tile(z_u, z_v, here_u, here_v, row == column, log_slope)

        # The part of c_uv + c_vu from weights: w_uv is of row u, w_vu of row v.
        w_uv = jnp.exp(tile.logits - jnp.where(degree_u == -jnp.inf, 0.0, degree_u))
        w_vu = jnp.exp(tile.logits - jnp.where(degree_v == -jnp.inf, 0.0, degree_v))
        of_u = w_uv * (_dot(g_u, y_v.T) + shift_u)
        of_v = w_vu * (_dot(y_u, g_v.T) + shift_v)
        c = tile.slopes * (of_v + of_u)
        c = jnp.where(tile.logits == -jnp.inf, 0.0, c)
        if energy:
            c = c + (e_u + e_v) * jnp.exp(tile.logits)

        # Close tokens cancel in c (z_u - z_v). Both sums must take the same rounded c.
        c = c.astype(z_v.dtype)
        total_c = jnp.sum(c.astype(jnp.float32), axis=1)[:, None]
        dz = dz + total_c * z_u.astype(jnp.float32) - _dot(c, z_v)
        return dz, dy + _dot(w_vu.astype(g_v.dtype), g_v)

    start = jnp.zeros(z_u.shape, jnp.float32), jnp.zeros(y_u.shape, jnp.float32)
    dz, dy = jax.lax.fori_loop(0, sizes.blocks, body, start)
    dz_ref[...] = dz
    dy_ref[...] = dy


def _row(sizes: Sizes) -> tuple[Any, Any]:
    """Returns the number of this program's block, and a function that loads blocks."""
    from jax.experimental import pallas as pl

    def load(index: Any, *refs: Any) -> list[Array]:
        return [ref[pl.ds(index * sizes.block, sizes.block)] for ref in refs]

    return jax.lax.rem(pl.program_id(0), np.int32(sizes.blocks)), load


def _tile(
    z_u: Array,
    z_v: Array,
    here_u: Array,
    here_v: Array,
    diagonal: Any,
    log_slope: Elementwise,
) -> _Tile:
    # The difference cancels most digits of close tokens, so products of float32 need
    # full precision.
    products = _dot(z_u, z_v.T, precision=jax.lax.Precision.HIGHEST)
    of_u = 0.5 * jnp.sum(z_u.astype(jnp.float32) ** 2, axis=1)
    of_v = 0.5 * jnp.sum(z_v.astype(jnp.float32) ** 2, axis=1)
    t = of_u[:, None] + of_v[None, :] - products
    t = jnp.where(t < 0.0, 0.0, t)  # not `maximum`, which turns NaN into 0 on a GPU

    # A token has no pair with itself.
    u = jax.lax.broadcasted_iota(jnp.int32, t.shape, 0)
    v = jax.lax.broadcasted_iota(jnp.int32, t.shape, 1)
    itself = diagonal & (u == v)
    pair = ~itself & (here_u[:, None] > 0.0) & (here_v[None, :] > 0.0)

    logits, slopes = jax.jvp(log_slope, (t,), (jnp.ones_like(t),))
    return _Tile(t, jnp.where(pair, logits, -jnp.inf), slopes, pair)


def _dot(a: Array, b: Array, precision: Any = None) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32, precision=precision)
