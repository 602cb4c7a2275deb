"""The cells of a table in their folders: how far each is, and how one is computed in this process."""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax

from ..config.errors import StorageError, UserError
from ..evaluate import evaluate
from ..loop import train_run
from ..runs import ENDED, check_same, identity, read_status
from ..system.files import read_object
from ..task import Task
from ..tasks.table import open_task, prepare_data
from .axes import Cell

CELLS = "cells"
# Options beside data and given weights that say what of the data a task reads when it is opened.
READ = ("max_length", "min_count", "train_examples", "validation_examples", "test_examples")
ANOTHER = "pass another --out, or move that folder away"
Log = Callable[[str], None]


class State(NamedTuple):
    """The progress of a cell.

    Attributes:
      kind: finished; collapsed, which ended early and is evaluated; failed, as where a loss is not finite; refused, for
        a run that cannot be; left, to be computed.
      message: why, where it did not finish.
    """

    kind: Literal["finished", "collapsed", "failed", "refused", "left"]
    message: str = ""

    @property
    def evaluated(self) -> bool:
        """True where it has figures."""
        return self.kind in ("finished", "collapsed")


LEFT = State("left")


def place_of(folder: Path, cell: Cell) -> Path:
    """The run folder of a cell."""
    return folder / CELLS / cell.name


def log_of(folder: Path, cell: Cell) -> Path:
    """The file that a cell's messages go to, beside its folder, which must be empty when a run begins."""
    return folder / CELLS / f"{cell.name}.log"


def read_state(folder: Path, cell: Cell, failed: Mapping[str, str]) -> State:
    """Reads the state of a cell; ``failed`` are the messages of those that failed in an earlier call."""
    if cell.refusal is not None:
        return State("refused", cell.refusal)
    place = place_of(folder, cell)
    status = read_status(place)
    state, message = status.get("state"), " ".join(status.get("messages", [])[-1:])
    if state in ENDED and (place / "evaluation.json").exists():
        return State("finished") if state == "finished" else State("collapsed", message)
    if state == "failed" and cell.name in failed:
        return State("failed", failed[cell.name])
    return LEFT


def check_places(folder: Path, cells: Sequence[Cell]) -> None:
    """Refuses a folder one of whose runs has other options than its cell, before anything is computed."""
    for cell in cells:
        place = place_of(folder, cell)
        if cell.refusal is None and (place / "config.json").exists():
            fingerprint = read_object(place / "config.json").get("found", {})
            check_same(place, identity(cell.experiment, cell.config, fingerprint), ANOTHER)


class Opened:
    """The tasks of cells; those of one kind share their data, which are opened once."""

    def __init__(self, log: Log):
        self._tasks: dict[tuple[type, str], Task] = {}
        self._log = log

    def task(self, cell: Cell) -> Task:
        """The task of a cell."""
        key = _data_of(cell)
        if key in self._tasks:
            return self._tasks[key].with_config(cell.config)
        return self._tasks.setdefault(key, open_task(cell.config, self._log))

    def require(self, cells: Sequence[Cell]) -> None:
        """Opens the data of the cells; refuses them where no cell of one kind can be opened."""
        errors: dict[tuple[type, str], UserError] = {}
        for cell in cells:
            if (key := _data_of(cell)) not in self._tasks:
                try:
                    self.task(cell)
                except UserError as error:  # of the data, or of this cell alone
                    errors.setdefault(key, error)
        for key, error in errors.items():
            if key not in self._tasks:
                raise error


def prepare_all(cells: Sequence[Cell], log: Log) -> None:
    """Prepares the data of cells, each once, ahead of the processes that open them; refuses what cannot be read."""
    data = {json.dumps(vars(vars(cell.config)["data"]), sort_keys=True): cell.config for cell in cells}
    for config in data.values():
        prepare_data(config, log)


def compute(folder: Path, cell: Cell, opened: Opened, log: Log) -> State:
    """Trains and evaluates a cell, or goes on with it; a failure of the cell alone is returned, not raised.

    Raises:
      StorageError: if a disk refuses, which says nothing of the cell.
      Interrupted: if the process was asked to end.
    """
    place = place_of(folder, cell)
    try:
        task = opened.task(cell)
        train_run(task, place, experiment=cell.experiment, log=log)
        if not (place / "evaluation.json").exists():
            evaluate(task, place, experiment=cell.experiment, log=log)
    except StorageError:
        raise
    except UserError as error:
        return State("failed", str(error))
    except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:  # as where a device has too little memory
        log(traceback.format_exc())
        return State("failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    return read_state(folder, cell, {})


def _data_of(cell: Cell) -> tuple[type, str]:
    """The kind of a cell, and every option that opening its task may read: data, what of them is kept, weights."""
    options = vars(cell.config)
    read = {name: options[name] for name in READ if name in options}
    given = any(getattr(options.get("model"), name, None) for name in ("pretrained", "embeddings"))
    read |= {name: vars(options[name]) for name in ("data", *(["model"] if given else [])) if name in options}
    return type(cell.config), json.dumps(read, sort_keys=True)
