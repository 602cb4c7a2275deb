"""A grid of runs and its table: the command, which imports little before its options are read."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.commands import TableArguments
from ..config.constrained import ConstrainedConfig
from ..config.errors import UserError
from ..experiments import EXPERIMENTS
from ..experiments.grids import GRIDS
from ..options import from_file
from ..parsing import EVERY, HELP, given, parse, unknown
from ..system.files import check_out
from ..system.machine import keep_programs
from .axes import AS_IN, Base, Plan, make_cells, split_over

MOST_JOBS = 256
COMPARED = [name for name, row in EXPERIMENTS.items() if isinstance(row.config, ConstrainedConfig)]
THIS_CALL = ("--jobs", "--cells", "--budget-minutes")  # options of one call, whatever the table is


def command(arguments: list[str]) -> int | None:
    """`unroll-jax table EXPERIMENT [EXPERIMENT ...] [--over.OPTION VALUES ...]`."""
    if arguments and arguments[0] in HELP:
        sys.stdout.write(_usage())
        return None
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    over, options = split_over(arguments[len(names) :])
    experiments, usual = _named(names, options, arguments)
    over = {**usual, **over}
    parsed = [_base(name, options) for name in experiments]
    settings = parsed[0][1]  # those of the call, which all experiments read alike
    plan = _plan("+".join(names), [base for base, _ in parsed], over, arguments, options)
    _check_call(settings, plan)
    from .run import make_table  # which imports JAX: what was refused so far did not wait for it

    keep_programs()
    return make_table(plan, settings)


def _named(names: Sequence[str], options: Sequence[str], arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The experiments that are named, alone or as grids, and the axes of the grids."""
    if not names:
        if arguments:
            raise UserError(
                f"table has its experiments first, as in `table video-ut {arguments[0]} ...`, got {arguments[0]}"
            )
        raise unknown("experiment", [], [*GRIDS, *COMPARED])
    experiments, over = list[str](), dict[str, str]()
    for name in names:
        if name in GRIDS:
            grid = GRIDS[name]
            experiments += (grid.rooted if given(options, "--data.root") else ()) or grid.experiments
            over |= grid.over
        elif name in EXPERIMENTS:
            experiments.append(name)
        else:
            raise unknown("experiment", [name], [*GRIDS, *COMPARED])
    for name in experiments:
        if experiments.count(name) > 1:
            raise UserError(f"{name} is in the table twice; name it once")
        if name not in COMPARED:
            raise UserError(
                f"a table compares training with and without constraints on layers, which {name} has none of; name "
                "experiments of video, text or sparse coding"
            )
    kinds = {name: EXPERIMENTS[name].config.task.partition("-")[0] for name in experiments}
    for name in experiments:
        if kinds[name] != kinds[experiments[0]]:
            raise UserError(f"{experiments[0]} and {name} are scored differently; give each a table of its own")
    return experiments, over


def _base(name: str, options: list[str]) -> tuple[Base, TableArguments]:
    """Returns the options that all cells of an experiment share, and the options of the call."""
    config = EXPERIMENTS[name].config
    assert isinstance(config, ConstrainedConfig)
    usual = dataclasses.replace(config, out=None)
    whole = TableArguments(config=from_file(options, usual))
    parsed = parse(TableArguments[type(usual)], options, f"unroll-jax table {name}", whole)
    assert isinstance(parsed.config, ConstrainedConfig)
    if parsed.config.overwrite:
        raise UserError("--overwrite would delete every run of a table; move its folder away, or pass another --out")
    return Base(name, dataclasses.replace(parsed.config, config=None), usual), parsed


def _plan(
    name: str, bases: Sequence[Base], over: Mapping[str, str], arguments: Sequence[str], options: Sequence[str]
) -> Plan:
    if not over and len(bases) == 1:
        raise UserError(f"a table needs an axis or several experiments, as in {AS_IN}")
    out = bases[0].config.out
    folder = check_out(out) if out else Path("runs") / "table" / name
    alone = [base._replace(config=dataclasses.replace(base.config, out=None)) for base in bases]
    return Plan(name, folder, make_cells(alone, over, options), dict(over), _without(arguments, THIS_CALL))


def _check_call(settings: TableArguments, plan: Plan) -> None:
    """Refuses options of the call that no call has."""
    minutes = settings.budget_minutes
    if not 1 <= settings.jobs <= MOST_JOBS:
        raise UserError(f"--jobs must be from 1 to {MOST_JOBS}, got {settings.jobs}")
    if settings.cells is not None and settings.cells < 1:
        raise UserError(f"--cells must be at least 1, or None for all, got {settings.cells}")
    if minutes is not None and not (minutes > 0.0 and math.isfinite(minutes)):
        raise UserError(f"--budget-minutes must be positive and finite, or None for no bound, got {minutes}")
    if settings.only is not None and settings.only not in (cell.name for cell in plan.cells):
        raise UserError(f"--only {settings.only} is no cell of this table; the first is {plan.cells[0].name}")


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words of a command without some options and their values."""
    kept, words = [], iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") not in options:
            kept.append(word)
        elif not equals:
            next(words, None)
    return kept


def _usage() -> str:
    grids = "".join(
        f"  {name}: {', '.join(grid.experiments)}"
        + (f" ({', '.join(grid.rooted)} with --data.root)" if grid.rooted else "")
        + f", over {', '.join(f'{axis} {texts}' for axis, texts in grid.over.items())}; {grid.paper}\n"
        for name, grid in GRIDS.items()
    )
    return (
        "usage: unroll-jax table EXPERIMENT [EXPERIMENT ...] [--over.OPTION VALUE,VALUE] [--option value ...]\n"
        f"named tables, whose axes --over.OPTION replaces:\n{grids}"
        f"experiments: {', '.join(COMPARED)}\n"
        f"options: unroll-jax table EXPERIMENT --help shows the basic ones; {EVERY} in its place shows every one\n"
    )
