"""Cost of gradients through equilibria, against other libraries at their best, and against unrolling."""

import os

import jax
import numpy as np

from benchmarks.gradients.against_unrolling import sweeps
from benchmarks.gradients.problems import INPUT_DIM, Cell, conv_cell, deep_cell, dense_cell, tanh_cell, transformer_cell
from benchmarks.gradients.race import TOL, Result, compiled_gradient, race
from benchmarks.record import Record
from benchmarks.timing import SAME_ALLOCATOR, interleaved, table

__all__ = ["main"]

DIMS, SQUARES = (64, 256, 1024), (0.9, 0.99, 0.999)
PEERS = ("jaxopt", "optimistix", "banax", "torchdeq")
BARS = {"median": 0.5, "hard": 0.2, "worst": 1.05}  # of the best peer's time


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints a table of problems and libraries, what is left of the bars, and the sweeps against unrolling."""
    print(
        f"forward and backward to a residual of {TOL:.0e} in every example; {INPUT_DIM} inputs, batch 64 (images: 4) "
        f"if no other is named, float32, {jax.default_backend()}, {len(os.sched_getaffinity(0))} cores; ms, medians of "
        "interleaved runs"
    )
    if peers:
        print(SAME_ALLOCATOR)
    rows, results, cells, record = [], {}, _cells(quick=quick), Record()
    for cell in cells:
        repeats = 5 if quick else 7 if cell.start[0].size >= 1024 else 15
        results[cell.name] = race(cell, repeats=repeats, peers=peers)
        floor = _floor(cell)
        rows.append(_row(cell, results[cell.name], floor))
        _add(record, cell, results[cell.name], floor)
        print(f"  {cell.name}: {_words(results[cell.name])}", flush=True)
    header = ["problem", "floor", "ours", *PEERS, "of best", "MiB", "best's", "error", "best's", "compile", "least"]
    print(f"\n{table(header, rows)}\n")
    record.figures |= _judge(cells, results)
    print(
        "\nfloor: one step with its gradient in the parameters; error: of the gradient, against float64 direct solves;"
    )
    print("of best: our time over the best peer's; -: the mark was missed in every way, or 100 times our time reached.")
    print("compile: seconds to trace and compile; least: of the peers' best ways.")
    record.figures |= sweeps(quick=quick)
    record.draw = record.draw_times
    return record


def _cells(*, quick: bool) -> list[Cell]:
    if quick:
        dense = [dense_cell(256, 0.99, "random"), dense_cell(256, 0.999, "spread")]
        return [*dense, deep_cell(), conv_cell(8, 16), tanh_cell(), tanh_cell(batch=1), transformer_cell()]
    kinds = [*((kind, square) for kind in ("random", "spread") for square in SQUARES), ("spread, own", max(SQUARES))]
    dense = [dense_cell(dim, square, kind) for dim in DIMS for kind, square in kinds]
    return [*dense, deep_cell(), conv_cell(), tanh_cell(), tanh_cell(batch=1), transformer_cell()]


def _floor(cell: Cell) -> float:
    """Seconds of one step with its gradient."""
    step, _ = compiled_gradient(cell, lambda params: cell.layer.step(params, cell.target, cell.x))
    return float(np.median(interleaved({"step": step}, repeats=20)["step"]))


def _add(record: Record, cell: Cell, results: dict[str, Result], floor: float) -> None:
    for library, result in results.items():
        name = f"{cell.name}, {library}"
        for field in ("seconds", "mebibytes", "residual", "error", "compile_seconds"):
            record.figures[f"{name} {field}"] = getattr(result, field)
        record.spreads[f"{name} seconds"] = result.spread
        record.floors[f"{name} seconds"] = {"seconds": floor}


def _row(cell: Cell, results: dict[str, Result], floor: float) -> list[str]:
    ours, best = results["unroll_jax"], _best(results)
    times = [f"{1e3 * results[peer].seconds:.2f}" if peer in results else "-" for peer in PEERS]
    ratio, memory, error = ("-", "-", "-")
    if best is not None:
        ratio, memory = f"{ours.seconds / best.seconds:.2f}", f"{best.mebibytes:.2f}"
        error = f"{best.error:.0e}"
    our_figures = [f"{1e3 * floor:.2f}", f"{1e3 * ours.seconds:.2f}"]
    compiled = [f"{ours.compile_seconds:.2f}", f"{_least(results, 'compile_seconds'):.2f}"]
    return [
        cell.name,
        *our_figures,
        *times,
        ratio,
        f"{ours.mebibytes:.2f}",
        memory,
        f"{ours.error:.0e}",
        error,
        *compiled,
    ]


def _best(results: dict[str, Result]) -> Result | None:
    peers = [result for library, result in results.items() if library != "unroll_jax"]
    return min(peers, key=lambda result: result.seconds) if peers else None


def _least(results: dict[str, Result], field: str) -> float:
    """The least of the peers that say it."""
    values = [getattr(result, field) for library, result in results.items() if library != "unroll_jax"]
    return min((value for value in values if not np.isnan(value)), default=float("nan"))


def _words(results: dict[str, Result]) -> str:
    ours = results["unroll_jax"].seconds
    peers = [f"{library} ({result.name}) {result.seconds / ours:.2f}" for library, result in results.items()]
    return "time over ours: " + "; ".join(peers[1:])


def _judge(cells: list[Cell], results: dict[str, dict[str, Result]]) -> dict[str, float]:
    """Prints what the bars ask, and returns it."""
    pairs = [(cell, results[cell.name]["unroll_jax"], _best(results[cell.name])) for cell in cells]
    pairs = [(cell, ours, best) for cell, ours, best in pairs if best is not None]
    if not pairs:
        print('no peers: pip install ".[peers]" and --peers compare with them')
        return {}
    ratios = {cell.name: ours.seconds / best.seconds for cell, ours, best in pairs}
    hard = [ratios[cell.name] for cell, _, _ in pairs if cell.hard]
    summary = {"median": float(np.median(list(ratios.values()))), "worst": max(ratios.values())}
    if hard:
        summary["hard"] = max(hard)
    for name, value in summary.items():
        print(f"{name} time over the best peer's: {value:.2f} (bar {BARS[name]:.2f})")
    slower = [name for name, ratio in ratios.items() if ratio > BARS["worst"]]
    print(f"slower than the best peer by more than 5%: {', '.join(slower) or 'nowhere'}")
    for what, field in (("more temporary memory", "mebibytes"), ("a larger gradient error", "error")):
        worse = [cell.name for cell, ours, best in pairs if getattr(ours, field) > getattr(best, field)]
        least = [cell.name for cell, ours, _ in pairs if getattr(ours, field) > _least(results[cell.name], field)]
        print(f"{what} than the quickest peer: {', '.join(worse) or 'nowhere'}")
        print(f"{what} than the best peer in that: {', '.join(least) or 'nowhere'}")
    return {f"{name}_over_best_peer": value for name, value in summary.items()}
