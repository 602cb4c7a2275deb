"""Sweeps of runs: a grid over `--over.OPTION a,b`, or trials that Optuna proposes from ranges `LOW:HIGH`."""

import dataclasses
import math
from pathlib import Path

from ..cli import experiment_named, given, parse, with_file
from ..config.commands import SweepArguments
from ..config.errors import UserError
from ..experiments import EXPERIMENTS
from ..system.files import AGAIN, check_out, locked, require_writable, writing
from ..system.machine import keep_programs
from .axes import AS_IN, Cell, Sweep, check_cell, grid, read_axes, split_over

MAX_JOBS = 256
MAX_CELLS = MAX_TRIALS = 10_000


def command(arguments: list[str]) -> int | None:
    """`unroll-jax sweep EXPERIMENT [--over.OPTION VALUES ...] [--trials N] [--jobs N]`."""
    name = experiment_named("sweep", arguments)
    if name is None:
        return None
    over, options = split_over(arguments[1:])
    usual = dataclasses.replace(EXPERIMENTS[name].config, out=None)
    whole = SweepArguments(config=with_file(options, usual))
    parsed = parse(SweepArguments[type(usual)], options, f"unroll-jax sweep {name}", whole)
    _check(parsed, over)
    folder = check_out(parsed.config.out or Path("runs") / "sweep" / name)
    config = dataclasses.replace(parsed.config, out=None, config=None)
    axes = read_axes(over, config, options, ranges=parsed.trials is not None)
    warmup = given(options, "--constraints.warmup-steps") or "constraints.warmup-steps" in (axis.field for axis in axes)
    sweep = Sweep(name, folder, config, usual, axes, warmup)
    cells = grid(sweep) if parsed.trials is None else _ends(sweep)
    keep_programs()
    return _run(sweep, cells, trials=parsed.trials, jobs=parsed.jobs)


def _run(sweep: Sweep, cells: list[Cell], *, trials: int | None, jobs: int) -> int:
    """Computes the cells, or trials, and writes their tables; returns 1 if some failed, 0 if none did."""
    from ..runs import begin, check_first  # these import JAX, once the options are right
    from .compute import check_folders, has_ended, run_cells
    from .results import RECORD, grid_tables, read_result, trial_tables, write_tables
    from .study import run_trials

    folder = sweep.folder
    check_first(cells[0].config)
    begin(folder, RECORD, {"experiment": sweep.experiment}, what="sweep")
    with locked(folder), writing(f"--out {folder}", AGAIN):
        require_writable(folder, f"--out {folder}", AGAIN)
        if trials is not None:
            results = run_trials(sweep, trials, jobs=jobs)
            write_tables(sweep, results, trial_tables(sweep, results))
            return 1 if results[0].validation is None else 0
        check_folders(sweep, cells)
        left = [cell for cell in cells if not has_ended(folder / cell.name)]
        print(f"{folder}: {len(cells)} cells, {len(left)} left")
        failures = run_cells(sweep, left, jobs=jobs)
        results = [read_result(sweep, cell) for cell in cells]
        write_tables(sweep, results, grid_tables(sweep, results))
    for name, message in failures.items():
        print(f"failed: {name}: {message}")
    return 1 if failures else 0


def _check(parsed: SweepArguments, over: dict[str, str]) -> None:
    """Raises UserError for options of the sweep that cannot be."""
    if not over:
        raise UserError(
            f"a sweep needs an axis, as in {AS_IN}, or with --trials a range, as in `--over.alpha 0.05:0.3`"
        )
    if parsed.trials is None and (count := math.prod(text.count(",") + 1 for text in over.values())) > MAX_CELLS:
        raise UserError(f"the sweep has {count} cells, more than {MAX_CELLS}; give fewer values")
    if parsed.config.overwrite:
        raise UserError("--overwrite would delete every run of the sweep; pass another --out, or move its folder away")
    for option, value, most in (("--jobs", parsed.jobs, MAX_JOBS), ("--trials", parsed.trials, MAX_TRIALS)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"{option} must be from 1 to {most}, got {value}")


def _ends(sweep: Sweep) -> list[Cell]:
    """Returns trials at the low ends of all ranges, at the high ends, and at each value of a list, all checked."""
    places = range(max(len(axis.texts) for axis in sweep.axes))
    points = ({axis.name: axis.texts[min(place, len(axis.texts) - 1)] for axis in sweep.axes} for place in places)
    cells = [sweep.cell(point) for point in points]
    for cell in cells:
        check_cell(cell)
    return cells
