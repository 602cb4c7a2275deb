"""Timing side by side, in interleaved runs, and memory, rates and powers."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

__all__ = [
    "counted_compilations",
    "floor_note",
    "interleaved",
    "matmul_rate",
    "power_of",
    "table",
    "temporary_mebibytes",
    "text_of",
]

SAME_ALLOCATOR = (
    "peers run in this process, on the same allocator with the same settings"
)
# JAX's event of a program compiled, or read from its cache
COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[float]]:
    """A list that gets the seconds of every program compiled within the context."""
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
    """Measured operations per second of a product (rows, inner) by (inner, columns)."""
    left = jax.numpy.ones((rows, inner), dtype)
    right = jax.numpy.ones((inner, columns), dtype)
    product = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision=precision))
    candidates = {"product": lambda: jax.block_until_ready(product(left, right))}
    seconds = interleaved(candidates, repeats=repeats)["product"]
    return 2.0 * left.size * columns / float(np.median(seconds))


def floor_note(rate: float, rows: int, inner: int, columns: int) -> str:
    """Describes a floor. ``rate`` is the speed of a product of these sizes."""
    return (
        f"floor: the matrix products only, at {rate / 1e9:.0f} GFLOP/s, the rate of one"
        f" of {rows} x {inner} x {columns}"
    )


def power_of(values: Mapping[int, float], least: int = 0) -> float:
    """The p of the n^p that fits ``values[n]`` best on log axes, for n >= least."""
    sizes = [n for n in values if n >= least]
    slope, _ = np.polyfit(np.log(sizes), np.log([values[n] for n in sizes]), 1)
    return float(slope)


def temporary_mebibytes(program: jax.stages.Compiled) -> float:
    """Temporary memory of a compiled program, NaN where the backend does not say."""
    analysis = program.memory_analysis()
    return float("nan") if analysis is None else analysis.temp_size_in_bytes / 2**20


def text_of(value: Any) -> str:
    """Four digits of a number, a dash for NaN and None, and texts as they are."""
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Columns of `text_of` each cell, the first to the left, the others to the
    right.

    A row may end early.
    """
    lines = list(zip(*itertools.zip_longest(header, *rows), strict=True))
    lines = [list(map(text_of, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for first, *others in lines:
        cells = [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(text)
