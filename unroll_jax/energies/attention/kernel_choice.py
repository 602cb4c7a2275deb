"""The option ``kernel`` of attention: the code that computes sums over pairs."""

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
    """Raises ValueError if the options of a layer do not fit its kernel."""
    if kernel == "xla":
        return
    require(mask is None, "kernel", 'be "xla" with a mask', repr(kernel))
    if kernel == "pallas":
        fits = block is None or block in BLOCKS
        wanted = f'be None or one of {BLOCKS} for kernel="pallas"'
        require(fits, "block", wanted, block)
        for function in (rho.value, rho.log_slope):
            _check_no_arrays(function)


def _check_no_arrays(function: Any) -> None:
    arrays = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((), jnp.float32)).consts
    way_out = 'write them as Python numbers, or pass kernel="xla"'
    require(not arrays, "rho", 'hold no arrays for kernel="pallas"', arrays, way_out)


def check_machine(kernel: str, dtype: Any, *widths: int) -> None:
    """Raises ValueError if a kernel cannot run on this device, dtype and widths."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    known = jax.default_backend() if device is None else device.platform
    platform = PLATFORM or known
    wanted = f'be "xla" where JAX runs on {platform}'
    require(platform == "gpu", "kernel", wanted, repr(kernel))
    require(dtype != jnp.float64, "kernel", 'be "xla" for float64', repr(kernel))
    if kernel == "cudnn":
        wanted = f'be "xla" or "pallas" for {jnp.dtype(dtype).name}'
        require(dtype == jnp.bfloat16, "kernel", wanted, repr(kernel))
        wanted = 'be "xla" or "pallas" for tokens this wide'
        require(max(widths) <= WIDEST, "kernel", wanted, repr(kernel))


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
    """Returns `pairs.neighbourhood` by a kernel, for tokens of a dtype.

    Its energy may be NaN unless ``energy``.
    """
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
    """Returns `pairs.pair_energy` by a kernel, for tokens of a dtype."""
    if kernel != "pallas":
        return pair_energy(rho, z, graph, present, block=block)
    check_machine(kernel, dtype)
    no_values = z[..., :0]
    sums = kernel_neighbourhood(rho, z, no_values, present, dtype=dtype, block=block)
    return sums.energy
