"""Memory that a run would take, against what the machine has: refused before it is taken."""

import math
import os
from pathlib import Path
from typing import Any

import jax

from train.errors import UserError

__all__ = ["memory_of_devices", "require_memory", "size_of", "step_size"]

LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container; says "max" where there is none


def size_of(like: Any) -> int:
    """Bytes that this process's devices hold of arrays with shardings."""
    leaves = jax.tree.leaves(like)
    return sum(_bytes(leaf) * len(leaf.sharding.addressable_devices) for leaf in leaves)


def step_size(compiled: jax.stages.Compiled) -> int:
    """Bytes that this process's devices hold while a step runs, as XLA counts them; 0 where it does not."""
    analysis: Any = compiled.memory_analysis()
    if analysis is None:
        return 0
    on_each = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    return on_each * jax.local_device_count()


def require_memory(needed: int, what: str, way_out: str) -> None:
    """Checks that this process's devices have so many bytes between them.

    Raises:
      UserError: if they do not.
    """
    there = memory_of_devices()
    if needed > there:
        raise UserError(f"{what} takes {needed / 1e9:,.1f} GB and there are {there / 1e9:,.1f}; {way_out}")


def memory_of_devices() -> int:
    """Bytes of this process's devices; CPUs, simulated ones too, share the machine's."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    if all(limits):
        return sum(limits)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = LIMIT.read_text(encoding="utf-8").strip() if LIMIT.exists() else ""
    return min(there, int(limit)) if limit.isdecimal() else there


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
