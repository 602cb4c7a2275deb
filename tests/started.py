"""Processes that tests start: their environment, and a port for them to meet at."""

import os
import socket

__all__ = ["environment", "free_port"]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu", **changes}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
