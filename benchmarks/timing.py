"""Timing side by side: interleaved runs, medians."""

import time
from collections.abc import Callable, Mapping

import numpy as np

__all__ = ["interleaved", "table"]


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int = 2
) -> dict[str, np.ndarray]:
    """Seconds of every call, (repeats,) a candidate, the candidates taking turns so that drift hits all alike.

    Candidates must block until their work is done.
    """
    for _ in range(warmup):
        for candidate in candidates.values():
            candidate()
    seconds = {name: np.zeros(repeats) for name in candidates}
    for index in range(repeats):
        for name, candidate in candidates.items():
            began = time.perf_counter()
            candidate()
            seconds[name][index] = time.perf_counter() - began
    return seconds


def table(header: list[str], rows: list[list[str]]) -> str:
    """Plain text columns, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        for row in [header, *rows]
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
