"""Cost of gradients through equilibria, against other libraries at their best, and
against unrolling."""

import os

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

DIMS, SQUARES = (64, 256, 1024), (0.9, 0.99, 0.999)
BARS = {"dense, median": 0.8, "general, worst": 1.3}  # of the best peer's time


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints a table of problems and libraries, the bars, first calls, and the
    sweeps against unrolling."""
    print(
        f"forward and backward to a residual of {TOL:.0e} in every example; {INPUT_DIM}"
        " inputs, batch 64 (images: 4) if no other is named, float32,"
        f" {jax.default_backend()}, {len(os.sched_getaffinity(0))} cores; ms, medians"
        " of interleaved runs" + f"\n{SAME_ALLOCATOR}" * peers
    )
    rows, results, cells, record = [], {}, _cells(quick=quick), Record()
    for cell in cells:
        repeats = 5 if quick else 7 if cell.start[0].size >= 1024 else 15
        results[cell.name] = race(cell, repeats=repeats, peers=peers)
        step, *_ = compiled_gradient(
            cell, lambda params, cell=cell: cell.step(params, cell.target, cell.x)
        )
        floor = float(np.median(interleaved({"step": step}, repeats=20)["step"]))
        rows.append(_row(cell, results[cell.name], floor))
        _add(record, cell, results[cell.name], floor)
        ways = [
            f"{library} ({way.name}) {1e3 * way.seconds:.2f}"
            for library, way in results[cell.name].items()
        ]
        print(f"  {cell.name}, ms: {'; '.join(ways)}", flush=True)
    header = [
        "problem",
        "floor",
        "ours",
        *LIBRARIES,
        "of best",
        "MiB",
        "best's",
        "error",
        "best's",
        "compile",
        "least",
    ]
    print(f"\n{table(header, rows)}\n")
    print(
        "floor: one step with its gradient in the parameters; error: of the gradient,"
        " against float64 direct solves;"
    )
    print(
        "of best: our time over the best peer's; -: the mark was missed in every way,"
        " or 100 times our time reached."
    )
    print("compile: seconds to trace and compile; least: of the peers' best ways.\n")
    record.figures |= _judge(cells, results)
    record.figures |= time_calls(peers=peers) | sweeps(quick=quick)
    record.draw = record.draw_times
    return record


def _cells(*, quick: bool) -> list[Cell]:
    dense, batches = problems.dense_cell, (128, 1) if quick else (1, 128, 1024)
    general = [
        *(problems.tanh_cell(batch=batch) for batch in batches),
        problems.deep_cell(),
    ]
    general += [problems.transformer_cell(), problems.conv_cell(8, 16)]
    if quick:
        return [dense(256, 0.99, "random"), dense(256, 0.999, "spread"), *general]
    others = [
        problems.slow_cell(),
        problems.hard_example_cell(),
        problems.nonnormal_cell(),
        problems.rotation_cell(),
    ]
    kinds = [
        *((kind, square) for kind in ("random", "spread") for square in SQUARES),
        ("spread, own", max(SQUARES)),
    ]
    cells = [dense(dim, square, kind) for dim in DIMS for kind, square in kinds]
    return [*cells, *general, *others, problems.conv_cell()]


def _add(record: Record, cell: Cell, results: dict[str, Result], floor: float) -> None:
    for library, result in results.items():
        name = f"{cell.name}, {library}"
        for field in ("seconds", "mebibytes", "residual", "error", "compile_seconds"):
            record.figures[f"{name} {field}"] = getattr(result, field)
        record.spreads[f"{name} seconds"] = result.spread
        record.floors[f"{name} seconds"] = {"seconds": floor}


def _row(cell: Cell, results: dict[str, Result], floor: float) -> list[str]:
    ours, best = results["unroll_jax"], _best(results)
    times = [
        f"{1e3 * results[peer].seconds:.2f}" if peer in results else "-"
        for peer in LIBRARIES
    ]
    ratio, memory, error, compiled = "-", "-", "-", "nan"
    if best is not None:
        ratio, memory, error = (
            f"{ours.seconds / best.seconds:.2f}",
            f"{best.mebibytes:.2f}",
            f"{best.error:.0e}",
        )
        compiled = f"{np.nanmin([results[peer].compile_seconds for peer in LIBRARIES if peer in results]):.2f}"
    figures = [
        f"{1e3 * floor:.2f}",
        f"{1e3 * ours.seconds:.2f}",
        *times,
        ratio,
        f"{ours.mebibytes:.2f}",
        memory,
    ]
    return [
        cell.name,
        *figures,
        f"{ours.error:.0e}",
        error,
        f"{ours.compile_seconds:.2f}",
        compiled,
    ]


def _best(results: dict[str, Result]) -> Result | None:
    peers = [result for library, result in results.items() if library != "unroll_jax"]
    return min(peers, key=lambda result: result.seconds, default=None)


def _judge(
    cells: list[Cell], results: dict[str, dict[str, Result]]
) -> dict[str, float]:
    """Prints our time over the best peer's against the bars, and returns it."""
    pairs = {
        cell.name: (results[cell.name]["unroll_jax"], _best(results[cell.name]))
        for cell in cells
    }
    raced = {
        name: (ours, best) for name, (ours, best) in pairs.items() if best is not None
    }
    summary = {}
    if not raced:
        print('no peers: pip install ".[peers]" and --peers compare with them')
    for kind in ("dense", "general"):
        of_kind = [
            pair
            for name, pair in raced.items()
            if name.startswith("dense") == (kind == "dense")
        ]
        ratios = [ours.seconds / best.seconds for ours, best in of_kind]
        for name, value in (("median", np.median), ("worst", max)) if ratios else ():
            figure = summary[f"{kind}, {name}, over the best peer"] = float(
                value(ratios)
            )
            bar = BARS.get(f"{kind}, {name}")
            print(
                f"{kind}, {name} time over the best peer's: {figure:.2f}"
                + (f" (bar {bar:.2f})" if bar else "")
            )
    for what, field in (
        ("more temporary memory", "mebibytes"),
        ("a larger gradient error", "error"),
    ):
        worse = [
            name
            for name, (ours, best) in raced.items()
            if getattr(ours, field) > getattr(best, field)
        ]
        print(f"{what} than the quickest peer: {', '.join(worse) or 'nowhere'}")
    return summary
