"""Cost of gradients through equilibria, against other libraries and unrolling.

The libraries are timed at their best.
"""

import os
from importlib import metadata

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
BARS = {"dense, median": 0.8, "general, worst": 1.3}  # of the best peer's time


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
        raced = race(cell, repeats=_repeats(cell, quick=quick), peers=peers)
        floor = _step_seconds(cell)
        results[cell.name] = raced
        rows.append(_row(cell, raced, floor))
        _add(record, cell, raced, floor)
        ways = [
            f"{library} ({way.name}) {1e3 * way.seconds:.2f}"
            for library, way in raced.items()
        ]
        print(f"  {cell.name}, ms: {'; '.join(ways)}", flush=True)
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
    record.draw = record.draw_times
    return record


def _version(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return f"{library} is not installed"


def _repeats(cell: Cell, *, quick: bool) -> int:
    if quick:
        return 5
    return 7 if cell.start[0].size >= 1024 else 15


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


def _add(record: Record, cell: Cell, results: dict[str, Result], floor: float) -> None:
    for library, result in results.items():
        name = f"{cell.name}, {library}"
        for field in ("seconds", "mebibytes", "residual", "error", "compile_seconds"):
            record.figures[f"{name} {field}"] = getattr(result, field)
        record.spreads[f"{name} seconds"] = result.spread
        record.floors[f"{name} seconds"] = {"seconds": floor}


def _row(cell: Cell, results: dict[str, Result], floor: float) -> list[str]:
    ours = results["unroll_jax"]
    best = _best(results)
    times = [
        f"{1e3 * results[peer].seconds:.2f}" if peer in results else "-"
        for peer in LIBRARIES
    ]
    ratio = memory = error = "-"
    compiled = "nan"
    if best is not None:
        ratio = f"{ours.seconds / best.seconds:.2f}"
        memory = f"{best.mebibytes:.2f}"
        error = f"{best.error:.0e}"
        peers = [way for library, way in results.items() if library != "unroll_jax"]
        compiled = f"{np.nanmin([way.compile_seconds for way in peers]):.2f}"
    return [
        cell.name,
        f"{1e3 * floor:.2f}",
        f"{1e3 * ours.seconds:.2f}",
        *times,
        ratio,
        f"{ours.mebibytes:.2f}",
        memory,
        f"{ours.error:.0e}",
        error,
        f"{ours.compile_seconds:.2f}",
        compiled,
    ]


def _best(results: dict[str, Result]) -> Result | None:
    peers = [result for library, result in results.items() if library != "unroll_jax"]
    return min(peers, key=lambda result: result.seconds, default=None)


def _judge(results: dict[str, dict[str, Result]]) -> dict[str, float]:
    """Prints our time over the best peer's against the bars, and returns it."""
    ratios: dict[str, list[float]] = {"dense": [], "general": []}
    more_memory = []
    larger_error = []
    for name, raced in results.items():
        ours = raced["unroll_jax"]
        best = _best(raced)
        if best is None:
            continue
        kind = "dense" if name.startswith("dense") else "general"
        ratios[kind].append(ours.seconds / best.seconds)
        if ours.mebibytes > best.mebibytes:
            more_memory.append(name)
        if ours.error > best.error:
            larger_error.append(name)

    summary = {}
    for kind, values in ratios.items():
        if not values:
            print(f"{kind}: no peers; install the extra peers, and pass --peers")
            continue
        for name, value in (("median", np.median(values)), ("worst", max(values))):
            summary[f"{kind}, {name}, over the best peer"] = float(value)
            bar = BARS.get(f"{kind}, {name}")
            limit = f" (bar {bar:.2f})" if bar else ""
            print(f"{kind}, {name} time over the best peer's: {value:.2f}{limit}")
    peer = "than the quickest peer"
    print(f"more temporary memory {peer}: {', '.join(more_memory) or 'nowhere'}")
    print(f"a larger gradient error {peer}: {', '.join(larger_error) or 'nowhere'}")
    return summary
