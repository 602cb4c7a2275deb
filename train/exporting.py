"""`unroll-jax export`: a run's best parameters as safetensors, with all it takes to use them, and a model card."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from .cli import parse
from .config.commands import ExportArguments
from .config.errors import StorageError, UserError
from .config.fields import to_json
from .config.run import FREE
from .evaluate import best_checkpoint
from .loading import by_config, open_run, options_of
from .metrics import read_metrics
from .model_card import model_card
from .report import make_report
from .runs import read_config
from .system.files import PARTIAL, check_out, read_object, require_writable, without_folders, write_all
from .system.machine import environment
from .system.terminal import Table
from .task import Row, Task
from .weights import CARD, CONFIG, FORMAT, MODEL, named_arrays

Log = Callable[[str], None]


def command(arguments: list[str]) -> None:
    """`unroll-jax export RUN [--out FOLDER]`."""
    parsed = parse(ExportArguments, arguments, "unroll-jax export")
    export(parsed.run, parsed.out, mesh=parsed.mesh)


def export(
    run: Path | str,
    out: Path | str | None = None,
    *,
    mesh: str | None = None,
    task: Task | None = None,
    log: Log = print,
) -> Path:
    """Writes model.safetensors, whose names are the keys of the parameters joined by dots, config.json and README.md.

    Args:
      run: the run's folder.
      out: where to; None means the folder export in the run's.
      mesh: to read the checkpoint onto, where one device cannot hold it; None is the default on these devices.
      task: where it was trained on a task of your own, that task; its options are those of the run.
      log: where messages go.

    Returns:
      The folder written to.

    Raises:
      UserError: if the run has no checkpoint that can be read, or the folder is of something else.

    Example: see `fit`.
    """
    run = Path(run)
    out = run / "export" if out is None else check_out(out)
    experiment, config = read_config(run, options_of(task))
    _claim(out)
    if task is None:
        experiment, task = open_run(run, mesh=mesh, log=log)
    else:
        task = by_config(task, config, mesh=mesh)
    step, state, _ = best_checkpoint(task, run, experiment=experiment, log=log)
    arrays = named_arrays(jax.device_get(state.evaluated))
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"format": FORMAT})
    described = {
        **_describe(task, run, experiment, step, state.moving),
        "parameters": {name: {"shape": list(array.shape), "dtype": str(array.dtype)} for name, array in arrays.items()},
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    _write(out, content, described, model_card(described, *_figures(run, log)))
    count = sum(array.size for array in arrays.values())
    log(f"{out / MODEL}: {count:,} parameters in {len(arrays)} arrays, {len(content):,} bytes, of step {step}")
    if described["validation"] is None:
        log(f"metrics.jsonl of {run} has no validation of step {step}: whether they are feasible is not known")
    if described["feasible"] is False:
        log("these parameters are NOT feasible on the validation split: no checkpoint of the run was")
    return out


def _describe(task: Task, run: Path, experiment: str, step: int, moving: Any) -> Row:
    """Describes the parameters; the machine's folders are cut from the configuration, as in reports."""
    rows = read_metrics(run / "metrics.jsonl")
    validations = (row for row in rows if row["kind"] == "validation" and row["step"] == step)
    validation = next(validations, None)
    judgement = task.config.judge(validation) if validation else None
    constrained = judgement is not None and judgement.excess is not None
    evaluation = run / "evaluation.json"
    return {
        "format": FORMAT,
        "experiment": experiment,
        "task": task.config.task,
        "step": step,
        "feasible": judgement.feasible if judgement is not None and constrained else None,
        "excess": judgement.excess if judgement is not None else None,
        "multipliers": np.asarray(moving.multipliers).tolist() if constrained else None,
        "validation": validation,
        "evaluation": task.summary_line(read_object(evaluation)) if evaluation.exists() else None,
        "config": without_folders(to_json(dataclasses.replace(task.config, **FREE))),
        "found": task.data_fingerprint(),
        "facts": task.model_spec(),
        "environment": environment(),
    }


def _figures(run: Path, log: Log) -> tuple[Sequence[Table], str]:
    """The tables of the report on the run alone, and the figures without a model; none where it is not evaluated."""
    if not (run / "evaluation.json").exists():
        return (), ""
    try:
        report = make_report([run])
    except UserError as error:
        log(f"the model card has no tables: {error}")
        return (), ""
    return report.tables, report.floor


def _is_ours(path: Path) -> bool:
    """Returns whether a config.json may be overwritten: there is none, or it is of an export."""
    try:
        return not path.exists() or str(read_object(path).get("format")).startswith("unroll_jax")
    except UserError:
        return False


def _claim(out: Path) -> None:
    """Makes the folder, if it is new or of an earlier export, before anything is computed."""
    require_writable(out, f"--out {out}", "pass another folder")
    if not out.exists():
        return
    files = (MODEL, CONFIG, CARD)
    ours = {*files, *(str(Path(name).with_suffix(PARTIAL)) for name in files)}
    others = sorted(entry.name for entry in out.iterdir() if entry.name not in ours)
    if others or not _is_ours(out / CONFIG):
        raise UserError(f"--out {out} holds files that are no export; pass an empty or a new folder")


def _write(out: Path, content: bytes, described: Row, card: str) -> None:
    """Each file in one move; config.json last, so that a kill between two leaves a folder that is refused."""
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    try:
        write_all(out, {MODEL: content, CARD: card.encode(), CONFIG: text.encode()})
    except OSError as error:
        raise StorageError(f"cannot write to --out {out} ({error.strerror}); pass another folder") from error
