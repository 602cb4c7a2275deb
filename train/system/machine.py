"""The machine: signals, processes, versions and hardware, kept memory and programs,
options of XLA. JAX is imported inside functions: an error of the command line does not
wait for it.
"""

import contextlib
import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.errors import Interrupted, UserError, one_line
from .files import caches

CTRL_C = 130  # exit code of shells for Ctrl-C
HEARD: set[int] = set()  # signals that this process was asked to end by
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
SIMULATED = "xla_force_host_platform_device_count"
# XLA for CPUs starts independent collectives in any order, a different one on each
# device: with fewer cores than devices they deadlock until XLA ends the process, and
# between processes Gloo fails.
ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
# Of mallopt(3): M_MMAP_MAX, no block is mapped separately; M_TRIM_THRESHOLD, none is
# returned; M_ARENA_MAX, one heap.
KEPT = {-4: 0, -1: 2**31 - 1, -8: 1}
USAGE_ERROR = 2  # exit code of a process that has printed its error in one line


@contextlib.contextmanager
def handling(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Acts on a signal within the context, in the main thread. A signal that the shell
    ignores stays ignored. A second Ctrl-C ends the process by the system's handler, so
    without a traceback.
    """

    raised: list[BaseException] = []

    def handle(*_: object) -> None:
        HEARD.add(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        try:
            act()
        except BaseException as error:
            raised.append(error)
            raise

    def ignored(unraisable: Any) -> None:
        """Resends a signal whose exception Python ignored in a callback (garbage
        collection, weak references)."""
        if unraisable.exc_value not in raised:
            return usual(unraisable)
        signal.signal(number, handle)
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(number) == signal.SIG_IGN
    ):
        yield
        return
    before = signal.signal(number, handle)
    usual = sys.unraisablehook
    sys.unraisablehook = ignored
    try:
        yield
    finally:
        signal.signal(number, before)
        sys.unraisablehook = usual


@contextlib.contextmanager
def stopping_at_once(*, alone: bool = True) -> Iterator[None]:
    """Raises `Interrupted` on SIGTERM and Ctrl-C within the context: for all work but
    training. With many processes, JAX handles SIGTERM.
    """

    def stop(reason: str, code: int) -> None:
        raise Interrupted(
            f"{reason}; the same command goes on from what is saved, or begins again",
            code,
        )

    with contextlib.ExitStack() as handlers:
        if alone:
            handlers.enter_context(
                handling(signal.SIGTERM, lambda: stop("asked to end by SIGTERM", 0))
            )
        handlers.enter_context(
            handling(signal.SIGINT, lambda: stop("interrupted by Ctrl-C", CTRL_C))
        )
        yield


def order_collectives(*, processes: bool = False) -> None:
    """Runs collectives on CPUs in one order, if there are simulated devices or many
    processes. Must run before anything asks for a device. A setting of the user's
    stays.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if (processes or SIMULATED in flags) and ONE_ORDER.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_ORDER}".strip()


def keep_memory() -> bool:
    """Makes glibc keep freed memory, unless the user set it. Returns True on success.
    XLA for CPUs allocates memory at every call of a program. From 32 MiB on, glibc maps
    it, which zeroes every page, and unmaps it afterwards.
    """
    if sys.platform != "linux" or any(
        name.startswith("MALLOC_") for name in os.environ
    ):
        return False
    libc = ctypes.CDLL(None)
    return hasattr(libc, "mallopt") and all(
        libc.mallopt(name, value) for name, value in KEPT.items()
    )


def keep_programs() -> None:
    """Keeps programs that took a second or more to compile in the folder compiled of
    `caches`. JAX_COMPILATION_CACHE_DIR names another folder, or "" for none. Programs
    of many devices on CPUs are compiled every time: programs from a cache have lost the
    order of their collectives.
    """
    import jax

    if ONE_ORDER in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_enable_compilation_cache", False)
        return
    setting = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and setting is None:
        jax.config.update("jax_compilation_cache_dir", str(caches() / "compiled"))


def require_device() -> None:
    """Raises UserError if JAX finds no device, as with JAX_PLATFORMS=cuda on a
    machine without a GPU."""
    import jax

    try:
        jax.devices()
    # of a platform that is unknown, or has no device
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        named = (
            f"with JAX_PLATFORMS={platforms}; unset it, or name one of cpu, cuda, tpu"
            " that is there"
        )
        other = f"({one_line(error)}); check its installation, or set JAX_PLATFORMS=cpu"
        raise UserError(
            f"JAX finds no device {named if platforms else other}"
        ) from error


def environment() -> dict[str, str]:
    """Returns the versions of Python and of packages that affect results, and the
    names of CPU and accelerator."""
    import jax

    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} logical cores",
        "accelerator": (
            "none"
            if device.platform == "cpu"
            else f"{len(jax.devices())} x {device.device_kind}"
        ),
    }


def _cpu_name() -> str:
    table = Path("/proc/cpuinfo")
    lines = (
        table.read_text(encoding="utf-8", errors="replace").splitlines()
        if table.is_file()
        else []
    )
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()
