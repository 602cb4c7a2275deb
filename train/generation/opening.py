"""Language models to generate with: pretrained folders and files, and runs that fine-tuned one."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unroll_jax.models import DecoderConfig

from ..config.errors import UserError
from ..config.language import LanguageConfig
from ..data.answers import Template
from ..data.pretrained.chat import ChatTokenizer
from ..data.pretrained.decoders import load_decoder
from ..loading import load
from ..system.files import expanded, no_run, read_object

Log = Callable[[str], None]


class Opened(NamedTuple):
    """A language model, and what its answers need.

    Attributes:
      config: of the decoder.
      params: of `unroll_jax.models.Decoder`, without the outer key; low-rank changes are added to the kernels.
      tokenizer: with the chat template.
      template: how prompts are put.
      deviation: ``gamma -> standard deviation`` of the noise on embeddings.
      name: what its answers are said to be of.
      layers: numbers of the layers that were read in training; all of a pretrained one.
    """

    config: DecoderConfig
    params: Any
    tokenizer: ChatTokenizer
    template: Template
    deviation: Callable[[float], float]
    name: str
    layers: tuple[int, ...]


def open_decoder(source: str, *, dtype: Any = None, option: str = "SOURCE", log: Log = print) -> Opened:
    """Opens a language model: a run folder or an export, a folder of `transformers`, or a GGUF file.

    Args:
      source: the folder or file.
      dtype: of the parameters; None takes that of the source, of a run what it keeps.
      option: what errors call the source.
      log: takes the line that says what was read.

    Raises:
      UserError: if the source is none of these, is damaged, or is a run without checkpoints or of something else.
    """
    path = expanded(source, option)
    if is_trained(path):
        return _trained(path, dtype, log)
    if path.is_dir() and any(map(is_trained, path.iterdir())):
        raise UserError(no_run(path))
    decoder = load_decoder(source, dtype=dtype, option=option, log=log)
    deviation = float(jnp.std(decoder.params["embedding"].astype(jnp.float32)))
    name = path.stem if path.suffix == ".gguf" else path.resolve().name
    layers = tuple(range(decoder.config.num_layers + 1))
    params, tokenizer = decoder.params, decoder.tokenizer
    return Opened(decoder.config, params, tokenizer, "chat", lambda gamma: gamma * deviation, name, layers)


def _trained(folder: Path, dtype: Any, log: Log) -> Opened:
    """The model of a run, whose noise is that of its training."""
    description = read_object(folder / "config.json")
    if description.get("task") != LanguageConfig.task:
        raise UserError(
            f"{folder} is a run of {description['experiment']}, which is no language model; "
            "give one of an sft experiment"
        )
    model = load(folder, log=log)
    task: Any = model.task
    params = task.model.decoder(model.params)
    given, layers = task.data.source, task.model.layers
    log(f"{folder}: {model.card['experiment']}, {model.config.title}, the checkpoint of step {model.card['step']}")
    return Opened(
        given.config,
        params if dtype is None else jax.tree.map(lambda leaf: leaf.astype(dtype), params),
        given.tokenizer,
        task.data.answers.template,
        lambda gamma: math.sqrt(task.variance(gamma)),
        folder.resolve().name,
        layers,
    )


def is_trained(folder: Path) -> bool:
    """Returns whether a folder is a run or an export, by its config.json; one with a damaged config.json is not."""
    try:
        return {"experiment", "found"} <= read_object(folder / "config.json").keys()
    except UserError:
        return False
