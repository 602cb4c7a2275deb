"""The machine: versions and hardware, memory, the cache of compiled programs, options of XLA, traces.

JAX is imported inside functions, so that an error of the command line does not wait for it.
"""

import ctypes
import math
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.errors import UserError
from ..config.run import Profile

if TYPE_CHECKING:
    from jax.stages import Compiled

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
SIMULATED = "xla_force_host_platform_device_count"
# XLA for CPUs starts independent collectives in any order, a different one on each device: with fewer cores than
# devices they deadlock until XLA ends the process, and between processes Gloo fails.
ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
# Of mallopt(3): M_MMAP_MAX, no block is mapped alone; M_TRIM_THRESHOLD, none is returned; M_ARENA_MAX, one heap.
KEPT = {-4: 0, -1: 2**31 - 1, -8: 1}
LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container; "max" for none
Log = Callable[[str], None]


def hush_xla() -> None:
    """Hides warnings of XLA, such as on SIGTERM, but not its errors; a setting of the user's stays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def order_collectives(*, processes: bool = False) -> None:
    """Runs collectives on CPUs in one order, if there are simulated devices or many processes.

    Must run before anything asks for a device; a setting of the user's stays.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if (processes or SIMULATED in flags) and ONE_ORDER.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_ORDER}".strip()


def keep_memory() -> bool:
    """Makes glibc keep freed memory while the process lives; returns True on success.

    XLA for CPUs allocates the temporary memory of a program anew at every call. From 32 MiB on, glibc maps it, which
    zeroes every page, and unmaps it afterwards. Settings of the user's stay.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    return hasattr(libc, "mallopt") and all(libc.mallopt(name, value) for name, value in KEPT.items())


def keep_programs() -> None:
    """Keeps programs that took a second or more to compile under ~/.cache/unroll_jax/compiled.

    JAX_COMPILATION_CACHE_DIR names another folder, or "" for none. Programs of many devices on CPUs are compiled anew:
    programs from a cache have lost the order of their collectives.
    """
    import jax

    if ONE_ORDER in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_enable_compilation_cache", False)
        return

    setting = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and setting is None:
        folder = Path("~/.cache/unroll_jax/compiled").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))


def environment() -> dict[str, str]:
    """Returns the versions of Python and of packages that affect results, and the names of CPU and accelerator."""
    import jax

    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    device = jax.devices()[0]
    accelerator = "none" if device.platform == "cpu" else f"{len(jax.devices())} x {device.device_kind}"
    return versions | {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} logical cores",
        "accelerator": accelerator,
    }


def size_of(like: Any) -> int:
    """Returns the bytes of arrays with shardings on this process's devices."""
    import jax

    return sum(_bytes(leaf) * len(leaf.sharding.addressable_devices) for leaf in jax.tree.leaves(like))


def step_size(compiled: "Compiled") -> int:
    """Returns the bytes on this process's devices during a step, by XLA's analysis; 0 without one."""
    import jax

    analysis: Any = compiled.memory_analysis()
    if analysis is None:
        return 0
    return (analysis.argument_size_in_bytes + analysis.temp_size_in_bytes) * jax.local_device_count()


def require_memory(needed: int, what: str, way_out: str) -> None:
    """Raises UserError if something takes more bytes than this process's devices have together."""
    there = memory_of_devices()
    if needed > there:
        raise UserError(f"{what} takes {needed / 1e9:,.1f} GB and there are {there / 1e9:,.1f}; {way_out}")


def memory_of_devices() -> int:
    """Returns the bytes of this process's devices; CPUs, also simulated ones, share the machine's."""
    import jax

    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    if all(limits):
        return sum(limits)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = LIMIT.read_text(encoding="utf-8").strip() if LIMIT.exists() else ""
    return min(there, int(limit)) if limit.isdecimal() else there


class Profiler:
    """Traces some steps of a run, for TensorBoard or Perfetto; the trace ends with the context at the latest."""

    def __init__(self, profile: Profile | None, folder: Path, log: Log):
        self._profile, self._folder, self._log, self._tracing = profile, folder, log, False

    def __enter__(self) -> "Profiler":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the trace, also if the run fails."""
        self.end()

    def at(self, done: int, state: Any) -> None:
        """Starts or ends the trace; to be called before the first step and after each, with its number and state."""
        if self._profile is None:
            return
        import jax

        first, last = self._profile
        if done >= last:
            if not self._tracing:  # a run that continues after them
                self._log(f"--profile: steps {first} to {last} are done already; no trace")
            self.end(state)
            self._profile = None
        elif not self._tracing and done >= first - 1:
            jax.block_until_ready(state)  # keeps earlier steps out of the trace
            jax.profiler.start_trace(self._folder)
            self._tracing = True

    def end(self, state: Any = None) -> None:
        """Ends the trace if there is one, once the state is computed."""
        if self._tracing:
            import jax

            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self._tracing = False
            self._log(f"{self._folder}: a trace; `tensorboard --logdir` (plug-in xprof) or ui.perfetto.dev shows it")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
