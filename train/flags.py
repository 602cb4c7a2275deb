"""What XLA must be told before it starts; read without JAX."""

import os

__all__ = ["SIMULATED", "order_collectives", "quiet"]

SIMULATED = "xla_force_host_platform_device_count"
# XLA for CPUs starts independent collectives in any order, another one on each device: with fewer cores than devices
# they wait for one another until XLA ends the process, and of many processes Gloo ends them with an error.
ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def quiet() -> None:
    """Keeps XLA's own warnings from the terminal, as that it heard SIGTERM; its errors stay, and a user's setting."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def order_collectives(*, processes: bool = False) -> None:
    """Has collectives on CPUs run in one order, if there are simulated devices or many processes.

    Comes before anything asks for a device; what the user said of it stays.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if (processes or SIMULATED in flags) and ONE_ORDER.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_ORDER}".strip()
