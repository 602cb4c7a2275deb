"""One call of the command: which cells are left, computed here or in processes of their own, and the table of all."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..config.commands import TableArguments
from ..config.errors import UserError
from ..report.read import read_runs
from ..report.words import run_verdict
from ..runs import VERSION, begin
from ..system.files import AGAIN, locked, read_object, require_writable, write_json, writing
from ..task import Row
from .axes import Cell, Plan, axes_words
from .cells import LEFT, Opened, State, check_places, compute, log_of, place_of, prepare_all, read_state
from .jobs import FAILED, at_deadline, run_children, spending
from .writing import write_table

UNFINISHED = 3  # the exit code where cells are left: a script may give the command again
TABLE = "table.json"
KEPT = ("finished", "collapsed")  # states of cells that no later table leaves out
Log = Callable[[str], None]


def make_table(plan: Plan, settings: TableArguments, *, log: Log = print) -> int:
    """Computes cells that are left, as many as the call allows, and writes the table of all.

    Returns:
      0 where every cell has ended, 3 where some are left; with --only 0, or 4 where that cell failed.
    """
    if settings.only is not None:
        return _compute_one(plan, next(cell for cell in plan.cells if cell.name == settings.only), log)
    folder = plan.folder
    if not _claim(plan):
        _require_table(plan)
    with locked(folder), writing(f"--out {folder}", AGAIN):
        require_writable(folder, f"--out {folder}", AGAIN)
        check_places(folder, plan.cells)
        rows = read_object(folder / TABLE)["cells"]
        failed = {row["cell"]: row["message"] for row in rows if row.get("state") == "failed"}
        states = {cell.name: read_state(folder, cell, failed) for cell in plan.cells}
        call = _Call(plan, states, log)
        call.compute(settings)
        write_table(plan, states, gallery=settings.gallery, log=log)
    return _concluded(plan, states, log)


class _Call:
    """The cells of one call; ``states`` is brought up to date as they end."""

    def __init__(self, plan: Plan, states: dict[str, State], log: Log):
        self.plan, self.states, self.log = plan, states, log
        self.runs = sum(cell.refusal is None for cell in plan.cells)

    def compute(self, settings: TableArguments) -> None:
        """Computes cells that are left, until none is or the budget is used up."""
        cells = [cell for cell in self.plan.cells if self.states[cell.name] == LEFT]
        self.log(f"{self.plan.folder}: {self.runs} cells, {len(cells)} to be computed")
        cells = cells[: settings.cells]
        if not cells:
            return
        if settings.jobs > 1:
            deadline = at_deadline(settings.budget_minutes)
            prepare_all(cells, self.log)
            run_children(
                cells,
                folder=self.plan.folder,
                words=self.plan.words,
                jobs=min(settings.jobs, len(cells)),
                deadline=deadline,
                ended=self.ended,
            )
            return
        with spending(settings.budget_minutes):
            self._here(cells)

    def _here(self, cells: Sequence[Cell]) -> None:
        """One cell after another in this process: data and compiled programs are shared."""
        opened = Opened(self.log)
        opened.require(cells)
        for cell in cells:
            began = time.perf_counter()
            self.ended(cell, _logged(self.plan.folder, cell, opened), time.perf_counter() - began)

    def ended(self, cell: Cell, state: State, seconds: float | None = None) -> None:
        """Logs the result of a cell, in a line."""
        self.states[cell.name] = state
        done = sum(one.kind not in ("left", "refused") for one in self.states.values())
        words = f"{state.kind}: {state.message}" if state.message else state.kind
        if state.evaluated:
            (run,) = read_runs([place_of(self.plan.folder, cell)])
            words = run_verdict(run) + (f"; {state.kind}: {state.message}" if state.kind == "collapsed" else "")
        took = "" if seconds is None else f" ({seconds:.0f} s)"
        write_json(self.plan.folder / TABLE, _kept(self.plan, self.states))  # a kill may come before the table
        self.log(f"[{done} of {self.runs}] {words if state.evaluated else f'{cell.name}: {words}'}{took}")


def _description(plan: Plan, states: Mapping[str, State]) -> Row:
    """Returns the content of table.json for cells before the table is written."""
    cells = [{"cell": name, "state": state.kind, "message": state.message} for name, state in states.items()]
    return {"version": VERSION, "table": plan.name, "over": plan.over, "cells": cells}


def _kept(plan: Plan, states: Mapping[str, State]) -> Row:
    """Returns table.json with new states, and the figures that an earlier call wrote there."""
    before = read_object(plan.folder / TABLE)
    figures = {row["cell"]: row for row in before.get("cells", [])}
    new = _description(plan, states)
    return before | new | {"cells": [figures.get(row["cell"], {}) | row for row in new["cells"]]}


def _claim(plan: Plan) -> bool:
    """Writes table.json; False where it is there. A folder without it may hold cells, as --only leaves them."""
    begun = any((place_of(plan.folder, cell) / "config.json").exists() for cell in plan.cells)
    if not begun or (plan.folder / TABLE).exists():
        return begin(plan.folder, TABLE, _description(plan, {}), what="table")
    with writing(f"--out {plan.folder}", AGAIN):
        write_json(plan.folder / TABLE, _description(plan, {}))
    return True


def _require_table(plan: Plan) -> None:
    """Refuses a file that is of no table, or of one that has cells which the table of these axes would not show."""
    path = plan.folder / TABLE
    table = read_object(path)
    cells, over = table.get("cells"), table.get("over")
    whole = isinstance(cells, list) and all(
        isinstance(row, dict) and isinstance(row.get("cell"), str) and isinstance(row.get("message"), str)
        for row in cells
    )
    if "table" not in table or not isinstance(over, dict) or not isinstance(cells, list) or not whole:
        raise UserError(f"{path} is of no table, or was changed; pass another --out, or delete that file")
    names = {cell.name for cell in plan.cells}
    if lost := [row["cell"] for row in cells if row.get("state") in KEPT and row["cell"] not in names]:
        raise UserError(
            f"{plan.folder} holds a table {axes_words(over)}; this one, {axes_words(plan.over)}, has no place for "
            f"{len(lost)} of its cells, {lost[0]} for one; repeat its values to extend it, or pass another --out"
        )


def _compute_one(plan: Plan, cell: Cell, log: Log) -> int:
    if cell.refusal is not None:
        raise UserError(f"--only {cell.name}: {cell.refusal}")
    check_places(plan.folder, [cell])
    state = compute(plan.folder, cell, Opened(log), log)
    if state.kind == "failed":
        sys.stdout.flush()
        log(f"failed: {' '.join(state.message.split())}")
        return FAILED
    return 0


def _logged(folder: Path, cell: Cell, opened: Opened) -> State:
    """The state of a cell that is computed here; its messages go to its log."""
    path = log_of(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:

        def log(text: str) -> None:
            file.write(f"{text}\n")
            file.flush()

        return compute(folder, cell, opened, log)


def _concluded(plan: Plan, states: dict[str, State], log: Log) -> int:
    """Says what is left; refuses a table of which every cell failed."""
    left = [cell for cell in plan.cells if states[cell.name].kind == "left"]
    failed = [state for state in states.values() if state.kind == "failed"]
    if left:
        log(f"{len(left)} cells are left, the first is {left[0].name}; to go on: {plan.command}")
        return UNFINISHED
    if failed and not any(state.evaluated for state in states.values()):
        raise UserError(f"no cell of {plan.folder} could be computed; the first says: {failed[0].message}")
    return 0
