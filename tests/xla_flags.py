"""XLA's flags for tests, and a check that this jaxlib knows those that are set: XLA
ends the process at others."""

import os
import subprocess
import sys

import jaxlib

# Most of the time goes into compiling many small programs; without LLVM's optimisation
# and threads for parts of a program that takes half as long. `XLA_FLAGS= make test`
# runs the programs that users get.
FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
)
# known to jaxlib 0.10, unknown to 0.12
OLD_FLAGS = ("--xla_cpu_use_fusion_emitters=false",)


def flags(version: str = jaxlib.__version__) -> str:
    is_old = tuple(int(part) for part in version.split(".")[:2]) < (0, 11)
    return " ".join(FLAGS + OLD_FLAGS * is_old)


def unknown_flags(value: str) -> str | None:
    """Returns why XLA ends a process that has this value in XLA_FLAGS, as one
    message, or None if it does not."""
    environment = {**os.environ, "XLA_FLAGS": value, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode == 0:
        return None
    reasons = [
        line.partition("] ")[2]
        for line in process.stderr.splitlines()
        if "XLA_FLAGS" in line
    ]
    reason = reasons[0] if reasons else f"exit code {process.returncode}"
    return (
        f"XLA of jaxlib {jaxlib.__version__} does not start with XLA_FLAGS={value!r}"
        f" ({reason}); change XLA_FLAGS"
    )
