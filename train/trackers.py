"""Callbacks of a run, and trackers of its curves by name: TensorBoard, Weights & Biases, MLflow."""

import hashlib
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from .config.errors import UserError, one_line
from .config.run import Tracking

EVENTS = ("on_step", "on_validation", "on_end")  # the methods of `Callbacks`


class Callbacks(Protocol):
    """Callbacks of a run, for notebooks: subclass it and override the methods of the events you want.

    Example:
      >>> class Losses(Callbacks):
      ...     def __init__(self):
      ...         self.losses = []
      ...     def on_step(self, row):
      ...         self.losses.append(row["loss"])
      >>> mine = Losses()
      >>> mine.on_step({"step": 1, "loss": 0.5})  # as `fit(..., callbacks=[mine])` does
      >>> mine.losses
      [0.5]
    """

    def on_step(self, row: dict[str, Any]) -> None:
        """After a step, one step late, its row of metrics.jsonl."""

    def on_validation(self, row: dict[str, Any]) -> None:
        """After a validation, its row."""

    def on_end(self, folder: Path) -> None:
        """After the last step."""


class Tracker(NamedTuple):
    """Curves of a run: ``add(numbers, step)`` adds a point by name, ``flush`` sends them, ``close`` ends the curves."""

    add: Callable[[Mapping[str, float], int], None]
    flush: Callable[[], Any]
    close: Callable[[], Any]


def check_callbacks(callbacks: Any) -> None:
    """Raises UserError unless callbacks are a list of objects with every method of `Callbacks`."""
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    wrong = [one for one in listed if isinstance(one, type) or not all(hasattr(one, name) for name in EVENTS)]
    if wrong or listed is not callbacks:
        given = callbacks if listed is not callbacks else wrong[0]
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise UserError(
            f"callbacks must be a list of objects with {', '.join(EVENTS)}, got {kind}; pass callbacks=[Mine()], where "
            "Mine is a subclass of Callbacks"
        )


def tracking(name: Tracking, folder: Path, *, first_step: int, log: Callable[[str], None]) -> Tracker:
    """Opens the tracker of a name; after its first error it is closed, and the run continues without it."""
    try:
        tracker = TRACKERS[name](folder, first_step)
    except Exception as error:  # of a login or a server: each has its own kind
        if isinstance(error, UserError) or name == "tensorboard":  # a disk's error is told as such
            raise
        raise UserError(f"--track {name}: {error}; set {name} up, or leave it out") from error
    failed = False

    def guard(call: Callable[..., Any], *, always: bool = False) -> Callable[..., None]:
        def guarded(*arguments: Any) -> None:
            nonlocal failed
            if failed and not always:
                return
            try:
                call(*arguments)
            except Exception as error:
                if not failed:
                    reason = f"{type(error).__name__}: {one_line(error)}"
                    log(f"--track {name} failed ({reason}); training continues without it; metrics.jsonl has every row")
                failed = True

        return guarded

    return Tracker(guard(tracker.add), guard(tracker.flush), guard(tracker.close, always=True))


def require_installed(names: Iterable[Tracking]) -> None:
    """Raises UserError for a tracker whose package is missing, before a run begins."""
    for name in names:
        if name != "tensorboard":
            _installed(name)


def _tensorboard(folder: Path, first_step: int) -> Tracker:
    """Opens a file of events; points of earlier files from ``first_step`` on are dropped.

    `tensorboardX.SummaryWriter` would block training on a full disk. The imports load torch if it is installed.
    """
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore (protobuf makes its classes)
    from tensorboardX.summary import scalar

    (folder / "tensorboard").mkdir(exist_ok=True)
    file = EventsWriter(str(folder / "tensorboard" / "events"), f".{first_step}")  # its name has the second

    def write(**event: Any) -> None:
        file.write_event(Event(wall_time=time.time(), **event))

    def add(numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            write(step=step, summary=scalar(name.replace(" ", "_"), number))

    write(step=first_step, session_log=SessionLog(status=SessionLog.START))
    return Tracker(add, file.flush, file.close)


def _wandb(folder: Path, first_step: int) -> Tracker:
    """Opens a run of the project that WANDB_PROJECT names, else unroll_jax."""
    del first_step
    title, identity = _named(folder)
    project = os.environ.get("WANDB_PROJECT", "unroll_jax")
    run = _installed("wandb").init(project=project, name=title, id=identity, resume="allow")
    return Tracker(lambda numbers, step: run.log(dict(numbers), step=step), lambda: None, run.finish)


def _mlflow(folder: Path, first_step: int) -> Tracker:
    """Opens a run of the server and experiment that MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME name."""
    del first_step
    mlflow, (title, identity) = _installed("mlflow"), _named(folder)
    runs = mlflow.search_runs(filter_string=f"tags.unroll_jax = '{identity}'", output_format="list", max_results=1)
    known: dict[str, Any] = {"run_id": runs[0].info.run_id} if runs else {"run_name": title}
    mlflow.start_run(**known, tags={"unroll_jax": identity})

    def add(numbers: Mapping[str, float], step: int) -> None:
        mlflow.log_metrics({name.replace("(", "").replace(")", ""): n for name, n in numbers.items()}, step=step)

    return Tracker(add, lambda: None, mlflow.end_run)


TRACKERS: dict[Tracking, Callable[[Path, int], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _installed(name: Tracking) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"--track {name}: {name} is not installed; install it with pip, or leave {name} out") from error


def _named(folder: Path) -> tuple[str, str]:
    """Returns the title and the identifier of a folder's run: one that resumes adds to its curves."""
    return "/".join(folder.absolute().parts[-3:]), hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
