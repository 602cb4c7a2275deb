"""Versions and hardware by name only: no host name, no path."""

import os
import platform
from importlib import metadata
from pathlib import Path

import jax

__all__ = ["PACKAGES", "environment"]

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def environment() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result, and the names of CPU and accelerator.

    A training loop may save this as ``environment`` in status.json; the report then shows it beside its own.
    """
    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    device = jax.devices()[0]
    accelerator = "none" if device.platform == "cpu" else f"{len(jax.devices())} x {device.device_kind}"
    return versions | {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} logical cores",
        "accelerator": accelerator,
    }


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
