"""The operations of a program that take the most time, from a trace of one run."""

import collections
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

__all__ = ["largest_others"]

# Names of kernels that are matrix products, attention or convolutions, and of Python's
# frames, which begin with a dollar sign.
LEFT_OUT = re.compile(
    r"^\$|gemm|cutlass|cublas|nvjet|dot|matmul|xmma|fmha|flash|conv", re.IGNORECASE
)


def largest_others(
    run: Callable[[], object], count: int = 3
) -> list[tuple[str, float]]:
    """Names and seconds of the slowest operations of a run that are not products."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    seconds: dict[str, float] = collections.defaultdict(float)
    for plane in devices or planes:
        for line in plane.lines:
            # other lines of a GPU repeat the events of its streams
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                if not LEFT_OUT.search(event.name):
                    seconds[event.name] += event.duration_ns / 1e9
    return sorted(seconds.items(), key=lambda item: -item[1])[:count]
