"""The files of a table: table.md, table.csv, table.json, and the page with the curves and the frames of its runs."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from ..config.errors import UserError, one_line
from ..report import Block, Picture, Report, write_files
from ..report.gallery import write_gallery
from ..report.groups import METHOD_NAMES
from ..report.kinds import report_of
from ..report.words import state_words
from ..runs import VERSION
from ..system.files import write_all
from ..system.terminal import Table, as_text
from ..tasks.video_frames import has_frames, show_frames
from .axes import Plan
from .cells import State, place_of
from .results import Line, floor_table, main_table, read_lines, row_of, wins, wins_words

Log = Callable[[str], None]
SHOWN = 3  # cells of one outcome in a line; table.csv has all of them
OUTCOMES = {"refused": "Not run", "failed": "Failed", "left": "Left", "collapsed": "Collapsed"}


def write_table(plan: Plan, states: Mapping[str, State], *, gallery: bool, log: Log) -> None:
    """Writes the table of the cells that have ended, and says it."""
    lines = read_lines(plan, states)
    tables = _tables(plan, lines)
    words = [*([wins_words(lines)] if tables else []), *_not_feasible(lines), *_others(plan, states)]
    files = {"table.md": _markdown(plan, tables, words), "table.csv": _csv(plan, states)}
    files["table.json"] = _json(plan, states, lines)
    write_all(plan.folder, {name: text.encode() for name, text in files.items()})
    for text in (*(as_text(table) + "\n" for table in tables), *words):
        log(text)
    log(f"table: {plan.folder / 'table.md'}, {plan.folder / 'table.csv'}, {plan.folder / 'table.json'}")
    if not tables:
        return
    try:
        write_files(plan.folder, _page(plan, states, lines, tables, words, gallery, log))
        log(f"report: {plan.folder / 'index.html'}")
    except UserError as error:  # what runs are too unlike for curves, or a folder of them was changed
        log(f"no page of curves: {error}")


def _tables(plan: Plan, lines: Sequence[Line]) -> list[Table]:
    if not any(line.variants for line in lines):
        return []
    floors = floor_table(lines)
    return [main_table(plan, lines), *([floors] if floors else [])]


def _not_feasible(lines: Sequence[Line]) -> list[str]:
    """Returns a sentence for every row of constrained runs that exceeds a bound, with the largest excess."""
    rows = [(line, line.variants["constrained"]) for line in lines if "constrained" in line.variants]
    return [f"{line.title}: constrained {state_words(variant)}." for line, variant in rows if not variant.feasible]


def _others(plan: Plan, states: Mapping[str, State]) -> list[str]:
    """The cells that did not finish, those of one reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in plan.cells:
        state = states[cell.name]
        if state.kind != "finished":
            groups.setdefault((state.kind, state.message), []).append(cell.name)
    return [
        f"{OUTCOMES[kind]}: {', '.join(names[:SHOWN])}{_more(names)}" + (f": {message}" if message else "")
        for (kind, message), names in groups.items()
    ]


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""


def _markdown(plan: Plan, tables: Sequence[Table], words: Sequence[str]) -> str:
    parts = [f"# Table {plan.name}", plan.shown]
    for table in tables:
        rule = ("---", *("---:" for _ in table.header[1:]))
        rows = [" | ".join(["", *row, ""]).strip() for row in (table.header, rule, *table.rows)]
        parts += [f"## {table.title}", "\n".join(rows), table.note]
    return "\n\n".join([*parts, "\n".join(f"- {text}" for text in words), f"`{plan.command}`"]) + "\n"


def _csv(plan: Plan, states: Mapping[str, State]) -> str:
    rows = [row_of(plan, cell, states[cell.name]) for cell in plan.cells]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _json(plan: Plan, states: Mapping[str, State], lines: Sequence[Line]) -> str:
    header = {"version": VERSION, "table": plan.name, "over": plan.over, "command": plan.command}
    counts = {name: tally._asdict() for name, tally in wins(lines).items()}
    cells = [row_of(plan, cell, states[cell.name]) for cell in plan.cells]
    return json.dumps(_finite(header | {"wins": counts, "cells": cells}), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _page(
    plan: Plan,
    states: Mapping[str, State],
    lines: Sequence[Line],
    tables: Sequence[Table],
    words: Sequence[str],
    gallery: bool,
    log: Log,
) -> Report:
    """The reports of all experiments below the table, on one page."""
    ended = [cell for cell in plan.cells if states[cell.name].evaluated]
    experiments = list(dict.fromkeys(cell.experiment for cell in ended))
    sections: list[tuple[str, Sequence[Block]]] = [("Table", tables)]
    summary: dict[str, Any] = {"table": plan.name}
    for experiment in experiments:
        folders = [place_of(plan.folder, cell) for cell in ended if cell.experiment == experiment]
        report = report_of(folders)(folders)
        summary[experiment], several = report.summary, len(experiments) > 1
        if gallery and (shown := _gallery(plan, lines, experiment, log)):
            sections.append((f"Frames of {experiment}", [shown]))
        sentences = [*report.verdicts, *(report.warnings or ())]
        for heading, blocks in (("In words", sentences), *report.sections):
            named = [_named(block, experiment) if several else block for block in blocks]
            sections.append((f"{experiment}: {heading}" if several else heading, named))
    return Report(
        f"Table {plan.name}", sections, summary, tables, opening=" ".join([plan.shown, *words[:1]]), verdicts=words[1:]
    )


def _named(block: Block, experiment: str) -> Block:
    return dataclasses.replace(block, name=f"{experiment}_{block.name}") if isinstance(block, Picture) else block


def _gallery(plan: Plan, lines: Sequence[Line], experiment: str, log: Log) -> Picture | None:
    """Frames of an experiment's last row of those with most methods, as the first seed of each cleans them.

    An obstacle is logged in a line, and the rest of the page is written.
    """
    rows = [line for line in lines if line.experiment == experiment and line.variants]
    row = max(reversed(rows), key=lambda line: len(line.variants))
    runs = {METHOD_NAMES[method]: variant.runs[0].folder for method, variant in row.variants.items()}
    try:
        if not has_frames(next(iter(runs.values()))):
            return None
        shown = show_frames(runs, log=log)
        return write_gallery(plan.folder, f"gallery_{experiment}", shown, f"{row.title}, first seeds.")
    except (UserError, OSError, ValueError, JaxRuntimeError) as error:
        log(f"no frames of {experiment}: {one_line(error)}")
        return None
