"""Sweeps of runs: a grid over `--over.OPTION a,b`, or trials that Optuna proposes from ranges `LOW:HIGH`."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from ..cli import experiment_named, parse, with_file
from ..config.commands import SweepArguments
from ..config.errors import UserError
from ..experiments import EXPERIMENTS
from ..system.files import check_out
from ..system.machine import keep_programs
from .axes import AS_IN, Cell, Sweep, grid, read_axes, split_over

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
    sweep = Sweep(name, folder, config, axes)
    cells = grid(sweep) if parsed.trials is None else _ends(sweep)
    keep_programs()
    from .compute import run  # which imports JAX, once the options are right

    return run(sweep, cells, trials=parsed.trials, jobs=parsed.jobs)


def _check(parsed: SweepArguments, over: Mapping[str, str]) -> None:
    if not over:
        raise UserError(f"a sweep needs an axis, as in {AS_IN}, or with --trials a range: `--over.alpha 0.05:0.3`")
    if parsed.trials is None and (count := math.prod(text.count(",") + 1 for text in over.values())) > MAX_CELLS:
        raise UserError(f"the sweep has {count} cells, more than {MAX_CELLS}; give fewer values")
    if parsed.config.overwrite:
        raise UserError("--overwrite would delete every run of the sweep; pass another --out, or move its folder away")
    for option, value, most in (("--jobs", parsed.jobs, MAX_JOBS), ("--trials", parsed.trials, MAX_TRIALS)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"{option} must be from 1 to {most}, got {value}")


def _ends(sweep: Sweep) -> list[Cell]:
    """Returns trials at the low ends of all ranges, at the high ends, and at each value of a list, all checked."""
    texts = {axis.name: list(axis.values) for axis in sweep.axes}
    places = range(max(map(len, texts.values())))
    return [sweep.cell({name: each[min(place, len(each) - 1)] for name, each in texts.items()}) for place in places]
