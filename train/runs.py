"""Run folders: what config.json and status.json say, whose a folder is, and whether there is room."""

import dataclasses
import re
import shutil
from pathlib import Path

from .config.errors import UserError
from .config.fields import differences, from_json, to_json
from .config.images import (
    ImageFeedForwardConfig,
    ImageMonConfig,
    ImageOdeConfig,
    ImageOptEqConfig,
    SceneFcnConfig,
    SceneOptEqConfig,
)
from .config.own import OwnConfig
from .config.run import FREE, PLACE, RunConfig
from .config.text import TextEncoderConfig, TextUnrolledConfig
from .config.video import VideoConfig
from .sharding.mesh import make_mesh
from .system.distributed import first_does
from .system.run_files import WRITTEN, no_run, read_object, way_out
from .system.storage import AGAIN, check_out, locked, require_writable, steps_in
from .task import Row
from .trackers import require_installed

FACTS = "model.json"  # what the model needs to know of its data
VERSION = "0.2"  # the first version of unroll_jax that writes run folders like this one
ENDED = ("finished", "stopped")  # states of a run that is not trained any more
ANEW = "pass another --out, or --overwrite (overwrite=True from Python), which deletes that run"

CONFIGS: dict[str, type[RunConfig]] = {
    cls.task: cls
    for cls in (
        VideoConfig,
        TextEncoderConfig,
        TextUnrolledConfig,
        ImageOptEqConfig,
        ImageMonConfig,
        ImageOdeConfig,
        ImageFeedForwardConfig,
        SceneOptEqConfig,
        SceneFcnConfig,
        OwnConfig,
    )
}


def default_folder(config: RunConfig, experiment: str) -> Path:
    """runs/EXPERIMENT/..., the same for the same command, so that it finds an interrupted run again."""
    return Path("runs") / experiment / config.label()


def identity(experiment: str, config: RunConfig, found: Row) -> Row:
    """What a run is told by: the configuration, and figures of the data that change when the data do.

    What a run may go on with another value of (`FREE`) is at its default.
    """
    fixed = dataclasses.replace(config, **FREE)
    return {"version": VERSION, "experiment": experiment, "task": config.task, **to_json(fixed), "found": found}


def free_values(config: RunConfig) -> Row:
    """What config.json holds in place of the defaults of `FREE`: the values that the run was trained with last."""
    return {name: value for name, value in to_json(config).items() if name in FREE and name not in PLACE}


def read_config(folder: Path, *, free: bool = False) -> tuple[str, RunConfig]:
    """The experiment of a run, and its configuration; with the stored values of `FREE`, or with their defaults."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{no_run(folder)}; {WRITTEN}")
    values = read_object(path)
    if "format" in values:
        raise UserError(f"{folder} is an export, not a run folder; name the run folder that it was exported from")
    version, experiment, task, _ = (values.pop(name, None) for name in ("version", "experiment", "task", "found"))
    if version != VERSION:
        wrote = "0.1" if version is None else version
        raise UserError(
            f"{folder} was written by version {wrote} of unroll_jax, this is {VERSION}; use that one, or train again"
        )
    if not isinstance(experiment, str) or not isinstance(task, str) or task not in CONFIGS:
        odd = ("experiment", experiment) if not isinstance(experiment, str) else ("task", task)
        raise UserError(
            f"{path} does not fit this version of the code: field {odd[0]!r} is unknown or missing, got {odd[1]!r}; "
            "train again"
        )
    config = from_json(CONFIGS[task], values, source=path)
    check_values(config, path, "put the value back, or train again")
    return experiment, dataclasses.replace(config, **({name: FREE[name] for name in PLACE} if free else FREE))


def check_values(config: RunConfig, path: Path, way_out: str) -> None:
    """Refuses a configuration that was read from a file with values that no run has."""
    try:
        config.check()
    except UserError as error:  # of options, which are fields here
        fields = re.sub(r"--([a-z][\w.-]*)", lambda option: f"field {option[1].replace('-', '_')!r}", str(error))
        raise UserError(f"{path} was changed: {fields}; {way_out}") from error


def read_status(folder: Path) -> Row:
    """What status.json says of a run; nothing where there is none."""
    path = folder / "status.json"
    status = read_object(path) if path.exists() else {}
    whole = {"state": str, "steps": int, "messages": list}
    if status and not all(isinstance(status.get(name), kind) for name, kind in whole.items()):
        raise UserError(f"{path} is damaged (state, steps or messages is missing or no such thing); {way_out(path)}")
    return status


def clear(folder: Path, name: str = "config.json") -> None:
    """Deletes a run, or a search by its search.json, of any version, that no process trains; what is none stays."""
    path = folder / name
    if not path.exists():
        return
    said = read_object(path)
    if "format" in said or not {"experiment", "found"} <= said.keys():
        raise UserError(f"--out {folder} holds no run for --overwrite to delete; pass another folder")
    with locked(folder):
        for entry in folder.iterdir():  # the folder itself may be a link to another disk
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def check_same(folder: Path, said: Row, way_out: str) -> None:
    """Refuses a folder whose config.json says something else."""
    stored = read_object(folder / "config.json")
    changed = differences(stored | {name: said[name] for name in FREE}, said)
    if changed:
        raise UserError(f"{folder} was trained with another configuration: {'; '.join(changed)}; {way_out}")


def require_checkpoints(folder: Path, experiment: str) -> None:
    """Refuses a run without checkpoints, before its data are read."""
    if not steps_in(folder / "checkpoints"):
        ended = read_status(folder).get("state") in ENDED  # and is not trained again
        train_it = f"train it with `python -m train run {experiment} --out {folder}`"
        ways = "they are gone: restore them, or train into another folder" if ended else train_it
        raise UserError(f"{folder} has no checkpoints; {ways}")


def require_place(folder: Path) -> None:
    """Refuses a run folder that takes no file, before anything is read or computed."""
    first_does(lambda: require_writable(folder, f"run folder {folder}", AGAIN))


def check_first(config: RunConfig) -> None:
    """Refuses what can be refused before data are read."""
    config.check()
    if config.out:
        check_out(config.out)
    make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)
    require_installed(config.track)
