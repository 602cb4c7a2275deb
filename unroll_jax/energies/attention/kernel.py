"""Pairwise energies and attention means for any rho on a GPU, in memory O(n)."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.energies.attention.kernel_blocks import (
    Sizes,
    backward_kernel,
    forward_kernel,
)
from unroll_jax.energies.attention.pairs import Neighbourhood, centre
from unroll_jax.energies.attention.rho import Elementwise, Rho

__all__ = ["BLOCK", "kernel_neighbourhood"]

BLOCK = 64  # tokens of a row of blocks
NARROWEST = 16  # columns of a tile that tensor cores take
INTERPRET = False  # Pallas's interpreter, on any device: for tests


class _Static(NamedTuple):
    """Options that a kernel is compiled for.

    ``value`` is None where it computes no energies.
    """

    value: Elementwise | None
    log_slope: Elementwise
    block: int


def kernel_neighbourhood(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    present: Bool[Array, "..."] | None = None,
    *,
    dtype: Any = jnp.float32,
    block: int | None = None,
    energy: bool = True,
) -> Neighbourhood:
    r"""Returns the sums of `pairs.neighbourhood` over the complete graph, in one pass.

    With :math:`t_{uv} = \tfrac12 |z_u - z_v|^2`, :math:`s = \log\rho'`, and v over the
    other tokens present,

    .. math:: \ell_u = \log \sum_v e^{s(t_{uv})} , \qquad
              w_{uv} = e^{s(t_{uv}) - \ell_u} , \qquad
              m_u = \sum_v w_{uv} y_v , \qquad
              E = \tfrac12 \sum_u R_u , \quad R_u = \sum_v \rho(t_{uv}) .

    For softmax :math:`R_u = -e^{\ell_u}`, which costs nothing. For cotangents
    :math:`g_u, h_u, e_u` of :math:`m_u, \ell_u, R_u`, the backward kernel sums

    .. math:: c_{uv} = s'(t_{uv}) w_{uv} (g_u \cdot (y_v - m_u) + h_u)
                  + e_u \rho'(t_{uv}) , \qquad
              \bar z_u = \sum_v (c_{uv} + c_{vu}) (z_u - z_v) , \qquad
              \bar y_v = \sum_u w_{uv} g_u .

    It keeps z, y, m and :math:`\ell`, so memory is O(n (k + d)). First derivatives
    exist in reverse mode only.

    Args:
      rho: a resolved `Rho`.
      z: the tokens that distances are taken between. They are centred here.
      values: the arrays y averaged.
      present: boolean, broadcastable to (*batch, n). None is all.
      dtype: of the products of matrices: bfloat16 rounds z and values to it. Sums,
        distances and weights are float32.
      block: tokens of one program of the kernel, 16, 32, 64 or 128. None is 64.
      energy: computes the energy. Else it is NaN.

    Source: ours. The pass over blocks with a running maximum is from Dao et al. (2022),
    FlashAttention.
    """
    *batch, n, _ = z.shape
    block = block or BLOCK
    product_dtype = dtype if dtype == jnp.bfloat16 else jnp.float32
    z_rows = _pad(centre(z, present).astype(product_dtype), block)
    value_rows = _pad(values.astype(product_dtype), block)
    mask = jnp.broadcast_to(True if present is None else present, z.shape[:-1])
    mask = _pad(mask[..., None].astype(jnp.float32), block, columns=1)[..., 0]

    assert rho.log_slope is not None
    # The energy of softmax is read off its degrees.
    value = rho.value if energy and not rho.exponential else None
    sums = _sums(_Static(value, rho.log_slope, block), z_rows, value_rows, mask)
    mean, log_degree, energies = (
        part[:, :n].reshape(*batch, n, *part.shape[2:]) for part in sums
    )

    if rho.exponential:
        energies = -jnp.exp(log_degree)
    if energy:
        total = 0.5 * jnp.sum(energies, axis=-1)
    else:
        total = jnp.full(batch, jnp.nan, jnp.float32)
    return Neighbourhood(total, log_degree[..., None], mean[..., : values.shape[-1]])


def _pad(array: Array, block: int, columns: int | None = None) -> Array:
    """Pads an array with zeros to the (examples, n, columns) that the kernel takes.

    n is a multiple of the block, and columns a power of two.
    """
    *batch, n, width = array.shape
    columns = columns or max(NARROWEST, 1 << max(0, width - 1).bit_length())
    rows = max(1, -(-n // block)) * block
    padding = ((0, 0), (0, rows - n), (0, columns - width))
    return jnp.pad(array.reshape(math.prod(batch), n, width), padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(
    static: _Static, z: Array, y: Array, here: Array
) -> tuple[Array, Array, Array]:
    """Returns means (b, n, d), log degrees (b, n) and energies of rows (b, n).

    They are in float32, of sizes that the kernel takes.
    """
    return _forward(static, z, y, here)[0]


def _forward(static: _Static, z: Array, y: Array, here: Array) -> tuple[tuple, tuple]:
    kernel = functools.partial(
        forward_kernel, value=static.value, log_slope=static.log_slope
    )
    shapes = y.shape, here.shape, here.shape
    mean, log_degree, energies = _call(kernel, static.block, shapes, z, y, here)
    return (mean, log_degree, energies), (z, y, here, mean, log_degree)


def _backward(static: _Static, saved: tuple, cotangents: tuple) -> tuple:
    z, y, here, mean, log_degree = saved
    g, h, e = cotangents
    g = g.astype(y.dtype)
    # h_u - g_u . m_u, which the kernel adds to g_u . y_v. It takes the rounded g.
    shift = jnp.where(jnp.isneginf(log_degree), 0.0, h)
    shift = shift - jnp.sum(g.astype(jnp.float32) * mean, axis=-1)
    kernel = functools.partial(
        backward_kernel, log_slope=static.log_slope, energy=static.value is not None
    )
    arrays = z, y, here, g, shift, log_degree, e
    dz, dy = _call(kernel, static.block, (z.shape, y.shape), *arrays)
    return dz.astype(z.dtype), dy.astype(y.dtype), None


_sums.defvjp(_forward, _backward)


def _call(
    kernel: Any, block: int, outputs: tuple[tuple[int, ...], ...], *arrays: Array
) -> list[Array]:
    """Calls the kernel once for each block of rows of each example.

    It sees all rows of an example, and writes its block of each output.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    examples, n = arrays[0].shape[:2]
    rows = n // block
    blocks = np.int32(rows)  # not Python's, which is of 64 bits with jax_enable_x64
    if examples == 0:
        return [jnp.zeros(shape, jnp.float32) for shape in outputs]

    def all_rows(shape: tuple[int, ...]) -> pl.BlockSpec:
        def place(i):
            return jax.lax.div(i, blocks), *(0 for _ in shape[1:])

        return pl.BlockSpec((None, *shape[1:]), place)

    def block_of_rows(shape: tuple[int, ...]) -> pl.BlockSpec:
        def place(i):
            example, number = jax.lax.div(i, blocks), jax.lax.rem(i, blocks)
            return example, number, *(0 for _ in shape[2:])

        return pl.BlockSpec((None, block, *shape[2:]), place)

    widths = [array.shape[-1] for array in arrays if array.ndim == 3]
    num_warps = 8 if max(block, *widths) > 64 else 4
    call = pl.pallas_call(
        functools.partial(kernel, sizes=Sizes(block, rows)),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs],
        grid=(examples * rows,),
        in_specs=[all_rows(array.shape) for array in arrays],
        out_specs=[block_of_rows(shape) for shape in outputs],
        compiler_params=triton.CompilerParams(num_warps=num_warps, num_stages=2),
        interpret=INTERPRET,
    )
    return list(call(*arrays))
