"""Run folders: their config.json and status.json, and the run that they belong to."""

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

from unroll_jax import __version__

from ..config.errors import (
    PLAIN,
    UNSHOWN,
    UserError,
    kind_of,
    on_command_line,
    require_extra,
)
from ..config.options import differences, from_json, to_json
from ..config.run import FREE, LENGTHS, PLACE, RunConfig
from ..registry import FROM_PYTHON, PASS_IT, TASKS
from ..sharding import make_mesh
from ..system.distributed import first_does
from ..system.files import (
    PARTIAL,
    check_out,
    locked,
    no_run,
    read_object,
    require_writable,
    steps_in,
    write_json,
)
from .metrics import json_object
from .task import Row, Task

FACTS = "model.json"  # of the data, for the model
# of the run folders that this package writes
VERSION = ".".join(__version__.split(".")[:2])
# By version: the older ones whose run folders it reads.
READS: dict[str, tuple[str, ...]] = {"0.3": ()}
FINISHED = "finished"  # the state of a run that is not trained any more
ANEW = (
    "pass another --out, or --overwrite (overwrite=True from Python), which deletes"
    " that run"
)
STATUS = {"state": str, "steps": int, "messages": list}  # the fields that are read
RESUME = (
    "restore it, or delete it and give the command of the run again: it goes on from"
    " its checkpoints"
)


def default_folder(config: RunConfig, experiment: str) -> Path:
    """Returns runs/EXPERIMENT/..., the same for the same command, which so continues
    an interrupted run."""
    return Path("runs") / experiment / config.label()


def identity(experiment: str, config: RunConfig, fingerprint: Row) -> Row:
    """Returns the identity of a run: its configuration, with defaults for `FREE`
    options, and the data's figures."""
    fixed = dataclasses.replace(config, **FREE)
    return {
        "version": VERSION,
        "experiment": experiment,
        "task": config.task,
        **to_json(fixed),
        "found": json_object(fingerprint, "fingerprint"),
    }


def read_recorded(folder: Path) -> tuple[str, str, Row]:
    """Returns experiment, task and options of the config.json of a run of this
    version. Options are not checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(no_run(folder))
    values = _stored(folder)
    if "format" in values:
        raise UserError(
            f"{folder} is an export, not a run folder; name the run folder that it was"
            " exported from"
        )
    kinds = {"experiment": str, "task": str, "found": dict}
    head = {name: values.pop(name, None) for name in ("version", *kinds)}
    for name, kind in kinds.items():
        if not isinstance(head[name], kind):
            raise _unknown(path, name, head[name])
    return head["experiment"], head["task"], values


def _stored(folder: Path) -> Row:
    """Returns the values of a config.json, unless it is of the run of a version that
    is not read."""
    values = read_object(folder / "config.json")
    version = values.get("version", "0.1")
    if "format" not in values and version not in (VERSION, *READS[VERSION]):
        raise UserError(
            f"{folder} was written by version {version} of unroll_jax, this is"
            f" {VERSION}; use that one, or train again"
        )
    return values


def read_config(
    folder: Path, kind: type[RunConfig] | None = None, *, free: bool = False
) -> tuple[str, RunConfig]:
    """Returns the experiment and the configuration of a run, with `FREE` options as
    stored or at their defaults. ``kind`` is the configuration's class if the task is
    not registered.
    """
    path = folder / "config.json"
    experiment, name, values = read_recorded(folder)
    config = checked(
        from_json(config_type(name, kind, path), values, source=path), path
    )
    usual = FREE
    if free:
        usual = {name: FREE[name] for name in PLACE}
    return experiment, dataclasses.replace(config, **usual)


def config_type(name: str, kind: type[RunConfig] | None, path: Path) -> type[RunConfig]:
    """Returns the class of the options of a task that a file names: the given one,
    or the registered one."""
    if kind is not None and kind.task != name:
        raise UserError(
            f"{path} is of the task {name!r}, got one of {kind.task!r}; {PASS_IT}"
        )
    if kind is None and name not in TASKS:
        way_out = f"if it is your own, pass the task itself {FROM_PYTHON}"
        raise _unknown(path, "task", name, way_out)
    return kind or TASKS[name].config


def checked(config: RunConfig, path: Path) -> RunConfig:
    """Returns a configuration that was read from a file, once its rules hold."""
    try:
        with on_command_line(only=()):
            config.check()
    except UserError as error:
        raise UserError(f"{path} was changed: {error}; put the value back") from error
    return config


def read_status(folder: Path) -> Row:
    """Reads status.json of a run, empty where there is none."""
    path = folder / "status.json"
    if not path.exists():
        return {}
    status = read_object(path, mend=RESUME)
    for name, kind in STATUS.items():
        if not isinstance(status.get(name), kind):
            raise UserError(f"{path} is damaged ({name}); {RESUME}")
    return status


def take(
    task: Task, folder: Path, *, experiment: str, held: contextlib.ExitStack
) -> None:
    """Claims a folder for a task, or checks that it belongs to it, and locks it until
    ``held`` closes. An error leaves nothing behind and deletes nothing: with
    ``overwrite`` the old run is deleted last. A run that is there stays as it is. See
    `go_on`.
    """
    check_folder(task, folder, experiment)
    require_writable(folder)
    if task.options.overwrite:
        clear(folder)
    facts: Row | None = None
    if not (folder / FACTS).exists():
        facts = json_object(task.spec(), "spec")
    if not (folder / "config.json").exists():
        description = identity(experiment, task.options, task.fingerprint())
        description |= _latest(task.options)
        begin(folder, "config.json", description, what="run")
    held.enter_context(locked(folder))
    if facts is not None:
        write_json(folder / FACTS, facts)
    # What later commands read is read once, before the first step.
    read_config(folder, type(task.options))
    read_object(folder / FACTS)


def go_on(task: Task, folder: Path) -> None:
    """Writes the latest options and the new length of a run that goes on, for a later
    `run FOLDER`, and deletes its evaluation. Called once its checkpoint is read: one
    that does not fit leaves the run as it was.
    """
    stored = read_object(folder / "config.json")
    options = to_json(task.options)
    length = {name: options[name] for name in LENGTHS if name in options}
    new = stored | _latest(task.options) | length
    if differences(stored, new):
        write_json(folder / "config.json", new)
    (folder / "evaluation.json").unlink(missing_ok=True)


def _latest(config: RunConfig) -> Row:
    """Returns the latest values of `FREE`, which config.json holds in place of the
    defaults."""
    values = to_json(config)
    return {name: values[name] for name in FREE if name not in PLACE}


def check_experiment(experiment: str) -> None:
    """Checks the name of an experiment, which reports read from the run folder."""
    named = isinstance(experiment, str) and experiment.strip()
    if not named or UNSHOWN.search(experiment):
        raise UserError(
            f"experiment must be {PLAIN}, got {kind_of(experiment)}; pass a name"
        )


def check_folder(task: Task, folder: Path, experiment: str) -> None:
    """Raises UserError for a folder that belongs to another configuration or
    something else. Changes nothing."""
    if not (folder / "config.json").exists():
        _require_empty(folder, "config.json", "run")
    elif task.options.overwrite:
        _require_deletable(folder)
    else:
        shorter = _shorter(folder, task.options)
        new = identity(experiment, task.options, task.fingerprint())
        check_same(folder, new | shorter, ANEW)
        if shorter and task.options.tied_to_end:
            ((name, count),) = shorter.items()
            raise UserError(
                f"{folder} has {name}={count}, and its schedule or warm-up depend on"
                " the end of a run; pass another --out"
            )


def _shorter(folder: Path, config: RunConfig) -> Row:
    """Returns the length of a run that is to go on to more steps than it was started
    for, else nothing."""
    stored = _stored(folder)
    new = to_json(config)
    for name in LENGTHS:
        old = stored.get(name)
        longer = new.get(name)
        if type(old) is int and type(longer) is int and old < longer:
            return {name: old}
    return {}


def check_parent(config: RunConfig, folder: Path) -> None:
    """Raises UserError if a command that trains several runs names the folder of
    one."""
    inside = " and ".join(name for name, _ in config.variants() if name)
    if inside and (folder / "config.json").exists():
        raise UserError(
            f"--out {folder} is a run, and this trains {inside} in folders inside; pass"
            " another --out"
        )


def begin(folder: Path, name: str, description: Row, *, what: str) -> None:
    """Writes the file that marks a folder as a run or a sweep, unless it exists."""
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        _require_empty(folder, name, what)
        write_json(folder / name, description)


def clear(folder: Path) -> None:
    """Deletes a run of any version that no process trains. A folder of anything else
    stays."""
    if not (folder / "config.json").exists():
        return
    _require_deletable(folder)
    with locked(folder):
        # the folder itself may be a link to another disk
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _require_deletable(folder: Path) -> None:
    """Raises UserError unless the folder is a run without other runs inside."""
    if not _is_run(folder / "config.json"):
        raise UserError(
            f"--out {folder} holds no run for --overwrite to delete; pass another"
            " folder"
        )
    if inner := _runs_inside(folder):
        raise UserError(
            f"--overwrite would delete the runs {inner} too; move them away, or pass"
            " another --out"
        )


def check_same(folder: Path, description: Row, way_out: str) -> None:
    """Raises UserError if the config.json of a folder differs from a description."""
    usual = {name: description[name] for name in ("version", *FREE)}
    changed = differences(_stored(folder) | usual, description)
    if changed:
        raise UserError(
            f"{folder} was trained with another configuration: {'; '.join(changed)};"
            f" {way_out}"
        )


def require_checkpoints(folder: Path, experiment: str) -> None:
    """Raises UserError for a run without checkpoints, before its data are read."""
    if steps_in(folder / "checkpoints"):
        return
    way_out = f"train it with `unroll-jax run {experiment} --out {folder}`"
    if read_status(folder).get("state") == FINISHED:  # and is not trained again
        way_out = "they are gone: restore them, or train into another folder"
    raise UserError(f"{folder} has no checkpoints; {way_out}")


def require_place(folder: Path) -> None:
    """Raises OSError for a run folder that cannot be written, before anything is read
    or computed."""
    first_does(lambda: require_writable(folder))


def check_first(config: RunConfig) -> None:
    """Checks that this machine suits a configuration, before data are read."""
    if config.task in TASKS and not isinstance(config, TASKS[config.task].config):
        raise UserError(
            f"{type(config).__name__}.task must not be {config.task!r}, a task of"
            " train/; rename yours"
        )
    if config.out:
        check_out(config.out)
    for tracker in config.log:
        require_extra(tracker)
    make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)


def _require_empty(folder: Path, name: str, what: str) -> None:
    """Raises UserError for a folder of other files. The rest of a killed write of
    the file ``name`` does not count."""
    if not folder.is_dir() or all(
        entry.suffix == PARTIAL for entry in folder.iterdir()
    ):
        return
    inner = _runs_inside(folder)
    runs = f" (of the runs {inner})" if inner else ""
    raise UserError(
        f"--out {folder} holds files{runs} but no {name}: not a {what}; pass an empty"
        " or a new folder"
    )


def _runs_inside(folder: Path) -> str:
    """Returns the names of the runs in a folder."""
    paths = sorted(folder.glob("*/config.json"))
    return ", ".join(str(path.parent) for path in paths if _is_run(path))


def _is_run(path: Path) -> bool:
    """Returns True for the config.json of a run, of any version, and False for an
    export."""
    contents = read_object(path)
    return "format" not in contents and {"experiment", "found"} <= contents.keys()


def _unknown(
    path: Path, field: str, value: Any, way_out: str = "train again"
) -> UserError:
    return UserError(
        f"{path} does not fit this version of the code: field {field!r} is unknown or"
        f" missing, got {value!r}; {way_out}"
    )
