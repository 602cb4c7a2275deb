"""Cost of gradients through equilibria, against other libraries and unrolling.

The libraries are timed at their best.
"""

import os
from importlib import metadata
from typing import Any

import jax
import numpy as np

from benchmarks.gradients import problems
from benchmarks.gradients.against_unrolling import sweeps
from benchmarks.gradients.first_calls import time_calls
from benchmarks.gradients.jax_peers import LIBRARIES
from benchmarks.gradients.problems import INPUT_DIM, Cell
from benchmarks.gradients.race import TOL, Result, compiled_gradient, race
from benchmarks.record import Record
from benchmarks.timing import SAME_ALLOCATOR, interleaved, table

__all__ = ["main"]

DIMS = (64, 256, 1024)
SQUARES = (0.9, 0.99, 0.999)  # |W|^2
BARS = "dense, median 0.80; general, worst 1.30"  # of the best peer's time
FIELDS = ("seconds", "mebibytes", "residual", "error", "compile_seconds")


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times of all problems and libraries, first calls, and the sweeps.

    A quick run prints the first table only, of the problems with a bar.
    """
    print(
        f"forward and backward to a residual of {TOL:.0e} in every example; {INPUT_DIM}"
        " inputs, batch 64 (images: 4) if no other is named, float32,"
        f" {jax.default_backend()}, {len(os.sched_getaffinity(0))} cores; ms, medians"
        " of interleaved runs"
    )
    if peers:
        print(SAME_ALLOCATOR)
        print(f"versions: {', '.join(map(_version, ('jax', *LIBRARIES)))}")
    record = Record()
    rows = []
    results = {}
    for cell in _cells(quick=quick):
        many = 7 if cell.start[0].size >= 1024 else 15
        raced = race(cell, repeats=5 if quick else many, peers=peers)
        floor = _step_seconds(cell)
        results[cell.name] = raced
        rows.append(_row(cell, raced, floor))
        words = []
        for library, result in raced.items():
            name = f"{cell.name}, {library}"
            for field in FIELDS:
                record.figures[f"{name} {field}"] = getattr(result, field)
            record.spreads[f"{name} seconds"] = result.spread
            record.floors[f"{name} seconds"] = {"seconds": floor}
            words.append(f"{library} ({result.name}) {1e3 * result.seconds:.2f}")
        print(f"  {cell.name}, ms: {'; '.join(words)}", flush=True)
    header = ["problem", "floor", "ours", *LIBRARIES, "of best", "MiB", "best's"]
    header += ["error", "best's", "compile", "least"]
    print(f"\n{table(header, rows)}\n")
    print(
        "floor: one step with its gradient in the parameters; error: of the gradient,"
        " against float64 direct solves;\n"
        "of best: our time over the best peer's; -: the mark was missed in every way,"
        " or 100 times our time reached.\n"
        "compile: seconds to trace and compile; least: of the peers' best ways.\n"
    )
    record.figures |= _judge(results)
    if not quick:
        record.figures |= time_calls(peers=peers) | sweeps()
    return record


def _version(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return f"{library} is not installed"


def _step_seconds(cell: Cell) -> float:
    step, *_ = compiled_gradient(
        cell, lambda params: cell.step(params, cell.target, cell.x)
    )
    return float(np.median(interleaved({"step": step}, repeats=20)["step"]))


def _cells(*, quick: bool) -> list[Cell]:
    dense = problems.dense_cell
    if quick:
        tanh = [problems.tanh_cell(batch=batch) for batch in (128, 1)]
        return [dense(256, 0.99, "random"), *tanh, problems.rotation_cell()]
    general = [problems.tanh_cell(batch=batch) for batch in (1, 128, 1024)]
    general += [problems.deep_cell(), problems.transformer_cell()]
    general.append(problems.conv_cell(8, 16))
    cells = []
    for dim in DIMS:
        for kind in ("random", "spread"):
            cells += [dense(dim, square, kind) for square in SQUARES]
        cells.append(dense(dim, max(SQUARES), "spread, own"))
    return [
        *cells,
        *general,
        problems.slow_cell(),
        problems.hard_example_cell(),
        problems.nonnormal_cell(),
        problems.rotation_cell(),
        problems.conv_cell(),
    ]


def _row(cell: Cell, results: dict[str, Result], floor: float) -> list[Any]:
    ours, *peers = results.values()
    best = _best(results)
    return [
        cell.name,
        1e3 * floor,
        1e3 * ours.seconds,
        *(
            1e3 * results[peer].seconds if peer in results else None
            for peer in LIBRARIES
        ),
        ours.seconds / best.seconds,
        *(result.mebibytes for result in (ours, best)),
        *(result.error for result in (ours, best)),
        ours.compile_seconds,
        min((peer.compile_seconds for peer in peers), default=None),
    ]


def _best(results: dict[str, Result]) -> Result:
    """The quickest peer. Its figures are NaN where there is none."""
    _, *peers = results.values()
    none = Result("none", *[np.nan] * 4)
    return min(peers, key=lambda result: result.seconds, default=none)


def _judge(results: dict[str, dict[str, Result]]) -> dict[str, float]:
    """Prints our time over the best peer's against the bars, and returns it."""
    ratios: dict[str, list[float]] = {"dense": [], "general": []}
    worse: dict[str, list[str]] = {"mebibytes": [], "error": []}
    for name, raced in results.items():
        ours, best = raced["unroll_jax"], _best(raced)
        kind = "dense" if name.startswith("dense") else "general"
        if len(raced) > 1:
            ratios[kind].append(ours.seconds / best.seconds)
        for what, names in worse.items():
            if getattr(ours, what) > getattr(best, what):
                names.append(name)

    summary = {}
    for kind, values in ratios.items():
        if not values:
            print(f"{kind}: no peers; install the extra peers, and pass --peers")
            continue
        for name, value in (("median", np.median(values)), ("worst", max(values))):
            summary[f"{kind}, {name}, over the best peer"] = float(value)
            print(f"{kind}, {name} time over the best peer's: {value:.2f}")
    print(f"bars: {BARS}")
    for what, names in worse.items():
        print(
            f"a larger {what} than the quickest peer: {', '.join(names) or 'nowhere'}"
        )
    return summary
