"""What the commands do: run, evaluate and report, on run folders; plan, on none."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.checkpoint import Checkpoints, room_for, steps_in
from train.config import differences, from_json, to_json
from train.errors import StorageError, UserError
from train.experiments import EXPERIMENTS
from train.lock import locked
from train.loop import train
from train.memory import require_memory, size_of
from train.metrics import write_json
from train.outputs import check_out
from train.plan import describe_plan, make_plan
from train.processes import first_does, first_only, is_first, wait_for_all
from train.profile import parse_profile
from train.recipe import INFEASIBLE, Kind, Recipe
from train.report.files import WRITTEN, no_run, read_object, way_out
from train.sharding import describe_mesh, make_mesh, place
from train.storage import AGAIN, PARTIAL, require_room, require_writable, writing

__all__ = [
    "Best",
    "best_checkpoint",
    "check_first",
    "default_folder",
    "evaluate",
    "identity",
    "plan",
    "read_config",
    "report",
    "run",
    "run_one",
]

Log = Callable[[str], None]

ENDED = ("finished", "stopped")  # states of a run that is not trained any more


class Best(NamedTuple):
    """The best checkpoint of a run, and what the run was."""

    experiment: str
    kind: Kind
    config: Any
    data: Any
    step: int
    state: Any
    notes: dict[str, Any]


def run(config: Any, *, experiment: str, log: Log = print) -> list[Path]:
    """Trains and evaluates, then reports; a run that was interrupted goes on, a finished one is not trained again.

    Returns:
      The run folders.

    Raises:
      UserError: whatever the user can mend, in one line.
    """
    kind, log = EXPERIMENTS[experiment].kind, first_only(log)
    check_first(kind, config)
    folder = check_out(config.out) if config.out else default_folder(config, experiment)
    folders = []
    for name, variant in kind.variants(dataclasses.replace(config, out=None)):
        folders.append(folder / name)
        run_one(variant, folders[-1], experiment=experiment, log=log)
    if is_first():
        kind.report(folders, folder / "report", log)
    return folders


def run_one(config: Any, folder: Path, *, experiment: str, evaluated: bool = True, log: Log = print) -> None:
    """Trains one variant, or goes on with it, and unless told otherwise evaluates it.

    Raises:
      UserError: whatever the user can mend, in one line.
    """
    kind = EXPERIMENTS[experiment].kind
    data = kind.load(config, log)
    recipe = kind.recipe(config, data)
    placed = place(recipe)
    # Refuses parameters that do not divide over the mesh, or fit the memory, while the folder is not claimed yet.
    require_memory(size_of(placed.like), "the state of training", "choose a smaller model, or more devices")
    parse_profile(config.profile, num_steps=recipe.num_steps)
    with contextlib.ExitStack() as held:

        def take() -> None:
            new = not (folder / "config.json").exists()
            if new:  # a refusal leaves nothing behind
                _check_room(folder, recipe, placed.like, f"--out {folder}", "pass another folder")
            _claim(folder, experiment, config, data)
            held.enter_context(locked(folder))
            if not new and _read_status(folder).get("state") not in ENDED:
                _check_room(folder, recipe, placed.like, f"run folder {folder}", AGAIN)

        first_does(take)
        status = _read_status(folder)
        if status.get("state") in ENDED:
            log(f"{folder}: {status['state']} already after {status['steps']} steps; pass another --out to train anew")
        else:
            log(f"{folder}: {kind.describe(config)}, on {describe_mesh(recipe.mesh)}")
            if is_first():
                (folder / "evaluation.json").unlink(missing_ok=True)
            train(recipe, folder, profile=config.profile, log=log)
        wait_for_all(f"{folder} is trained")
        if evaluated and not (folder / "evaluation.json").exists():
            evaluate(folder, mesh=config.mesh, log=log)


def evaluate(folder: Path, *, mesh: str | None = None, log: Log = print) -> dict[str, Any]:
    """Evaluates the best checkpoint of a run on its test split and writes evaluation.json.

    Args:
      folder: of the run.
      mesh: to evaluate on, which need not be the one it was trained on; None is the default on these devices.
      log: where messages go.

    Raises:
      UserError: if the folder is no run, its data are not those it was trained on, or no checkpoint can be read.
    """
    read_config(folder)
    first_does(lambda: require_writable(folder, f"run folder {folder}", AGAIN))
    experiment, kind, config, data, step, state, notes = best_checkpoint(folder, mesh=mesh, log=log)
    if notes["score"] <= INFEASIBLE:
        log(f"{folder}: no checkpoint was feasible on the validation split; the least infeasible one is evaluated")
    log(f"{folder}: evaluating the checkpoint of step {step}")
    with writing(f"run folder {folder}", AGAIN):
        found = kind.evaluate(config, data, state, folder)
        found = {**found, "experiment": experiment, "best_step": step, "train_seconds": notes["train_seconds"]}
        if is_first():
            write_json(folder / "evaluation.json", found)
    log(f"{folder}: {kind.verdict(found)}")
    return found


def best_checkpoint(folder: Path, *, mesh: str | None = None, log: Log = print) -> Best:
    """The checkpoint of a run that its validations call the best, on a mesh of its own.

    Raises:
      UserError: if the folder is no run, its data are not those it was trained on, or no checkpoint can be read.
    """
    experiment, kind, config = read_config(folder)
    config = dataclasses.replace(config, mesh=mesh)
    check_first(kind, config)
    if not steps_in(folder / "checkpoints"):
        ended = _read_status(folder).get("state") in ENDED  # and is not trained again
        train_it = f"train it with `python -m train run {experiment} --out {folder}`"
        ways = "they are gone: restore them, or train into another folder" if ended else train_it
        raise UserError(f"{folder} has no checkpoints; {ways}")
    data = kind.load(config, log)
    _check_same(folder, experiment, config, data, "put its data and config.json back")
    recipe = kind.recipe(config, data)
    with Checkpoints(folder / "checkpoints", read_only=True, log=log) as checkpoints:
        found = checkpoints.best(place(recipe).like)
    return Best(experiment, kind, config, data, *found)


def read_config(folder: Path) -> tuple[str, Kind, Any]:
    """The experiment of a run, its kind and its configuration.

    Raises:
      UserError: if the folder is no run folder, or its config.json is damaged or of another version.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{no_run(folder)}; {WRITTEN}")
    values = read_object(path)
    if "format" in values:
        raise UserError(f"{folder} is an export, not a run folder; name the run folder that it was exported from")
    experiment, _ = values.pop("experiment", ""), values.pop("found", None)
    if not isinstance(experiment, str) or experiment not in EXPERIMENTS:
        raise UserError(
            f"{path} does not fit this version of the code: field 'experiment' is unknown or missing, "
            f"got {experiment!r}; train again"
        )
    kind = EXPERIMENTS[experiment].kind
    config = from_json(kind.config, values, source=path)
    try:
        kind.check(config)
    except UserError as error:  # of options, which are fields here
        fields = re.sub(r"--([a-z][\w.-]*)", lambda option: f"field {option[1].replace('-', '_')!r}", str(error))
        raise UserError(f"{path} was changed: {fields}; put the value back, or train again") from error
    return experiment, kind, config


def plan(config: Any, *, experiment: str, log: Log = print) -> None:
    """Says where every array of a run would live and what a step would communicate, without running one.

    Raises:
      UserError: whatever the user can mend, in one line.
    """
    kind = EXPERIMENTS[experiment].kind
    check_first(kind, config)
    for _, variant in kind.variants(config):
        made = make_plan(kind.recipe(variant, kind.load(variant, log)))
        log(f"{experiment}: {kind.describe(variant)}, {describe_plan(made)}")


def report(folders: Sequence[Path], out: Path, *, log: Log = print) -> None:
    """Compares runs of one kind of experiment.

    Raises:
      UserError: if there is no folder, one is no run, they are of several kinds, or ``out`` is one or not writable.
    """
    out = check_out(out)
    if not folders:
        raise UserError("report needs at least one run folder")
    kinds = {folder: read_config(folder)[1] for folder in folders}
    write = kinds[folders[0]].report
    for folder, kind in kinds.items():
        if kind.report is not write:
            raise UserError(f"{folders[0]} and {folder} are of different kinds of experiments; report them separately")
    if (out / "config.json").exists():
        raise UserError(f"--out {out} holds files that are no report; pass an empty or a new folder")
    require_writable(out, f"--out {out}", "pass another folder")
    write(folders, out, log)


def default_folder(config: Any, experiment: str) -> Path:
    """runs/EXPERIMENT/..., the same for the same command, so that it finds an interrupted run again."""
    return Path("runs") / experiment / EXPERIMENTS[experiment].kind.label(config)


def check_first(kind: Kind, config: Any) -> None:
    """Refuses what can be refused before data are read.

    Raises:
      UserError: if an option's value is not allowed, the mesh does not fit the devices, or --out is no folder.
    """
    kind.check(config)
    if config.out:
        check_out(config.out)
    make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)


def identity(experiment: str, config: Any, data: Any) -> dict[str, Any]:
    """What config.json holds: the configuration, and figures of the data that change when the data do.

    The mesh is not part of it: a run may go on, and be evaluated, on another one. Nor are the parts of a batch and what
    is recomputed, which fewer devices may need and which leave the step as it is; nor which steps are profiled.
    """
    config = dataclasses.replace(config, mesh=None, accumulate=1, remat="none", profile=None)
    return {"experiment": experiment, **to_json(config), "found": EXPERIMENTS[experiment].kind.found(data)}


def _claim(folder: Path, experiment: str, config: Any, data: Any) -> None:
    """Makes the folder this configuration's, or checks that it is."""
    path = folder / "config.json"
    if path.exists():
        _check_same(folder, experiment, config, data, "pass another --out")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(entry.suffix != PARTIAL for entry in folder.iterdir()):
            raise UserError(
                f"--out {folder} holds files but no config.json, so it is no run; pass an empty or a new folder"
            )
        write_json(path, identity(experiment, config, data))
    except OSError as error:
        raise StorageError(f"cannot write to --out {folder} ({error.strerror}); pass another folder") from error


def _check_room(folder: Path, recipe: Recipe, like: Any, name: str, way_out: str) -> None:
    """Refuses, before anything is computed, a disk that takes nothing or has no room for the checkpoints to come."""
    require_writable(folder, name, way_out)
    held = len(steps_in(folder / "checkpoints"))
    saves = math.ceil(recipe.num_steps / recipe.validate_every)
    require_room(
        folder, room_for(like, saves=saves) - held * room_for(like, saves=1), "what a run keeps of checkpoints"
    )


def _read_status(folder: Path) -> dict[str, Any]:
    """What status.json says of a run; nothing where there is none.

    Raises:
      UserError: if it is damaged.
    """
    path = folder / "status.json"
    status = read_object(path) if path.exists() else {}
    whole = {"state": str, "steps": int, "messages": list}
    if status and not all(isinstance(status.get(name), kind) for name, kind in whole.items()):
        raise UserError(f"{path} is damaged (state, steps or messages is missing or no such thing); {way_out(path)}")
    return status


def _check_same(folder: Path, experiment: str, config: Any, data: Any, way_out: str) -> None:
    changed = differences(read_object(folder / "config.json"), identity(experiment, config, data))
    if changed:
        raise UserError(f"{folder} was trained with another configuration: {'; '.join(changed)}; {way_out}")
