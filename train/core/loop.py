"""The training loop of one run: resumable at any moment, metrics one step late,
verified before every save."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

from ..config.errors import Interrupted, StorageError
from ..metrics import Callbacks, MetricsWriter
from ..runs import ANEW, FINISHED, go_on, read_status, take
from ..sharding.mesh import describe_mesh, local_rows, put
from ..system.distributed import (
    Stop,
    all_of,
    fetch,
    first_does,
    is_first,
    stopping,
    wait_for_all,
)
from ..system.files import AGAIN, write_json, writing
from ..system.machine import CTRL_C, environment
from ..system.terminal import pausing, progress
from .checkpoint import Checkpoints, way_back
from .evaluate import validate
from .numbers import NotFiniteError
from .step import (
    Metrics,
    TrainState,
    describe_step,
    init_state,
    jit_step,
    require_finite_state,
    state_like,
)
from .task import Batch, Log, Plan, Row, Task

BACK = (
    "move it back and give the same command again, or `unroll-jax run` with its new"
    " place"
)
UNJUDGED = -1e30  # score of an interrupt checkpoint: below any other
Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


class Notes(NamedTuple):
    """Notes of a checkpoint, saved with the state."""

    train_seconds: float = 0.0
    messages: tuple[str, ...] = ()


def train_run(
    task: Task,
    plan: Plan,
    folder: Path,
    *,
    experiment: str,
    callbacks: Sequence[Callbacks] = (),
    programs: dict[Any, Step] | None = None,
    log: Log = print,
) -> None:
    """Trains one run in its folder, which is claimed and locked, or continues it;
    one that has ended stays. Runs that differ by the seed share compiled ``programs``.
    """
    state_like(task, plan)  # raises if parameters do not divide over the mesh
    with contextlib.ExitStack() as held:
        first_does(lambda: take(task, folder, experiment=experiment, held=held))
        status = read_status(folder)
        if status.get("state") == FINISHED and status["steps"] >= plan.num_steps:
            log(
                f"{folder}: finished already after {status['steps']} steps; to train"
                f" anew, {ANEW}"
            )
        else:
            log(f"{folder}: {task.options.describe()}, on {describe_mesh(plan.mesh)}")
            train(
                task,
                plan,
                folder,
                experiment=experiment,
                callbacks=callbacks,
                programs={} if programs is None else programs,
                log=log,
            )
        wait_for_all(f"{folder} is trained")


def train(
    task: Task,
    plan: Plan,
    folder: Path,
    *,
    experiment: str = "",
    callbacks: Sequence[Callbacks] = (),
    programs: dict[Any, Step],
    log: Log,
) -> None:
    """Restores, steps, validates and saves, until the last step; writes status.json."""
    num_steps = plan.num_steps
    with stopping() as stop:
        with Checkpoints(
            folder / "checkpoints", mend=way_back(task.options), log=log
        ) as checkpoints:
            newest = checkpoints.newest(state_like(task, plan))
            if (folder / "config.json").exists():
                first_does(lambda: go_on(task, folder))
            if newest is None:
                state = init_state(task, plan, task.options.seed)
                notes = Notes()
            else:
                step, state, saved = newest
                notes = Notes(saved["train_seconds"], tuple(saved["messages"]))
                if step < num_steps:
                    log(f"going on from the checkpoint of step {step}")
            with _writer(task, folder, int(state.step)) as writer:
                loop = _Loop(
                    task,
                    plan,
                    folder,
                    checkpoints,
                    writer,
                    stop,
                    callbacks,
                    programs,
                    experiment,
                )
                interrupted = loop.run(state, notes)
        if interrupted or stop.at(num_steps + 1):  # the last save has been waited for
            raise _interrupted(stop, task, folder, "trained to the end", "goes on")
    for callback in callbacks:
        callback.on_end(folder)


@dataclasses.dataclass
class _Loop:
    task: Task
    plan: Plan
    folder: Path
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    stop: Stop
    callbacks: Sequence[Callbacks]
    # by the shapes of a batch: texts come in several lengths
    programs: dict[Any, Step]
    experiment: str = ""
    # As of the last checkpoint.
    saved_step: int = 0
    notes: Notes = dataclasses.field(default_factory=Notes)
    compile_seconds: float = 0.0
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.place = self.folder.stat()
        self.claimed = (self.folder / "config.json").exists()
        self.step = jit_step(self.task, self.plan)

    def run(self, state: TrainState, notes: Notes) -> bool:
        """Trains until the end or a stop; returns True if SIGTERM or Ctrl-C came in
        the last step."""
        self.saved_step, self.notes = int(state.step), notes
        try:
            with writing(f"run folder {self.folder}", AGAIN):
                if self._goes_on():
                    self._steps(state)
                self.checkpoints.wait()  # the status follows the disk
                self._write_status(FINISHED)
        except Interrupted:
            self.checkpoints.wait()
            self._write_status("interrupted")
            raise
        except Exception as error:
            raise self._failed(error) from error
        return self.interrupted

    def _failed(self, error: Exception) -> Exception:
        """Returns the error with the checkpoint that is kept; writes it to the
        status if the disk has room."""
        if not self._is_there():
            return self._moved()
        kept = self.checkpoints.kept()
        where = (
            "no checkpoint was saved before"
            if kept is None
            else f"the checkpoint of step {kept} is kept"
        )
        if isinstance(error, NotFiniteError):
            at_once = f"{error},".split("at step 1,")[1:]  # before any update
            mend = (
                "mend data, initial parameters or losses"
                if at_once
                else f"lower {self.task.options.rates}"
            )
            error = NotFiniteError(
                f"{error}; {where}; {mend} and train into another --out"
            )
        elif isinstance(error, StorageError):
            error = StorageError(f"{error}; {where}")
        self.saved_step = kept or 0
        self.notes = self.notes._replace(
            messages=(*self.notes.messages, " ".join(str(error).split()))
        )
        with contextlib.suppress(OSError):
            self._write_status("failed")
        return error

    def _is_there(self) -> bool:
        """Returns False if the run folder was moved or deleted, also if there is
        another one now."""
        with contextlib.suppress(OSError):
            whole = not self.claimed or (self.folder / "config.json").exists()
            return whole and os.path.samestat(self.place, self.folder.stat())
        return False

    def _moved(self) -> StorageError:
        """Returns the error of a run folder that is gone; deletes the remains of a
        save."""
        if not (self.folder / "config.json").exists():
            self.checkpoints.kept()
            self.checkpoints.discard_last(self.saved_step)
        with contextlib.suppress(OSError):
            (self.folder / "checkpoints").rmdir()
            self.folder.rmdir()
        lost = "nothing more is saved, and a save under way is lost"
        return StorageError(
            f"{self.folder} was moved or deleted while it trained: {lost}; {BACK}"
        )

    def _steps(self, state: TrainState) -> None:
        plan, options = self.plan, self.task.options
        done, pending = self.saved_step, None
        rows = local_rows(plan.mesh, options.batch_size)
        batches = self.task.batches(options.seed, done, rows)
        batch = put(next(batches), plan.mesh)
        with progress(
            options.title, total=plan.num_steps, done=done, shown=is_first()
        ) as bar:
            self._compile(state, batch, bar)
            self._write_status("running")
            began = time.perf_counter() - self.notes.train_seconds
            while self._goes_on():
                compiled_before = self.compile_seconds
                step = self._compile(state, batch, bar)
                began += self.compile_seconds - compiled_before
                state, metrics = step(state, batch)
                done += 1
                if pending is not None:
                    self._record(*pending, bar)
                pending = (done, metrics)
                if done < plan.num_steps:
                    batch = put(next(batches), plan.mesh)
                self.interrupted = self.stop.at(done)
                if done % plan.validate_every == 0 or done == plan.num_steps:
                    self._record(*pending, bar)
                    pending = None
                    self._checkpoint(state, time.perf_counter() - began, bar)
                elif self.interrupted:
                    self._record(*pending, bar)
                    notes = self.notes._replace(
                        train_seconds=time.perf_counter() - began
                    )
                    self._save(state, notes, UNJUDGED)
                if self.interrupted and self._goes_on():
                    self.checkpoints.wait()
                    saved = f"saved at step {done} of {plan.num_steps}"
                    raise _interrupted(
                        self.stop, self.task, self.folder, saved, "goes on from there"
                    )

    def _compile(self, state: TrainState, batch: Batch, bar: tqdm) -> Step:
        """Returns the step for batches of these shapes, compiled once; compile time
        is not counted as training time."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self.programs:
            began = time.perf_counter()
            with pausing(bar, "compiling"):
                step = self.step.lower(state, batch).compile()
            self.programs[shapes] = step
            self.compile_seconds += time.perf_counter() - began
        return self.programs[shapes]

    def _record(self, step: int, metrics: Metrics, bar: tqdm) -> None:
        """Writes the figures of a step, which waits for it, and counts it."""
        row, words = describe_step(self.task, self.plan, step, fetch(metrics))
        self._write({"kind": "train", "step": step, **row})
        bar.set_postfix(words, refresh=False)
        bar.update()
        for callback in self.callbacks:
            callback.on_step({"step": step, **row})

    def _checkpoint(self, state: TrainState, train_seconds: float, bar: tqdm) -> None:
        with pausing(bar, "evaluating"):
            step = int(state.step)
            row, score = validate(
                self.task, self.plan, state.params, state.opt_state, step
            )
        self._write({"kind": "validation", "step": step, **row})
        self._save(state, self.notes._replace(train_seconds=train_seconds), score)
        for callback in self.callbacks:
            callback.on_validation({"step": step, **row})

    def _save(self, state: TrainState, notes: Notes, score: float) -> None:
        require_finite_state(state)
        if not all_of(self._is_there()):
            raise self._moved()
        if self.writer is not None:
            self.writer.flush()
        self.saved_step, self.notes = int(state.step), notes
        self.checkpoints.save(self.saved_step, state, notes._asdict(), score=score)

    def _write(self, row: Row) -> None:
        if self.writer is not None:
            self.writer.write(row)

    def _goes_on(self) -> bool:
        return self.saved_step < self.plan.num_steps

    def _write_status(self, state: str) -> None:
        status = {
            "state": state,
            "experiment": self.experiment,
            "steps": self.saved_step,
            "mesh": describe_mesh(self.plan.mesh),
            "train_seconds": self.notes.train_seconds,
            "compile_seconds": self.compile_seconds,
            "messages": list(self.notes.messages),
            "environment": environment(),
        }
        if not self._is_there():
            raise self._moved()
        if is_first():
            write_json(self.folder / "status.json", status)


def _interrupted(
    stop: Stop, task: Task, folder: Path, saved: str, goes_on: str
) -> Interrupted:
    again = (
        "the same command without --overwrite"
        if task.options.overwrite
        else "the same command"
    )
    reason, code = (
        ("interrupted by Ctrl-C", CTRL_C)
        if stop.by_hand
        else ("asked to end by SIGTERM", 0)
    )
    return Interrupted(f"{folder}: {reason}, {saved}; {again} {goes_on}", code)


def _writer(
    task: Task, folder: Path, step: int
) -> contextlib.AbstractContextManager[MetricsWriter | None]:
    """Returns the writer of metrics in process 0; None in the others."""
    if not is_first():
        return contextlib.nullcontext()
    return MetricsWriter(folder, after_step=step)
