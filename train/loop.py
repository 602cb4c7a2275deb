"""The training loop of one run: resumable at any moment, metrics one step late, verified before every save."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from train.checkpoint import Checkpoints
from train.environment import environment
from train.errors import Interrupted, StorageError
from train.interrupts import CTRL_C
from train.memory import require_memory, step_size
from train.metrics import MetricsWriter, write_json
from train.processes import Stop, fetch, is_first, stopping
from train.profile import Profiler, parse_profile, profiling
from train.progress import Progress
from train.recipe import UNJUDGED, NotFiniteError, Recipe, require_finite_state
from train.sharding import Placed, describe_mesh, place
from train.storage import AGAIN, writing

__all__ = ["train"]

Log = Callable[[str], None]

_LESS_MEMORY = "raise --accumulate or pass --remat everything; or lower --batch-size, into another --out"

_LOST = "metrics.jsonl lacks"  # how the message that rows of it are gone begins


class Notes(NamedTuple):
    """What a checkpoint says beside the state."""

    train_seconds: float = 0.0
    collapses: int = 0
    messages: tuple[str, ...] = ()


def train(recipe: Recipe, folder: Path, *, profile: str | None = None, log: Log) -> None:
    """Trains, or goes on with, the run in ``folder``, until its last step or a collapse; writes status.json.

    Args:
      recipe: what to train.
      folder: of the run.
      profile: STEP:COUNT, which steps to write a trace of into the folder; steps that are done already leave none.
      log: where messages go.

    Raises:
      Interrupted: if SIGTERM or Ctrl-C asked to end; a checkpoint of the step it came in is saved.
      UserError: if the parameters do not divide over the mesh; if the loss, a gradient, a validation loss or an
        array of the state is not finite, or the disk refuses, in which case the checkpoints before stay; if the run has
        no such steps.
    """
    placed, profiled = place(recipe), parse_profile(profile, num_steps=recipe.num_steps)
    with stopping() as stop:
        with Checkpoints(folder / "checkpoints", log=log) as checkpoints:
            newest = checkpoints.newest(placed.like)
            if newest is None:
                for remark in recipe.remarks:
                    log(remark)
                state, notes = placed.init(), Notes()
            else:
                step, state, found = newest
                notes = Notes(found["train_seconds"], found["collapses"], tuple(found["messages"]))
                if step < recipe.num_steps:
                    log(f"going on from the checkpoint of step {step}")
            with (
                _writer(folder, int(state.step)) as writer,
                profiling(profiled, folder / "profile", log) as profiler,
            ):
                if writer is not None:
                    notes = _told(notes, writer.lost, int(state.step), folder, log)
                asked = _Loop(recipe, placed, folder, checkpoints, writer, stop, profiler).run(state, notes)
        if asked or stop.at(recipe.num_steps + 1):  # the last save has been waited for
            raise _interrupted(stop, folder, "trained to the end; the same command goes on")


class _Loop:
    """The moving parts of one call of `train`."""

    def __init__(
        self,
        recipe: Recipe,
        placed: Placed,
        folder: Path,
        checkpoints: Checkpoints,
        writer: MetricsWriter | None,
        stop: Stop,
        profiler: Profiler,
    ):
        self._recipe, self._placed, self._folder = recipe, placed, folder
        self._checkpoints, self._writer, self._stop, self._profiler = checkpoints, writer, stop, profiler
        # As of the last checkpoint.
        self._saved_step, self._notes, self._compile_seconds = 0, Notes(), 0.0
        # By the shapes of a batch: those of text come in several lengths.
        self._compiled: dict[Any, Callable[[Any, Any], tuple[Any, Any]]] = {}
        self._asked = False

    def run(self, state: Any, notes: Notes) -> bool:
        """Whether SIGTERM or Ctrl-C asked to end in the last step."""
        self._saved_step, self._notes = int(state.step), notes
        try:
            with writing(f"run folder {self._folder}", AGAIN):
                if self._goes_on():
                    self._steps(state)
                self._checkpoints.wait()  # a status must not say more than the disk holds
                self._write_status("stopped" if self._gave_up() else "finished")
        except Interrupted:
            self._checkpoints.wait()
            self._write_status("interrupted")
            raise
        except Exception as error:
            raise self._failed(error) from error
        return self._asked

    def _failed(self, error: Exception) -> Exception:
        """The error, told with what is kept; the status says so too, where the disk takes it."""
        kept = self._checkpoints.kept()
        where = "no checkpoint was saved before" if kept is None else f"the checkpoint of step {kept} is kept"
        if isinstance(error, NotFiniteError):
            error = NotFiniteError(f"{error}; {where}; lower {self._recipe.rates} and train into another --out")
        elif isinstance(error, StorageError):
            error = StorageError(f"{error}; {where}")
        self._saved_step = kept or 0
        self._notes = self._notes._replace(messages=(*self._notes.messages, " ".join(str(error).split())))
        with contextlib.suppress(OSError):
            self._write_status("failed")
        return error

    def _steps(self, state: Any) -> None:
        recipe, done, pending = self._recipe, self._saved_step, None
        batches = map(self._placed.put, recipe.batches(done))
        batch = next(batches)
        with Progress(recipe.title, total=recipe.num_steps, done=done, shown=is_first()) as bar:
            self._compile(state, batch, bar)
            self._write_status("running")
            began = time.perf_counter() - self._notes.train_seconds
            self._profiler.at(done, state)
            while self._goes_on():
                compiled_before = self._compile_seconds
                step = self._compile(state, batch, bar)
                began += self._compile_seconds - compiled_before
                state, metrics = step(state, batch)
                done += 1
                self._profiler.at(done, state)
                if pending is not None:
                    self._record(*pending, bar)
                pending = (done, metrics)
                if done < recipe.num_steps:
                    batch = next(batches)
                self._asked = self._stop.at(done)
                if done % recipe.validate_every == 0 or done == recipe.num_steps:
                    self._record(*pending, bar)
                    pending = None
                    self._checkpoint(state, time.perf_counter() - began, bar)
                elif self._asked:
                    self._record(*pending, bar)
                    self._keep(state, time.perf_counter() - began)
                if self._asked and self._goes_on():
                    self._checkpoints.wait()
                    raise _interrupted(
                        self._stop,
                        self._folder,
                        f"saved at step {done} of {recipe.num_steps}; the same command goes on from there",
                    )

    def _compile(self, state: Any, batch: Any, bar: Progress) -> Callable[[Any, Any], tuple[Any, Any]]:
        """The step for batches of these shapes, compiled once for each; that time is no time of training."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self._compiled:
            began = time.perf_counter()
            with bar.pausing("compiling"):
                step = self._placed.step.lower(state, batch).compile()
            require_memory(step_size(step), "a step", _LESS_MEMORY)
            self._compiled[shapes] = step
            self._compile_seconds += time.perf_counter() - began
        return self._compiled[shapes]

    def _record(self, step: int, metrics: Any, bar: Progress) -> None:
        """Writes a step's figures, which are there once it is done, and counts it: both are shown together."""
        row, words = self._recipe.describe(step, fetch(metrics))
        self._write({"kind": "train", "step": step, **row})
        bar.words(words)
        bar.step()

    def _checkpoint(self, state: Any, train_seconds: float, bar: Progress) -> None:
        with bar.pausing("evaluating"):
            validation, step = self._recipe.validate(state), int(state.step)
        self._write({"kind": "validation", "step": step, **validation.row})
        messages, collapses = self._notes.messages, 0
        if validation.collapse is not None:
            messages = (*messages, f"step {step}: {validation.collapse}")
            collapses = self._notes.collapses + 1
            bar.write(messages[-1])
        self._save(state, Notes(train_seconds, collapses, messages), validation.score)

    def _keep(self, state: Any, train_seconds: float) -> None:
        """A checkpoint to go on from, which is never the best."""
        self._save(state, self._notes._replace(train_seconds=train_seconds), UNJUDGED)

    def _save(self, state: Any, notes: Notes, score: float) -> None:
        require_finite_state(state)
        if self._writer is not None:
            self._writer.flush()
        self._saved_step, self._notes = int(state.step), notes
        self._checkpoints.save(self._saved_step, state, notes._asdict(), score=score)

    def _write(self, row: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(row)

    def _goes_on(self) -> bool:
        return self._saved_step < self._recipe.num_steps and not self._gave_up()

    def _gave_up(self) -> bool:
        return self._recipe.stop_on_collapse and self._notes.collapses >= 2

    def _write_status(self, state: str) -> None:
        status = {
            "state": state,
            "steps": self._saved_step,
            "mesh": describe_mesh(self._recipe.mesh),
            "train_seconds": self._notes.train_seconds,
            "compile_seconds": self._compile_seconds,
            "messages": list(self._notes.messages),
            "environment": environment(),
        }
        if is_first():
            write_json(self._folder / "status.json", status, or_in_place=state == "failed")


def _told(notes: Notes, lost: int, step: int, folder: Path, log: Log) -> Notes:
    """Says, in the log and for good, that rows of metrics are gone; the state does not depend on them.

    What was told when an earlier process went on is not told again; where more is lost, or less, that takes its place.
    """
    message = f"{_LOST} {lost} of the rows of training: it was deleted or cut; what they recorded is lost"
    if message in notes.messages:
        return notes
    others = tuple(known for known in notes.messages if not known.startswith(_LOST))
    if not lost:
        return notes._replace(messages=others)
    log(
        f"{folder}: {message} (the checkpoint that the run goes on from is of step {step}); "
        "restore the file, with the run ended, to have them back"
    )
    return notes._replace(messages=(*others, message))


def _interrupted(stop: Stop, folder: Path, saved: str) -> Interrupted:
    if stop.by_hand:
        return Interrupted(f"{folder}: interrupted by Ctrl-C, {saved}", CTRL_C)
    return Interrupted(f"{folder}: asked to end by SIGTERM, {saved}")


def _writer(folder: Path, after_step: int) -> contextlib.AbstractContextManager[MetricsWriter | None]:
    """The first process writes for all."""
    return MetricsWriter(folder, after_step=after_step) if is_first() else contextlib.nullcontext()
