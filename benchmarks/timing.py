"""Timing side by side: interleaved runs, medians; memory, rates and powers to
compare them with."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

__all__ = [
    "counted_compilations",
    "interleaved",
    "matmul_rate",
    "power_of",
    "table",
    "temporary_mebibytes",
]

SAME_ALLOCATOR = (
    "peers run in this process, on the same allocator with the same settings"
)
# JAX's event of a program compiled, or read from its cache
COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[float]]:
    """The seconds of every program that is compiled while the context lasts, in a
    list that grows."""
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event == COMPILED:
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 2,
    settle: int = 0,
) -> dict[str, np.ndarray]:
    """Seconds of every call, (repeats,) per candidate. The candidates take turns: drift
    hits all alike.

    Candidates must block until their work is done. ``settle`` calls before each are not
    timed: behind another library, whose threads spin for a while, the first one is
    slower.
    """
    for _ in range(warmup):
        for candidate in candidates.values():
            candidate()
    seconds = {name: np.zeros(repeats) for name in candidates}
    for index in range(repeats):
        for name, candidate in candidates.items():
            for _ in range(settle):
                candidate()
            began = time.perf_counter()
            candidate()
            seconds[name][index] = time.perf_counter() - began
    return seconds


def matmul_rate(
    rows: int,
    inner: int,
    columns: int,
    *,
    dtype: str = "float32",
    precision: str | None = None,
    repeats: int = 50,
) -> float:
    """Measured operations a second of a product (rows, inner) by (inner, columns),
    of JAX's default precision."""
    left, right = (
        np.ones((rows, inner), np.float32),
        np.ones((inner, columns), np.float32),
    )
    arrays = jax.tree.map(
        lambda array: jax.device_put(array).astype(dtype), (left, right)
    )
    product = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision=precision))
    seconds = interleaved(
        {"product": lambda: jax.block_until_ready(product(*arrays))}, repeats=repeats
    )["product"]
    return 2.0 * left.size * columns / float(np.median(seconds))


def power_of(values: Mapping[int, float], least: int = 0) -> float:
    """The p of the n^p that fits ``values[n]`` best on logarithmic axes, over n >=
    least."""
    sizes = [n for n in values if n >= least]
    return float(np.polyfit(np.log(sizes), np.log([values[n] for n in sizes]), 1)[0])


def temporary_mebibytes(program: jax.stages.Compiled) -> float:
    """Temporary memory of a compiled program, NaN where the backend does not say."""
    analysis = program.memory_analysis()
    return float("nan") if analysis is None else analysis.temp_size_in_bytes / 2**20


def table(header: list[str], rows: list[list[str]]) -> str:
    """Plain text columns, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        [
            row[0].ljust(widths[0]),
            *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in [header, *rows]
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
