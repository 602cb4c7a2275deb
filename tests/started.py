"""The environment of processes that tests start."""

import os

__all__ = ["environment"]


def environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a process that computes on CPUs."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", **changes}
