"""The option ``kernel`` of attention: what computes the sums over pairs, and where
it can."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.energies.attention.kernel import kernel_neighbourhood
from unroll_jax.energies.attention.pairs import (
    Neighbourhood,
    neighbourhood,
    pair_energy,
)
from unroll_jax.energies.attention.rho import Rho

__all__ = ["KERNELS", "check_kernel", "check_machine", "energy_by", "neighbourhood_by"]

KERNELS = ("xla", "pallas", "cudnn")
BLOCKS = (16, 32, 64, 128)
WIDEST = 128  # columns that cuDNN's attention takes
PLATFORM = ""  # in place of the platform that JAX runs on: for tests


def check_kernel(kernel: str, rho: Rho, mask: Any, block: int | None) -> None:
    """A ValueError where options of a layer do not fit its kernel."""
    if kernel == "xla":
        return
    require(mask is None, "kernel", 'be "xla" with a mask', repr(kernel))
    if kernel == "pallas":
        require(
            block is None or block in BLOCKS,
            "block",
            f'be None or one of {BLOCKS} for kernel="pallas"',
            block,
        )
        for function in (rho.value, rho.log_slope):
            assert function is not None
            arrays = jax.make_jaxpr(function)(
                jax.ShapeDtypeStruct((), jnp.float32)
            ).consts
            way_out = 'write them as Python numbers, or pass kernel="xla"'
            require(
                not arrays, "rho", 'hold no arrays for kernel="pallas"', arrays, way_out
            )


def check_machine(kernel: str, dtype: Any, *widths: int) -> None:
    """A ValueError where a kernel does not take tokens of a dtype and widths, or a
    GPU is missing."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    platform = PLATFORM or (
        jax.default_backend() if device is None else device.platform
    )
    require(
        platform == "gpu",
        "kernel",
        f'be "xla" where JAX runs on {platform}',
        repr(kernel),
    )
    require(dtype != jnp.float64, "kernel", 'be "xla" for float64', repr(kernel))
    if kernel == "cudnn":
        require(
            dtype == jnp.bfloat16,
            "kernel",
            f'be "xla" or "pallas" for {jnp.dtype(dtype).name}',
            repr(kernel),
        )
        fits = max(widths) <= WIDEST
        require(
            fits, "kernel", 'be "xla" or "pallas" for tokens this wide', f"{kernel!r}"
        )


def neighbourhood_by(
    kernel: str,
    rho: Rho,
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    graph: Any,
    present: Any,
    *,
    dtype: Any,
    block: int | None,
    bounded: bool,
    energy: bool = True,
) -> Neighbourhood:
    """`pairs.neighbourhood` by a kernel, for tokens of a dtype; the energy may be
    NaN where it is not asked for."""
    if kernel != "pallas":
        return neighbourhood(
            rho, z, values, graph, present, block=block, bounded=bounded
        )
    check_machine(kernel, dtype)
    return kernel_neighbourhood(
        rho, z, values, present, dtype=dtype, block=block, energy=energy
    )


def energy_by(
    kernel: str,
    rho: Rho,
    z: Float[Array, "*batch n k"],
    graph: Any,
    present: Any,
    *,
    dtype: Any,
    block: int | None,
) -> Float[Array, "*batch"]:
    """`pairs.pair_energy` by a kernel, for tokens of a dtype."""
    if kernel != "pallas":
        return pair_energy(rho, z, graph, present, block=block)
    check_machine(kernel, dtype)
    return kernel_neighbourhood(
        rho, z, z[..., :0], present, dtype=dtype, block=block
    ).energy
