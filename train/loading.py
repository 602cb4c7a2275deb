"""Loading of runs and exports: the task of a run, the model with all that predicting
takes, and language models."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unroll_jax.models import DecoderConfig

from .config.errors import UserError, kind_of, one_line
from .config.run import RunConfig
from .core.checkpoint import Checkpoints
from .core.folder import (
    FACTS,
    check_first,
    read_config,
    require_checkpoints,
    require_place,
)
from .core.plan import make_plan
from .core.step import state_like
from .core.task import Log, Params, Plan, Row, Task
from .data.pretrained.chat import ChatTokenizer
from .data.pretrained.decoders import load_decoder
from .registry import open_task, rebuild
from .system.files import expanded, no_run, read_object
from .system.machine import require_device
from .tasks.language.answers import Template
from .tasks.language.options import LanguageConfig
from .weights import CONFIG, is_export, read_export, restored


class Model:
    """A trained model with its task, to predict with.

    Attributes:
      task: the task that was trained, without its data.
      params: of the best checkpoint.
      config: of the run.
      card: its experiment and step, and of an export the figures and feasibility.

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

    def predict(self, inputs: Any, **options: Any) -> Any:
        """Applies the model to inputs of its kind; see the task's ``predict``.

        Pictures are files or arrays of uint8. They are brought to the size of the
        training data, as results are. Video: a picture or video; denoised frames come
        back. Images and scenes: one or a list; classes, or maps of them. Sparse coding:
        one image or a list; of each the ``code``, and the ``image`` that it
        reconstructs. Text: strings, with ``seconds=`` where the run is of pairs.
        Language: prompts, with ``answers=`` to be judged. `own_task`: a batch.
        """
        return self.task.predict(self.params, inputs, **options)


class Opened(NamedTuple):
    """A language model to generate with.

    Attributes:
      params: of `unroll_jax.models.Decoder`, without the outer key; low-rank changes
        are added to the kernels.
      template: of prompts.
      deviation: ``gamma -> standard deviation`` of the noise on embeddings.
      name: of the folder, for its answers.
      layers: numbers of the layers that were read in training; all of a pretrained one.
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
      task: the task itself, if it is your own, a `Task`; it takes the
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
    with Checkpoints(folder / "checkpoints", read_only=True, log=log) as checkpoints:
        step, state, notes = checkpoints.best(state_like(task, make_plan(task)))
    card = {"experiment": experiment, "step": step, "score": notes["score"]}
    return Model(task, state.params, card)


def open_run(
    folder: Path, *, mesh: str | None = None, log: Log = print, writes: bool = False
) -> tuple[str, Task, Plan]:
    """Returns the experiment of a run, its task on its data and its plan, on a mesh;
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
    """Returns the class of the options of a task that was passed; None for None."""
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
    """Returns whether a folder is a run or an export, by its config.json; one with a
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
