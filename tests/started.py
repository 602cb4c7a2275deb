"""What processes that tests start have in common."""

import os
from pathlib import Path

__all__ = ["WITHOUT_TORCH", "environment"]

WITHOUT_TORCH = str(Path(__file__).parent / "without_torch")


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process that computes on CPUs and does not spend most of its start on torch."""
    path = os.pathsep.join(filter(None, [WITHOUT_TORCH, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **changes}
