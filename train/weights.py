"""Exported weights: safetensors by the names of the parameters, described by
config.json."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError

from .config.errors import UserError, one_line
from .config.options import from_json
from .config.run import RunConfig
from .core.folder import checked, config_type
from .core.task import Params, Row, Task
from .data.pretrained.folders import COPIED, TEMPLATE, open_safetensors
from .system.files import PARTIAL, read_object, require_writable
from .system.reading import open_regular

FORMAT, MARK = "unroll_jax 2", "unroll_jax"
MODEL, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
AGAIN = "export the run again"


class Export(NamedTuple):
    """An exported folder: the run's config, the data's facts, the arrays by name,
    and config.json as ``card``."""

    config: RunConfig
    facts: Row
    arrays: dict[str, np.ndarray]
    card: Row


def is_export(folder: Path) -> bool:
    """Returns whether a folder is one that `export` wrote, damaged or not."""
    if (folder / MODEL).exists():
        return True
    with (
        contextlib.suppress(UserError),
        open_regular(folder / CONFIG, where="") as file,
    ):
        return b'"format": "unroll_jax' in file.read(200)
    return False


def claim(out: Path) -> None:
    """Checks that the folder is new or of an earlier export, before anything is
    computed."""
    require_writable(out)
    if not out.exists():
        return
    names = {entry.name for entry in out.iterdir() if entry.suffix != PARTIAL}
    if not names <= {MODEL, CONFIG, CARD, TEMPLATE, *COPIED} or (
        names and not _is_ours(out)
    ):
        raise UserError(
            f"--out {out} holds files of something else than an export; pass an empty"
            " or a new folder"
        )


def _is_ours(folder: Path) -> bool:
    """Returns whether `export` wrote the parameters or the description;
    `transformers` keeps no mark of ours."""
    with contextlib.suppress(UserError):
        if str(read_object(folder / CONFIG).get("format")).startswith(MARK):
            return True
    with contextlib.suppress(UserError), open_safetensors(folder / MODEL) as file:
        return any(MARK in text for text in (file.metadata() or {}).values())
    return False


def read_export(folder: Path, kind: type[RunConfig] | None = None) -> Export:
    """Reads an export whose files are whole and belong together, or raises UserError.
    ``kind`` is the class of the options of a task that is not registered.
    """
    path, description = folder / MODEL, _read_config(folder)
    try:
        with open_regular(path, where=str(path), mend=AGAIN) as content:
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
        if checksum != description["sha256"]:
            raise UserError(
                f"{path} is damaged, or of another export than its {CONFIG} (sha256);"
                f" {AGAIN}"
            )
        try:
            with open_safetensors(path, mend=AGAIN) as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # such as a dtype that NumPy lacks
        except (SafetensorError, ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged ({one_line(error)}); {AGAIN}") from None
        described = {
            name: (tuple(array["shape"]), array["dtype"])
            for name, array in description["parameters"].items()
        }
        there = {
            name: (array.shape, str(array.dtype)) for name, array in arrays.items()
        }
        odd = _first_difference(described, there)
        if odd is not None:
            raise ValueError(f"it differs from {MODEL} in {odd}")
        known = config_type(description["task"], kind, folder / CONFIG)
        options = description["config"]
        config = from_json(known, options, source=folder / CONFIG, again=AGAIN)
        checked(config, folder / CONFIG)
        return Export(config, description["facts"], arrays, description)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / CONFIG} is damaged ({one_line(error)}); {AGAIN}"
        ) from None


def named_arrays(params: Params) -> dict[str, np.ndarray]:
    """Returns the arrays of parameters by their keys, fields and places joined by
    dots."""
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        if (name := _name(path)) in arrays:
            raise UserError(
                f"two arrays of the parameters would be called {name}; give a key of"
                " theirs another name"
            )
        arrays[name] = np.asarray(leaf)
    return arrays


def restored(
    task: Task, arrays: dict[str, np.ndarray], source: Path | str = CONFIG
) -> Params:
    """Returns the parameters of a task from `named_arrays`, bit for bit; ``source``
    describes the model, for errors."""
    like = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    shapes = {_name(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(like)}
    given = {name: array.shape for name, array in arrays.items()}
    if odd := _first_difference(shapes, given):
        raise UserError(
            f"the parameters do not fit the model of {source}, first {odd}; pass the"
            " task that was trained, or export the run again"
        )
    return jax.tree.unflatten(
        jax.tree.structure(like), [arrays[name] for name in shapes]
    )


def _read_config(folder: Path) -> Row:
    path = folder / CONFIG
    missing = (
        f"{folder} is not an exported folder: it lacks {CONFIG}; `unroll-jax export"
        " RUN` makes one"
    )
    description = read_object(path, missing=missing, mend=AGAIN)
    if description.get("format") != FORMAT:
        got = description.get("format")
        raise UserError(
            f"{path}: format must be {FORMAT!r}, got {got!r}; {AGAIN} without --format"
        )
    return description


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _first_difference(expected: Row, actual: Row) -> str | None:
    """Returns the first name that only one has, or whose shape or dtype differs."""
    for name in sorted(set(expected) | set(actual)):
        if expected.get(name) != actual.get(name):
            return (
                f"{name} ({expected.get(name, 'missing')} and"
                f" {actual.get(name, 'missing')})"
            )
    return None
