"""Checkpoints of a run: asynchronous, atomic, verified when read."""

import contextlib
import errno
import gc
import json
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp
import tensorstore
from jax.sharding import SingleDeviceSharding

from ..config.errors import UserError, one_line
from ..system.distributed import all_of, digest, is_first, wait_for_all
from ..system.files import (
    check_regular_below,
    read_regular,
    steps_in,
    strict_json,
    system_errors,
)
from .task import Log

T = TypeVar("T")

NEWEST_KEPT = 2  # besides the best
CLOCK = 0.1  # seconds by which a file system's clock may be late
PATIENCE = 10.0  # seconds for all writes that Orbax has given up
UNREADABLE = float("-inf")  # score of a checkpoint whose notes cannot be read
MISFIT = "pass the task, or put back the config.json and model.json, of its training"
# Errors of a system that cannot read a file, whatever it holds.
UNREACHABLE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ESTALE)
TELL = sys.unraisablehook
# Messages of reads and writes that Orbax has given up, when they are freed. The manager
# raises the error before.
GIVEN_UP = ("Event loop is closed", "Encountered error while reading array index")
# Orbax logs its work, and tracebacks of its threads, by absl. The manager raises the
# same errors.
logging.getLogger("absl").setLevel(logging.CRITICAL)


def _quiet(raised: Any) -> None:
    if not str(raised.exc_value).startswith(GIVEN_UP):
        TELL(raised)


# For good: Python crashes if a hook is replaced, and so freed, while a thread of
# TensorStore is about to call it.
sys.unraisablehook = _quiet


def _not_a_lost_write(record: logging.LogRecord) -> bool:
    """False for the log of a write that failed after another one, which the manager
    raises."""
    return "exception was never retrieved" not in record.getMessage()


def _wait_for_given_up_writes() -> None:
    """Waits for the threads of a save of this process that failed. Orbax gives it up at
    the first write that fails, while the others go on and would make new files later.
    Writes that hang, as on a disk of a network, are left.
    """
    end = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("orbax."):
            with contextlib.suppress(Exception):  # join raises the error of the write
                thread.join(end - time.monotonic())  # at once if negative


class Stored(NamedTuple):
    """A checkpoint that was read."""

    step: int
    state: Any
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run folder: the two newest and the best are kept. A
    checkpoint is a state (a pytree of arrays) and a JSON object of notes, among them a
    checksum of both. Best is the highest ``score`` given to `save`.
    """

    def __init__(self, folder: Path, *, read_only: bool = False, log: Log = print):
        """Opens the checkpoints under ``folder``. Unless ``read_only`` it is made, and
        remains of killed saves are deleted."""
        self._folder = folder.absolute()
        steps_in(folder)  # raises for a file
        # Orbax would wait for a pipe
        check_regular_below(self._folder, mend="restore it, or delete that checkpoint")
        self._read_only = read_only
        self._log = log
        options = ocp.CheckpointManagerOptions(
            create=not read_only,
            preservation_policy=_NewestAndBest(self._score),
            # Else threads of Orbax wait for minutes for a folder that cannot be made.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        self._scores: dict[int, float] = {}
        self._began = math.inf  # when the last save began
        with system_errors(self._folder):
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        if not read_only:
            # Orbax would do so in a thread, and even later than `close`: among the
            # saves of the next Checkpoints.
            self._delete_remains()

    def __enter__(self) -> "Checkpoints":
        """Returns itself. Leaving the context waits for the last save."""
        logging.getLogger("asyncio").addFilter(_not_a_lost_write)
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Waits for the last save: without it, an asynchronous save is lost when the
        process ends."""
        try:
            if kind is None:
                with system_errors(self._folder):
                    self._manager.close()
            else:
                with contextlib.suppress(Exception):
                    self._manager.close()
        finally:
            if kind is not None:
                # errors of a failed save are reported here, or when the process ends
                gc.collect()
            logging.getLogger("asyncio").removeFilter(_not_a_lost_write)

    def save(
        self, step: int, state: Any, notes: dict[str, Any], *, score: float
    ) -> None:
        """Starts writing a checkpoint, and returns when the state may be donated."""
        self.wait()
        notes = {**notes, "step": step, "score": score}
        notes["digest"] = digest(state, notes)
        self._scores[step] = score
        self._began = time.time()
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), notes=ocp.args.JsonSave(notes)
        )
        with system_errors(self._folder):
            self._manager.save(step, args=arguments, force=True)

    def wait(self) -> None:
        """Returns when the last save is complete. Raises OSError if the disk refused
        it."""
        with system_errors(self._folder):
            self._manager.wait_until_finished()

    def kept(self) -> int | None:
        """Returns the step of the newest complete checkpoint, or None. Deletes the
        remains of a failed save."""
        with contextlib.suppress(Exception):
            self._manager.wait_until_finished()
        _wait_for_given_up_writes()
        # else objects of a failed save's threads print errors when the process ends
        gc.collect()
        self._delete_remains()
        return max(steps_in(self._folder), default=None)

    def _delete_remains(self) -> None:
        if is_first():
            for left in self._folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)

    def discard_last(self, step: int) -> None:
        """Deletes the checkpoint of the last save. It ended in a folder that is no
        longer the run's."""
        with contextlib.suppress(OSError):
            if (self._folder / str(step)).stat().st_ctime > self._began - CLOCK:
                shutil.rmtree(self._folder / str(step))

    def newest(self, like: Any) -> Stored | None:
        """Returns the newest checkpoint that can be read, as (step, state, notes), or
        None. A damaged one is named in the log and, unless read-only, moved to
        ``damaged/`` next to the checkpoints. Arrays get the shardings of ``like``, a
        state of the same structure or its shapes. UserError for another model's.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        checkpoint = self._first_readable(steps, like)
        if steps and checkpoint is None:
            self._log(
                f"no checkpoint in {self._folder} can be read: starting again from"
                " step 0"
            )
        return checkpoint

    def best(self, like: Any) -> Stored:
        """Returns the readable checkpoint of highest score, as `newest`. Raises
        UserError also if there is none. A run that goes on deletes checkpoints while
        they are read: then those that it has by now are read.
        """
        while True:
            steps = steps_in(self._folder)
            scores = {step: self._score(step) for step in steps}
            for step in steps:
                if scores[step] == UNREADABLE:
                    self._set_aside(step, "its notes are missing or damaged")
                    del scores[step]
            best_first = sorted(scores, key=lambda step: scores[step], reverse=True)
            checkpoint = self._first_readable(best_first, like)
            if checkpoint is not None:
                return checkpoint
            if all_of(steps_in(self._folder) == steps):
                raise UserError(
                    f"{self._folder} holds no checkpoint that can be read; train the"
                    " run again"
                )
            self._manager.reload()

    def _first_readable(self, steps: Sequence[int], like: Any) -> Stored | None:
        for step in steps:
            verified = self._verify(step, like)
            if not isinstance(verified, str):
                return Stored(step, *verified)
            self._set_aside(step, verified)
        return None

    def _verify(self, step: int, like: Any) -> tuple[Any, dict[str, Any]] | str:
        """Returns a checkpoint's state and notes, or the reason why it cannot be read.
        Orbax's restore and the checksum are collective: one failed process would leave
        the others waiting. So the processes first share out the files and read them,
        and each stage is begun by all or by none.
        """
        arrays = self._folder / str(step) / "state"
        _, reason = _attempt(lambda: _read_arrays(arrays))
        if reason is not None:
            return reason
        misfit, reason = _attempt(lambda: _misfit(arrays, like))
        if misfit:
            raise UserError(
                f"checkpoint {step} in {self._folder} is of another model: {misfit}"
            )
        if reason is not None:
            return reason
        contents, reason = _attempt(lambda: self._read(step, like))
        if reason is not None or contents is None:
            return reason or "it is empty"
        if digest(*contents) != contents[1]["digest"]:
            return "its contents do not match their checksum"
        of = contents[1].get("step", step)
        return (
            contents if of == step else f"it is a copy of the checkpoint of step {of}"
        )

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        target = jax.tree.map(_target, like)
        restored: Any = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target), notes=ocp.args.JsonRestore()
            ),
        )
        if "digest" not in restored.notes:
            raise ValueError("its notes hold no checksum")
        return restored.state, restored.notes

    def _score(self, step: int) -> float:
        """Returns the score given to `save`, by any process, or the lowest if the notes
        cannot be read."""
        if step not in self._scores:
            score = _score_of(self._folder, step)
            if score == UNREADABLE:
                return score
            self._scores[step] = score
        return self._scores[step]

    def _set_aside(self, step: int, reason: str) -> None:
        if self._read_only:
            if not (self._folder / str(step)).exists():  # deleted by its run
                return
            self._log(
                f"checkpoint {step} cannot be read ({reason}), falling back to another"
            )
            return
        aside = self._folder.parent / "damaged" / str(step)
        number = 0
        while aside.exists():
            number += 1
            aside = aside.with_name(f"{step}.{number}")
        if is_first():
            aside.parent.mkdir(exist_ok=True)
            shutil.move(self._folder / str(step), aside)
        wait_for_all(f"checkpoint {step} is set aside")
        self._scores.pop(step, None)
        self._manager.reload()
        self._log(
            f"checkpoint {step} is damaged ({reason}); moved to {aside}, falling back"
            " to the one before"
        )


def best_step(folder: Path) -> int | None:
    """Returns the step of the complete checkpoint of highest score, or None without
    one."""
    return max(steps_in(folder), key=lambda step: _score_of(folder, step), default=None)


def _score_of(folder: Path, step: int) -> float:
    """Returns the score in the notes of a checkpoint, or the lowest if they cannot be
    read."""
    path = folder / str(step) / "notes" / "metadata"
    try:
        return float(strict_json(read_regular(path, where=str(path)))["score"])
    except (UserError, ValueError, KeyError, TypeError):
        return UNREADABLE


class _NewestAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest and the best. Unlike Orbax's BestN, it knows the scores that
    an earlier process saved."""

    def __init__(self, score: Callable[[int], float]):
        self._score = score

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """Returns True for each checkpoint to keep. They come in the order of their
        steps."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*steps[-NEWEST_KEPT:], max(steps, key=self._score)}
        return [step in kept for step in steps]


def _attempt(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """Returns the result of reading, and the reason if any process failed to read.
    Either may be None."""
    result, reason = None, None
    try:
        with system_errors():
            result = read()
    except MemoryError:
        raise
    # Orbax and TensorStore raise many kinds for damaged files
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNREACHABLE:
            raise
        reason = one_line(error)[:200]
    if all_of(reason is None):
        return result, None
    return result, reason or "another process cannot read it"


def _read_arrays(folder: Path) -> None:
    """Reads the arrays one at a time, shared out over the processes. Damage raises
    here. Orbax reads all at once: when one fails, the threads of the others print
    tracebacks.
    """
    for shapes in (folder / "array_metadatas").glob("*"):
        json.loads(shapes.read_text(encoding="utf-8"))
    store = {"driver": "ocdbt", "base": f"file://{folder}/"}
    keys = tensorstore.KvStore.open(store).result().list().result()
    paths = sorted(
        key.decode().removesuffix(".zarray") for key in keys if key.endswith(b".zarray")
    )
    for path in paths[jax.process_index() :: jax.process_count()]:
        tensorstore.open(
            {"driver": "zarr", "kvstore": {**store, "path": path}}
        ).result().read().result()


def _misfit(folder: Path, like: Any) -> str:
    """Describes the first array whose shape or dtype differs from ``like``, and the
    way out. Empty if all fit. Orbax's threads would print tracebacks for a shape, and
    convert a dtype without a word.
    """
    # its annotation knows only the paths of etils
    handler: Any = ocp.StandardCheckpointHandler()
    there = _described(handler.metadata(folder))
    here = _described(like)
    # parameters first: what the optimiser keeps follows them
    names = sorted({*there, *here}, key=lambda name: ("params" not in name, name))
    mend = MISFIT
    for name in names:
        old = there.get(name)
        new = here.get(name)
        if old is None or new is None or old.shape != new.shape:
            shapes = [None if one is None else one.shape for one in (old, new)]
            if name == "key":
                mend = "run with JAX_DEFAULT_PRNG_IMPL as in its training"
            return f"{name} is {shapes[0]} there, {shapes[1]} here; {mend}"
        if old.dtype != new.dtype:
            if 8 in (old.dtype.itemsize, new.dtype.itemsize):
                mend = f"run with JAX_ENABLE_X64 as in its training, or {mend}"
            return f"{name} is {old.dtype} there, {new.dtype} here; {mend}"
    return ""


def _described(state: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of every array, by the names of messages."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype
        )
        for path, leaf in jax.tree.leaves_with_path(state)
    }


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the array for Orbax to make. Without a sharding, it would take the one
    of the save."""
    where = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
