"""`python -m train export`: the parameters of a run's best checkpoint as safetensors, and what they are beside them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from train.config import to_json
from train.environment import environment
from train.errors import StorageError, UserError
from train.metrics import read_metrics
from train.outputs import check_out
from train.report.files import one_line, read_object
from train.report.paths import without_folders
from train.runs import Best, best_checkpoint, read_config
from train.storage import PARTIAL, require_writable, write_all
from train.structure import flatten, unflatten

__all__ = ["FORMAT", "Exported", "export", "load_exported"]

FORMAT = "unroll_jax 1"
MODEL, CONFIG = "model.safetensors", "config.json"
AGAIN = "export the run again"

Log = Callable[[str], None]


class Exported(NamedTuple):
    """What an exported folder holds.

    Attributes:
      params: the pytree that the run trained, its arrays NumPy's; to be placed on any device or mesh.
      config: what config.json says: experiment, config, step, feasible, multipliers, validation, ...
    """

    params: Any
    config: dict[str, Any]


def export(run: Path, out: Path | None = None, *, mesh: str | None = None, log: Log = print) -> Path:
    """Writes model.safetensors, whose names are the keys of the parameters joined by dots, and config.json.

    Args:
      run: the run's folder.
      out: where to; None means the folder export in the run's.
      mesh: to read the checkpoint onto, where one device cannot hold it; None is the default on these devices.
      log: where messages go.

    Returns:
      The folder written to.

    Raises:
      UserError: if the run has no checkpoint that can be read, or the folder is of something else.
    """
    out = run / "export" if out is None else check_out(out)
    read_config(run)
    _claim(out)
    best = best_checkpoint(run, mesh=mesh, log=log)
    structure, arrays = flatten(jax.device_get(best.state.evaluated))
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"format": FORMAT})
    described = _describe(best, read_metrics(run / "metrics.jsonl")) | {
        "structure": structure,
        "parameters": {name: {"shape": list(array.shape), "dtype": str(array.dtype)} for name, array in arrays.items()},
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    _write(out, content, described)
    count = sum(array.size for array in arrays.values())
    log(f"{out / MODEL}: {count:,} parameters in {len(arrays)} arrays, {len(content):,} bytes, of step {best.step}")
    if described["validation"] is None:
        log(f"metrics.jsonl of {run} has no validation of step {best.step}: whether they are feasible is not known")
    if described["feasible"] is False:
        log("these parameters are NOT feasible on the validation split: no checkpoint of the run was")
    return out


def load_exported(folder: Path | str) -> Exported:
    """The parameters that `export` wrote, the same pytree bit for bit, and what is said of them.

    Raises:
      UserError: if a file is missing or damaged, or the two do not belong together.
    """
    folder = Path(folder)
    path, config = folder / MODEL, _read_config(folder)
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() != config["sha256"]:
            raise UserError(f"{path} is damaged, or of another export than {CONFIG} beside it (sha256); {AGAIN}")
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (SafetensorError, ValueError, TypeError) as error:  # as where it holds what NumPy does not
            raise UserError(f"{path} is damaged ({one_line(error)}); {AGAIN}") from None
        said = {name: (tuple(array["shape"]), array["dtype"]) for name, array in config["parameters"].items()}
        odd = _first_difference(said, {name: (array.shape, str(array.dtype)) for name, array in arrays.items()})
        if odd is not None:
            raise ValueError(f"it differs from {MODEL} in {odd}")
        return Exported(unflatten(config["structure"], arrays), config)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {AGAIN}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / CONFIG} is damaged ({one_line(error)}); {AGAIN}") from None


def _describe(best: Best, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the parameters are; the machine's folders are cut from the configuration, as in reports."""
    validations = (row for row in rows if row["kind"] == "validation" and row["step"] == best.step)
    validation = next(validations, None)
    judgement = best.kind.tuning.judge(best.config, validation) if validation else None
    constrained = judgement is not None and judgement.excess is not None
    return {
        "format": FORMAT,
        "experiment": best.experiment,
        "step": best.step,
        "feasible": judgement.feasible if judgement is not None and constrained else None,
        "multipliers": np.asarray(best.state.multipliers).tolist() if constrained else None,
        "validation": validation,
        "config": without_folders(to_json(best.config)),
        "found": best.kind.found(best.data),
        "environment": environment(),
    }


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no exported folder: it has no {CONFIG}; `python -m train export RUN` makes one")
    try:
        config = read_object(path)
    except UserError:
        raise UserError(f"{path} is damaged; {AGAIN}") from None
    if config.get("format") != FORMAT:
        raise UserError(f"{path}: format must be {FORMAT!r}, got {config.get('format')!r}; {AGAIN}")
    return config


def _first_difference(said: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first name that only one has, or that is of another shape or dtype."""
    for name in sorted(set(said) | set(found)):
        if said.get(name) != found.get(name):
            return f"{name} ({said.get(name, 'missing')} and {found.get(name, 'missing')})"
    return None


def _is_ours(path: Path) -> bool:
    """Whether a config.json may be overwritten: there is none, or it is of an export."""
    try:
        return not path.exists() or read_object(path).get("format") == FORMAT
    except UserError:
        return False


def _claim(out: Path) -> None:
    """Makes the folder, if it is new or of an earlier export, before anything is computed."""
    require_writable(out, f"--out {out}", "pass another folder")
    if not out.exists():
        return
    ours = {MODEL, CONFIG, *(str(Path(name).with_suffix(PARTIAL)) for name in (MODEL, CONFIG))}
    others = sorted(entry.name for entry in out.iterdir() if entry.name not in ours)
    if others or not _is_ours(out / CONFIG):
        raise UserError(f"--out {out} holds files that are no export; pass an empty or a new folder")


def _write(out: Path, content: bytes, described: dict[str, Any]) -> None:
    """Both files in one move each; config.json last, so that a kill between the two leaves a folder that is refused."""
    said = json.dumps(described, indent=2, allow_nan=False) + "\n"
    try:
        write_all(out, {MODEL: content, CONFIG: said.encode()})
    except OSError as error:
        raise StorageError(f"cannot write to --out {out} ({error.strerror}); pass another folder") from error
