"""Trackers of a run's curves beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow, or one of yours."""

import contextlib
import hashlib
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from .config.errors import UserError, one_line
from .config.run import Tracking

HEARD = ("on_step", "on_validation", "on_end")  # the methods of `Callbacks`


class Tracker(Protocol):
    """Takes numbers by name, step by step."""

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of every name."""
        ...

    def flush(self) -> None:
        """Hands over what was added."""
        ...

    def close(self) -> None:
        """Ends the curves."""
        ...


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


def check_callbacks(callbacks: Any) -> None:
    """Refuses callbacks that are no list of objects with every method of `Callbacks`."""
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    odd = [one for one in listed if isinstance(one, type) or not all(hasattr(one, name) for name in HEARD)]
    if odd or listed is not callbacks:
        given = callbacks if listed is not callbacks else odd[0]
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise UserError(
            f"callbacks must be a list of objects with {', '.join(HEARD)}, got {kind}; pass callbacks=[Mine()], where "
            "Mine is a subclass of Callbacks"
        )


class TensorBoard:
    """A file of events; of earlier files in the folder, what they hold from ``first_step`` on is forgotten.

    Written where it is added: `tensorboardX.SummaryWriter` writes in a thread, which ends with a traceback when a disk
    is full, and training waits for it without end.
    """

    def __init__(self, folder: Path, *, first_step: int):
        # They import torch where that is installed: a second or more, which commands that train nothing need not wait.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore (protobuf makes its classes)
        from tensorboardX.summary import scalar

        folder = folder / "tensorboard"
        self._event, self._scalar = Event, scalar
        folder.mkdir(exist_ok=True)
        self._file = EventsWriter(str(folder / "events"), f".{first_step}")  # else two of one second are one
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of every name."""
        for name, number in numbers.items():
            self._write(step=step, summary=self._scalar(name.replace(" ", "_"), number))

    def flush(self) -> None:
        """Hands what was added to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._file.write_event(self._event(wall_time=time.time(), **event))


class WeightsAndBiases:
    """A run of Weights & Biases; of the project that WANDB_PROJECT names, else unroll_jax."""

    def __init__(self, folder: Path, *, first_step: int):
        del first_step  # a run that goes on adds to the curves of its name from the step that it logs
        module = _installed("wandb")
        project = os.environ.get("WANDB_PROJECT", "unroll_jax")
        with _reaching("wandb"):
            self._run = module.init(project=project, name=_name(folder), id=_identity(folder), resume="allow")

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of every name."""
        self._run.log(dict(numbers), step=step)

    def flush(self) -> None:
        """Does nothing: the package sends by itself."""

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class MLflow:
    """A run of MLflow; of the server and experiment that MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME name."""

    def __init__(self, folder: Path, *, first_step: int):
        del first_step
        self._module = _installed("mlflow")
        with _reaching("mlflow"):
            runs = self._module.search_runs(
                filter_string=f"tags.unroll_jax = '{_identity(folder)}'", output_format="list", max_results=1
            )
            known: dict[str, Any] = {"run_id": runs[0].info.run_id} if runs else {"run_name": _name(folder)}
            self._run = self._module.start_run(**known, tags={"unroll_jax": _identity(folder)})

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of every name."""
        self._module.log_metrics({name.replace("(", "").replace(")", ""): n for name, n in numbers.items()}, step=step)

    def flush(self) -> None:
        """Does nothing: the package sends by itself."""

    def close(self) -> None:
        """Ends the run."""
        self._module.end_run()


TRACKERS: dict[Tracking, type[TensorBoard] | type[WeightsAndBiases] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Expendable:
    """A tracker that is dropped at its first error, which is logged: curves are no reason to end a run."""

    def __init__(self, name: str, tracker: Tracker, log: Callable[[str], None]):
        self._name, self._tracker, self._log, self._dropped = name, tracker, log, False

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of every name."""
        if not self._dropped:
            self._try(lambda: self._tracker.add(numbers, step))

    def flush(self) -> None:
        """Hands over what was added."""
        if not self._dropped:
            self._try(self._tracker.flush)

    def close(self) -> None:
        """Ends the curves, also of one that was dropped."""
        self._try(self._tracker.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # of a network, a server, a disk: each has its own
            if not self._dropped:
                words = f"--track {self._name} failed ({type(error).__name__}: {one_line(error)})"
                self._log(f"{words}; training goes on without it, metrics.jsonl has what it lacks")
            self._dropped = True


def tracking(name: Tracking, folder: Path, *, first_step: int, log: Callable[[str], None]) -> Tracker:
    """The tracker of a name; that it cannot be opened is an error, what comes later is not."""
    return Expendable(name, TRACKERS[name](folder, first_step=first_step), log)


def require_installed(names: Iterable[Tracking]) -> None:
    """Refuses a tracker whose package is not there, before anything is begun."""
    for name in names:
        if name != "tensorboard":
            _installed(name)


def _installed(name: Tracking) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"--track {name}: {name} is not installed; install it with pip, or leave {name} out") from error


@contextlib.contextmanager
def _reaching(name: Tracking) -> Iterator[None]:
    """Whatever their own errors are, of a login or a server, they become one line."""
    try:
        yield
    except Exception as error:
        raise UserError(f"--track {name}: {error}; set {name} up, or leave it out") from error


def _name(folder: Path) -> str:
    return "/".join(folder.absolute().parts[-3:])


def _identity(folder: Path) -> str:
    """The same for the same folder, so that a run that goes on adds to its own curves."""
    return hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
