"""What the commands do: run, evaluate and report, on run folders."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from train.checkpoint import Checkpoints
from train.config import VideoConfig, check_config, differences, from_json, to_json
from train.data import VideoData, load
from train.data.clips import SPLITS
from train.errors import UserError
from train.evaluate import evaluate_video
from train.lock import locked
from train.loop import INFEASIBLE, train
from train.metrics import PARTIAL, write_json
from train.report import write_report
from train.state import init_state
from train.video import video_task

__all__ = ["default_folder", "evaluate", "run"]

Log = Callable[[str], None]


def run(config: VideoConfig, *, experiment: str, log: Log = print) -> list[Path]:
    """Trains and evaluates, then reports; a run that was interrupted goes on, a finished one is not trained again.

    Returns:
      The run folders.

    Raises:
      UserError: whatever the user can mend, in one line.
    """
    check_config(config)
    folder = Path(config.out) if config.out else default_folder(config, experiment)
    methods = ("erm", "constrained") if config.method == "both" else (config.method,)
    folders = [folder / method if config.method == "both" else folder for method in methods]
    for method, place in zip(methods, folders, strict=True):
        _run_one(dataclasses.replace(config, method=method, out=None), place, experiment=experiment, log=log)
    write_report(folders, folder / "report", log=log)
    return folders


def evaluate(folder: Path, *, log: Log = print) -> dict[str, Any]:
    """Evaluates the best checkpoint of a run on its test split and writes evaluation.json.

    Raises:
      UserError: if the folder is no run, its data are not those it was trained on, or no checkpoint can be read.
    """
    experiment, config = _read_config(folder)
    data = load(config.data, log=log)
    _check_same(folder, experiment, config, data)
    task = video_task(config, data)
    like = jax.eval_shape(lambda: init_state(config, task))
    if not (folder / "checkpoints").is_dir():
        raise UserError(f"{folder} has no checkpoints; train it with `python -m train run {experiment} --out {folder}`")
    with Checkpoints(folder / "checkpoints", read_only=True, log=log) as checkpoints:
        step, state, notes = checkpoints.best(like)
    if notes["score"] <= INFEASIBLE:
        log(f"{folder}: no checkpoint was feasible on the validation split; the least infeasible one is evaluated")
    found = evaluate_video(config, task, data, state.params, state.dual.multipliers)
    found = {**found, "experiment": experiment, "best_step": step, "train_seconds": notes["train_seconds"]}
    write_json(folder / "evaluation.json", found)
    log(_verdict(folder, found))
    return found


def default_folder(config: VideoConfig, experiment: str) -> Path:
    """runs/EXPERIMENT/..., the same for the same command, so that it finds an interrupted run again."""
    parts = (
        config.data.source,
        config.method,
        f"L{config.model.num_layers}",
        f"gamma{config.train_gamma}",
        f"seed{config.seed}",
    )
    return Path("runs") / experiment / "-".join(parts)


def _run_one(config: VideoConfig, folder: Path, *, experiment: str, log: Log) -> None:
    data = load(config.data, log=log)
    task = video_task(config, data)
    _claim(folder, experiment, config, data)
    with locked(folder):
        status = _read_json(folder / "status.json") if (folder / "status.json").exists() else {}
        if status.get("state") in ("finished", "stopped"):
            log(f"{folder}: {status['state']} already after {status['steps']} steps; pass another --out to train anew")
        else:
            log(f"{folder}: {config.method}, {config.model.num_layers} layers, {config.steps} steps")
            (folder / "evaluation.json").unlink(missing_ok=True)
            train(config, task, data, folder, log=log)
        if not (folder / "evaluation.json").exists():
            evaluate(folder, log=log)


def _claim(folder: Path, experiment: str, config: VideoConfig, data: VideoData) -> None:
    """Makes the folder this configuration's, or checks that it is."""
    path = folder / "config.json"
    if path.exists():
        _check_same(folder, experiment, config, data)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(entry.suffix != PARTIAL for entry in folder.iterdir()):
            raise UserError(
                f"--out {folder} holds files but no config.json, so it is no run; pass an empty or a new folder"
            )
        write_json(path, _identity(experiment, config, data))
    except OSError as error:
        raise UserError(f"cannot write to --out {folder} ({error.strerror}); pass another folder") from error


def _check_same(folder: Path, experiment: str, config: VideoConfig, data: VideoData) -> None:
    changed = differences(_read_json(folder / "config.json"), _identity(experiment, config, data))
    if changed:
        raise UserError(f"{folder} was trained with another configuration: {'; '.join(changed)}; pass another --out")


def _identity(experiment: str, config: VideoConfig, data: VideoData) -> dict[str, Any]:
    """What config.json holds: the configuration, and figures of the data that change when the data do."""
    sequences = {split: data.num_sequences(split) for split in SPLITS}
    return {"experiment": experiment, **to_json(config), "found": {"pixel_std": data.pixel_std, "sequences": sequences}}


def _read_config(folder: Path) -> tuple[str, VideoConfig]:
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"{folder} is no run folder: it has no config.json")
    values = _read_json(path)
    experiment, _ = values.pop("experiment", ""), values.pop("found", None)
    try:
        config = from_json(VideoConfig, values, source=path)
        check_config(config)
    except TypeError as error:
        raise UserError(f"{path} holds a value of the wrong type ({error}); restore it, or train again") from error
    return experiment, config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); move the run folder away and train again") from error


def _verdict(folder: Path, found: dict[str, Any]) -> str:
    rmse = found["rmse"][str(float(found["train_gamma"]))]
    noisy = found["noisy_rmse"][str(float(found["train_gamma"]))]
    words = "feasible on held-out data" if found["feasible"] else "NOT feasible on held-out data"
    if found["method"] == "erm":
        words = "unconstrained"
    return f"{folder}: RMSE {rmse:.1f} against {noisy:.1f} of its input at gamma {found['train_gamma']}, {words}"
