"""The operations of a program that take the most time, from a trace of one run."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

__all__ = ["largest_others"]

# Words in the names of kernels that are matrix products, attention or convolutions.
PRODUCTS = re.compile(
    "gemm|cutlass|cublas|nvjet|dot|matmul|xmma|fmha|flash|conv", re.IGNORECASE
)


def largest_others(
    run: Callable[[], object], count: int = 3
) -> list[tuple[str, float]]:
    """Names and seconds of the operations that aren't products and took the most
    time together in one run."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    seconds: dict[str, float] = {}
    for plane in devices or planes:
        for line in plane.lines:
            if not devices or line.name.startswith("Stream"):
                for event in line.events:
                    # Python's own frames
                    if not PRODUCTS.search(event.name) and not event.name.startswith(
                        "$"
                    ):
                        seconds[event.name] = (
                            seconds.get(event.name, 0.0) + event.duration_ns / 1e9
                        )
    return sorted(seconds.items(), key=lambda item: -item[1])[:count]
