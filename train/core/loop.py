"""The training loop of one run: resumable at any moment, metrics one step late,
verified before every save."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

from ..config.errors import Interrupted, UserError, one_line
from ..config.run import LENGTHS
from ..sharding import describe_mesh, local_rows, put
from ..system.distributed import (
    Stop,
    all_of,
    fetch,
    first_does,
    is_first,
    stopping,
    wait_for_all,
)
from ..system.files import write_json
from ..system.machine import CTRL_C, environment
from ..system.terminal import pausing, progress
from .checkpoint import Checkpoints
from .evaluate import check_figures, validate
from .folder import ANEW, FINISHED, go_on, read_status, take
from .metrics import Callbacks, MetricsWriter, NotFiniteError, open_tracker
from .step import (
    Metrics,
    TrainState,
    describe_step,
    evaluated_params,
    init_state,
    jit_step,
    require_finite_state,
    state_like,
)
from .task import Batch, Log, Plan, Row, Task, no_figures

UNJUDGED = -1e30  # score of an interrupt checkpoint: below any other
Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
Programs = dict[Any, Step]  # by the shapes of a batch: texts come in several lengths


class Notes(NamedTuple):
    """Notes of a checkpoint, saved with the state.

    Attributes:
      train_seconds: of all steps so far.
      messages: of errors that ended the run before.
      best_score: the highest score of a validation. None before the first.
      unimproved: validations in a row since then.
    """

    train_seconds: float = 0.0
    messages: tuple[str, ...] = ()
    best_score: float | None = None
    unimproved: int = 0

    def validated(self, score: float) -> "Notes":
        """Returns the notes after a validation."""
        if self.best_score is None or score > self.best_score:
            return self._replace(best_score=score, unimproved=0)
        return self._replace(unimproved=self.unimproved + 1)


def train_run(
    task: Task,
    plan: Plan,
    folder: Path,
    *,
    experiment: str,
    callbacks: Sequence[Callbacks] = (),
    programs: Programs | None = None,
    log: Log = print,
) -> None:
    """Trains one run in its folder, which is claimed and locked, or continues it.
    One that has ended stays. Runs that differ by the seed share compiled ``programs``.
    """
    state_like(task, plan)  # raises if parameters do not divide over the mesh
    own = task.options.task == "own" and not folder.exists()
    if own and task.baselines is not no_figures:
        check_figures(task, init_state(task, plan, 0).params)
    with contextlib.ExitStack() as held:
        first_does(lambda: take(task, folder, experiment=experiment, held=held))
        status = read_status(folder)
        ended = status.get("steps", 0) >= plan.num_steps or _gives_up(
            task, status.get("unimproved", 0)
        )
        if status.get("state") == FINISHED and ended:
            log(_finished(task, folder, status["steps"]))
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
    programs: Programs,
    log: Log,
) -> None:
    """Restores, steps, validates and saves, until the last step. Writes status.json."""
    num_steps = plan.num_steps
    with stopping() as stop, Checkpoints(folder / "checkpoints", log=log) as saves:
        state, notes = _restore(task, plan, folder, saves, log)
        done = int(state.step)
        status = _Status(folder, experiment, plan, done, notes)
        step = jit_step(task, plan)
        rows = local_rows(plan.mesh, task.options.batch_size)
        batches = task.batches(task.options.seed, done, rows)
        with (
            _journal(task, plan, folder, experiment, done, callbacks) as journal,
            status.failing(task, saves),
        ):
            if done < num_steps:
                status.write("running")
            pending: tuple[int, Metrics] | None = None
            interrupted = False
            began = time.perf_counter() - notes.train_seconds

            while done < num_steps and not _gives_up(task, notes.unimproved):
                batch = put(next(batches), plan.mesh)
                program, seconds = _compile(step, programs, state, batch, journal.bar)
                status.compile_seconds += seconds
                began += seconds  # compiling is not training
                state, metrics = program(state, batch)
                done += 1

                # One step late: reading the figures of a step waits for it.
                if pending is not None:
                    journal.note_step(*pending)
                pending = (done, metrics)
                interrupted = stop.at(done)
                validates = done % plan.validate_every == 0 or done == num_steps
                if not validates and not interrupted:
                    continue
                journal.note_step(*pending)
                pending = None
                notes = notes._replace(train_seconds=time.perf_counter() - began)

                row: Row = {}
                score = UNJUDGED
                if validates:
                    row, score = journal.validate(state, done)
                    notes = notes.validated(score)

                require_finite_state(state)
                status.require_place()
                journal.flush()
                status.saved(done, notes)
                saves.save(done, state, notes._asdict(), score=score)
                if validates:
                    journal.tell("on_validation", {"step": done, **row})
                if interrupted and done < num_steps:
                    saves.wait()
                    where = f"saved at step {done} of {num_steps}"
                    raise _interrupted(stop, task, folder, where, "goes on from there")

            saves.wait()  # the status follows the disk
            status.write(FINISHED)
            if done < num_steps:
                log(_early(folder, done, plan, notes))

        if interrupted or stop.at(num_steps + 1):
            raise _interrupted(stop, task, folder, "trained to the end", "goes on")
    for callback in callbacks:
        callback.on_end(folder)


def _restore(
    task: Task, plan: Plan, folder: Path, saves: Checkpoints, log: Log
) -> tuple[TrainState, Notes]:
    """Returns the state and notes of the newest checkpoint, or those before step 1."""
    newest = saves.newest(state_like(task, plan))
    if (folder / "config.json").exists():
        first_does(lambda: go_on(task, folder))
    if newest is None:
        return init_state(task, plan, task.options.seed), Notes()
    step, state, saved = newest
    if step < plan.num_steps:
        log(f"going on from the checkpoint of step {step}")
    kept = {name: saved[name] for name in Notes._fields if name in saved}
    return state, Notes(**kept)._replace(messages=tuple(saved["messages"]))


def _compile(
    step: Any, programs: Programs, state: TrainState, batch: Batch, bar: tqdm
) -> tuple[Step, float]:
    """Returns the step for batches of these shapes, compiled once, and the seconds
    that took."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
    if shapes in programs:
        return programs[shapes], 0.0
    began = time.perf_counter()
    with pausing(bar, "compiling"):
        programs[shapes] = step.lower(state, batch).compile()
    return programs[shapes], time.perf_counter() - began


class _Journal(NamedTuple):
    """Figures of a run, for its metrics.jsonl, the progress bar and callbacks."""

    task: Task
    plan: Plan
    writer: MetricsWriter | None  # in process 0
    bar: tqdm
    callbacks: Sequence[Callbacks]

    def note_step(self, step: int, metrics: Metrics) -> None:
        """Writes the figures of a step, which waits for it, and counts it."""
        row, words = describe_step(self.task, self.plan, step, fetch(metrics))
        self.write("train", step, row)
        self.bar.set_postfix(words, refresh=False)
        self.bar.update()
        self.tell("on_step", {"step": step, **row})

    def validate(self, state: TrainState, step: int) -> tuple[Row, float]:
        """Writes the figures of a validation. Returns them with the score."""
        with pausing(self.bar, "evaluating"):
            params = evaluated_params(self.plan, state)
            row, score = validate(self.task, self.plan, params, state.opt_state, step)
        self.write("validation", step, row)
        return row, score

    def write(self, kind: str, step: int, row: Row) -> None:
        if self.writer is not None:
            self.writer.write({"kind": kind, "step": step, **row})

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def tell(self, event: str, row: Row) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(row)


@contextlib.contextmanager
def _journal(
    task: Task,
    plan: Plan,
    folder: Path,
    experiment: str,
    step: int,
    callbacks: Sequence[Callbacks],
) -> Iterator[_Journal]:
    """Opens the journal of a run that goes on after a step."""
    total = plan.num_steps
    with contextlib.ExitStack() as stack:
        writer = None
        if is_first():
            writer = stack.enter_context(MetricsWriter(folder, after_step=step))
            trackers = [
                open_tracker(
                    name, folder, task.options, experiment=experiment, after_step=step
                )
                for name in task.options.log
            ]
            callbacks = [*callbacks, *map(stack.enter_context, trackers)]
        bar = progress(task.options.title, total=total, done=step, shown=is_first())
        stack.enter_context(bar)
        yield _Journal(task, plan, writer, bar, callbacks)


class _Status:
    """status.json of a run, as of its last checkpoint. A run folder that was moved or
    deleted gets nothing more."""

    def __init__(
        self, folder: Path, experiment: str, plan: Plan, step: int, notes: Notes
    ):
        self.compile_seconds = 0.0
        self._folder = folder
        self._experiment = experiment
        self._plan = plan
        self._place = folder.stat()
        self._claimed = (folder / "config.json").exists()
        self.saved(step, notes)

    def saved(self, step: int, notes: Notes) -> None:
        """Takes a checkpoint as the last one."""
        self._step = step
        self._notes = notes

    def write(self, state: str) -> None:
        """Writes status.json."""
        if not self._is_there():
            raise self._moved()
        status = {
            "state": state,
            "experiment": self._experiment,
            "steps": self._step,
            "num_steps": self._plan.num_steps,
            "mesh": describe_mesh(self._plan.mesh),
            "train_seconds": self._notes.train_seconds,
            "compile_seconds": self.compile_seconds,
            "messages": list(self._notes.messages),
            "unimproved": self._notes.unimproved,
            "environment": environment(),
        }
        if is_first():
            write_json(self._folder / "status.json", status)

    def require_place(self) -> None:
        """Raises UserError in all processes if one of them misses the run folder."""
        if not all_of(self._is_there()):
            raise self._moved()

    @contextlib.contextmanager
    def failing(self, task: Task, saves: Checkpoints) -> Iterator[None]:
        """Names the checkpoint that is kept in an error of training, and writes both
        to the status if the disk has room."""
        try:
            yield
        except Interrupted:
            self.write("interrupted")
            raise
        except Exception as error:
            if not self._is_there():
                self._delete_remains(saves)
                # of files that are elsewhere now
                if isinstance(error, OSError):
                    raise self._moved() from error
                raise
            kept = saves.kept()
            where = f"the checkpoint of step {kept} is kept"
            error.add_note("no checkpoint was saved before" if kept is None else where)
            if isinstance(error, NotFiniteError):
                error.add_note(_mend(error, task))
            messages = (*self._notes.messages, one_line(error))
            self.saved(kept or 0, self._notes._replace(messages=messages))
            with contextlib.suppress(OSError):
                self.write("failed")
            raise

    def _is_there(self) -> bool:
        """Returns False if the folder was moved or deleted, also if there is another
        one now."""
        with contextlib.suppress(OSError):
            whole = not self._claimed or (self._folder / "config.json").exists()
            return whole and os.path.samestat(self._place, self._folder.stat())
        return False

    def _moved(self) -> UserError:
        return UserError(
            f"{self._folder} was moved or deleted while it trained: nothing more is"
            " saved, and a save under way is lost; move it back and give the same"
            " command again, or `unroll-jax run` with its new place"
        )

    def _delete_remains(self, saves: Checkpoints) -> None:
        """Deletes a save that ended where the run folder was."""
        if not (self._folder / "config.json").exists():
            saves.kept()
            saves.discard_last(self._step)
        with contextlib.suppress(OSError):
            (self._folder / "checkpoints").rmdir()
            self._folder.rmdir()


def _gives_up(task: Task, unimproved: int) -> bool:
    """Returns True if so many validations without a better one end a run."""
    return unimproved >= (task.options.early_stop or math.inf)


def _early(folder: Path, step: int, plan: Plan, notes: Notes) -> str:
    return (
        f"{folder}: stopped at step {step} of {plan.num_steps}, as {notes.unimproved}"
        " validation(s) in a row were no better (--early-stop)"
    )


def _finished(task: Task, folder: Path, steps: int) -> str:
    """Returns the line on a run that has ended, with the way to more steps if there is
    one."""
    given = [name for name in LENGTHS if getattr(task.options, name, None) is not None]
    more = f"for more steps, raise --{''.join(given[:1])}"
    if task.options.tied_to_end:
        more = (
            "no more steps can follow, as its schedule or warm-up depend on the last"
            " one"
        )
    ended = f"{folder}: finished already after {steps} steps"
    return f"{ended}; {more}; to train anew, {ANEW}"


def _mend(error: NotFiniteError, task: Task) -> str:
    """Returns the way out of numbers that are not finite."""
    mend = f"lower {task.options.rates}"
    if str(error).partition(",")[0].endswith(" at step 1"):  # before any update
        mend = "mend data, initial parameters or losses"
    return f"{mend} and train into another --out"


def _interrupted(
    stop: Stop, task: Task, folder: Path, saved: str, goes_on: str
) -> Interrupted:
    again = "the same command"
    if task.options.overwrite:
        again += " without --overwrite"
    reason, code = "asked to end by SIGTERM", 0
    if stop.by_hand:
        reason, code = "interrupted by Ctrl-C", CTRL_C
    return Interrupted(f"{folder}: {reason}, {saved}; {again} {goes_on}", code)
