"""Loading of runs and exports: the task of a run, exported weights, the model with all
that predicting takes, and language models."""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError

from unroll_jax.models import DecoderConfig

from .config.errors import UserError, kind_of, one_line
from .config.options import from_json
from .config.run import RunConfig
from .core.checkpoint import Checkpoints
from .core.evaluate import num_parameters
from .core.folder import (
    FACTS,
    check_first,
    checked,
    config_type,
    read_config,
    read_status,
    require_checkpoints,
    require_place,
)
from .core.metrics import furthest_out, validation_of
from .core.plan import make_plan
from .core.step import evaluated_params, state_like
from .core.task import Log, Params, Plan, Row, Task
from .data.pretrained.chat import ChatTokenizer
from .data.pretrained.decoders import load_decoder
from .data.pretrained.folders import COPIED, TEMPLATE, open_safetensors
from .registry import open_task, rebuild
from .system.files import (
    PARTIAL,
    expanded,
    no_run,
    open_regular,
    read_object,
    require_writable,
)
from .system.machine import require_device
from .tasks.language.answers import Template
from .tasks.language.options import LanguageConfig

FORMAT, MARK = "unroll_jax 2", "unroll_jax"
MODEL, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
AGAIN = "export the run again"


class Model:
    """A trained model with its task, to predict with.

    Attributes:
      task: the task that was trained, without its data.
      params: of the best checkpoint.
      config: of the run.
      card: its experiment, step and validation, and of an export further figures.

    Example: see `fit`.
    """

    def __init__(self, task: Task, params: Params, card: dict[str, Any]):
        self.task = task
        self.params = params
        self.card = card

    @property
    def config(self) -> RunConfig:
        """The configuration that it was trained with."""
        return self.task.options

    def __repr__(self) -> str:
        """Returns experiment, task, steps, score and feasibility, a line each."""
        config = self.config
        lines = [
            f"Model of {self.card['experiment']} (task {config.task}):"
            f" {config.describe()}",
            f"step {self.card['step']}{self.card.get('of', '')},"
            f" {num_parameters(self.params):,} parameters",
        ]
        if self.card["validation"] is None:
            return "\n  ".join([*lines, "no validation of this step is known"])
        row = self.card["validation"]
        feasible, excess, metric = config.judge(row)
        lines.append(f"{config.metric}: {metric:.4g}")
        if excess is not None:
            verdict = "feasible" if feasible else "NOT feasible"
            lines.append(
                f"{verdict} on the validation split: {furthest_out(row, excess)}"
            )
        return "\n  ".join(lines)

    def predict(self, inputs: Any, **options: Any) -> Any:
        """Applies the model to inputs of its kind. See the task's ``predict``.

        Pictures are files or arrays of uint8. They are brought to the size of the
        training data, as results are. Video: a picture or video. Denoised frames come
        back. Images and scenes: one or a list; classes, or maps of them. Sparse coding:
        one image or a list; of each the ``code``, and the ``image`` that it
        reconstructs. Text: strings, with ``seconds=`` where the run is of pairs.
        Language: prompts, with ``answers=`` to be judged. `own_task`: a batch.
        """
        return self.task.predict(self.params, inputs, **options)


class Opened(NamedTuple):
    """A language model to generate with.

    Attributes:
      params: of `unroll_jax.models.Decoder`, without the outer key. Low-rank changes
        are added to the kernels.
      template: of prompts.
      deviation: ``gamma -> standard deviation`` of the noise on embeddings.
      name: of the folder, for its answers.
      layers: numbers of the layers that were read in training. All of a pretrained one.
    """

    config: DecoderConfig
    params: Any
    tokenizer: ChatTokenizer
    template: Template
    deviation: Callable[[float], float]
    name: str
    layers: tuple[int, ...]


def load(folder: Path | str, *, task: Task | None = None, log: Log = print) -> Model:
    """Loads the model of a run folder (its best checkpoint) or of an export, trained on
    any devices.

    Args:
      folder: of the run, or the export.
      task: the task itself, if it is your own, a `Task`. It takes the
        folder's options but the mesh.
      log: where messages go.

    Returns:
      The model, its parameters on the devices of the task's mesh.

    Raises:
      UserError: if the folder is neither, is damaged, or was written by another
        version.

    Example: see `fit`.
    """
    require_device()
    folder, kind = Path(folder), options_of(task)
    if is_export(folder):
        export = read_export(folder, kind)
        source: Any = folder / CONFIG
        if task is None:
            task = _rebuilt(export.config, export.facts, source)
        else:
            source = "the task that was passed"
            task = by_config(task, export.config)
        params = restored(task, export.arrays, source)
        like = state_like(task, make_plan(task)).params
        places = jax.tree.map(lambda leaf: leaf.sharding, like)
        return Model(task, jax.device_put(params, places), export.card)
    experiment, config = read_config(folder, kind)
    require_checkpoints(folder, experiment)
    path = folder / FACTS
    if task is None:
        task = _rebuilt(config, read_object(path), path)
    else:
        task = by_config(task, config)
    plan = make_plan(task)
    with Checkpoints(folder / "checkpoints", read_only=True, log=log) as checkpoints:
        step, state, notes = checkpoints.best(state_like(task, plan))
    status = read_status(folder)
    steps = status.get("steps", step)
    planned = status.get("num_steps", plan.num_steps)
    card = {
        "experiment": experiment,
        "step": step,
        "of": f" of {steps}{f' ({planned} planned)' if steps < planned else ''}",
        "score": notes["score"],
        "validation": validation_of(folder, step),
    }
    return Model(task, evaluated_params(plan, state), card)


def open_run(
    folder: Path, *, mesh: str | None = None, log: Log = print, writes: bool = False
) -> tuple[str, Task, Plan]:
    """Returns the experiment of a run, its task on its data and its plan, on a mesh.
    ``writes`` checks that it is writable."""
    experiment, config = read_config(folder)
    if writes:
        require_place(folder)
    config = dataclasses.replace(config, mesh=mesh)
    check_first(config)
    require_checkpoints(folder, experiment)
    task = open_task(config, log)
    return experiment, task, make_plan(task)


def options_of(task: Any) -> type[RunConfig] | None:
    """Returns the class of the options of a task that was passed, or None for None."""
    config: Any = getattr(task, "options", None)
    if task is None:
        return None
    if isinstance(config, RunConfig) and hasattr(task, "losses"):
        return type(config)
    raise UserError(
        "task must be the task that was trained (as own_task(init, layer_losses,"
        f" train=..., validation=...)), got {kind_of(task)}; pass that task"
    )


def by_config(task: Task, config: RunConfig, *, mesh: str | None = None) -> Task:
    """Returns a task that was passed, with the configuration of a folder, on
    ``mesh`` or the task's mesh."""
    config = dataclasses.replace(config, mesh=mesh or task.options.mesh)
    return task if task.options == config else task.make(config)


def open_decoder(
    source: str, *, dtype: Any = None, option: str = "SOURCE", log: Log = print
) -> Opened:
    """Opens a language model: a run folder or an export, or a folder of
    `transformers`."""
    path = expanded(source, option)
    if is_trained(path):
        return _trained(path, dtype, log)
    if path.is_dir() and any(map(is_trained, path.iterdir())):
        raise UserError(no_run(path))
    decoder = load_decoder(source, dtype=dtype, option=option, log=log)
    deviation = float(jnp.std(decoder.params["embedding"].astype(jnp.float32)))
    name, layers = path.resolve().name, tuple(range(decoder.config.num_layers + 1))
    return Opened(*decoder, "chat", lambda gamma: gamma * deviation, name, layers)


def is_trained(folder: Path) -> bool:
    """Returns whether a folder is a run or an export, by its config.json. One with a
    damaged config.json is not."""
    try:
        return {"experiment", "found"} <= read_object(folder / "config.json").keys()
    except UserError:
        return False


def _trained(folder: Path, dtype: Any, log: Log) -> Opened:
    """Opens the model of a run, with the noise of its training."""
    description = read_object(folder / "config.json")
    if description.get("task") != LanguageConfig.task:
        raise UserError(
            f"{folder} is a run of {description['experiment']}, not of a language"
            " model; give one of an sft experiment"
        )
    model = load(folder, log=log)
    task: Any = model.task.inner
    params = task.model.decoder(model.params)
    if dtype is not None:
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    given = task.data.source
    card = model.card
    log(
        f"{folder}: {card['experiment']}, {model.config.title}, the checkpoint of step"
        f" {card['step']}"
    )
    return Opened(
        config=given.config,
        params=params,
        tokenizer=given.tokenizer,
        template=task.data.answers.template,
        deviation=lambda gamma: math.sqrt(task.variance(gamma)),
        name=folder.resolve().name,
        layers=task.model.layers,
    )


def _rebuilt(config: RunConfig, spec: Row, path: Path) -> Task:
    try:
        return rebuild(config, spec)
    except UserError:
        raise
    except Exception as error:  # errors in a spec show where it is used
        raise UserError(
            f"{path} is damaged ({one_line(error)}); restore it, or train or export"
            " again"
        ) from error


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
    """Returns whether `export` wrote the parameters or the description.
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
    """Returns the parameters of a task from `named_arrays`, bit for bit. ``source``
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
