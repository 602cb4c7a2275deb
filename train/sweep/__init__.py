"""Sweeps of runs: a grid over `--over.OPTION a,b`, a search over `LOW:HIGH`."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from ..cli import SweepArguments, experiment_named, parse, with_file
from ..config.errors import UserError, require_extra
from ..registry import EXPERIMENTS
from ..system.files import check_out
from ..system.machine import keep_programs
from .axes import AS_IN, Sweep, grid, read_axes, split_over

MAX_JOBS = 256
MAX_TRIALS = 1000
MAX_CELLS = 10_000


def command(arguments: list[str]) -> int | None:
    """`unroll-jax sweep EXPERIMENT [--over.OPTION VALUES ...] [--jobs N]`."""
    name = experiment_named("sweep", arguments)
    if name is None:
        return None
    over, options = split_over(arguments[1:])
    usual = dataclasses.replace(EXPERIMENTS[name].config, out=None)
    kind, program = SweepArguments[type(usual)], f"unroll-jax sweep {name}"
    parsed = parse(kind, options, program, SweepArguments(usual))
    if parsed.config.config:
        default = with_file(parsed.config.config, usual)
        parsed = parse(kind, options, program, SweepArguments(default))
    _check(parsed, over)
    folder = check_out(parsed.config.out or Path("runs") / "sweep" / name)
    config = dataclasses.replace(parsed.config, out=None, config=None)
    axes = read_axes(over, config, options)
    sweep = Sweep(name, folder, config, axes, parsed.trials)
    if bool(sweep.ranges) != bool(parsed.trials):
        raise UserError(
            "a search has --trials and a range, as in `--trials 5"
            " --over.learning-rate 1e-4:1e-2`; give both or neither"
        )
    if sweep.ranges:
        require_extra("search")
    cells = grid(sweep)
    keep_programs()
    from .compute import run  # which imports JAX, once the options are right

    return run(sweep, cells, jobs=parsed.jobs)


def _check(parsed: SweepArguments, over: Mapping[str, str]) -> None:
    if not over:
        raise UserError(f"a sweep needs an axis, as in {AS_IN}")
    if (count := math.prod(text.count(",") + 1 for text in over.values())) > MAX_CELLS:
        raise UserError(
            f"the sweep has {count} cells, more than {MAX_CELLS}; give fewer values"
        )
    if parsed.config.overwrite:
        raise UserError(
            "--overwrite would delete every run of the sweep; pass another --out, or"
            " move its folder away"
        )
    if not 1 <= parsed.jobs <= MAX_JOBS:
        raise UserError(f"--jobs must be from 1 to {MAX_JOBS}, got {parsed.jobs}")
    if not 0 <= parsed.trials <= MAX_TRIALS:
        raise UserError(f"--trials must be from 0 to {MAX_TRIALS}, got {parsed.trials}")
