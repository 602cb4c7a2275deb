"""Answers of a language model to prompts, in batches of like lengths."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from unroll_jax.models import Generated, Sampling, Speculated, generate, speculate
from unroll_jax.models.generation import requested
from unroll_jax.models.speculative import check_draft

from ..config.errors import UserError
from ..data.answers import AnswerTokenizer
from ..data.conversations import Prompt
from .drafting import chosen, measured_costs
from .opening import Opened

Log = Callable[[str], None]
CHOSEN_ON = 8  # prompts, whatever the batch, which answers must not depend on
WITHOUT = "pass --no-chat, which takes prompts as they are"


class Settings(NamedTuple):
    """Options for answering prompts, see `config.commands.GenerateArguments`; with ``auto``, `drafted` chooses."""

    chat: bool = True
    max_tokens: int = 256
    batch: int = 8
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    gamma: float = 0.0
    seed: int = 0
    exit_layer: int | None = None
    draft_length: int | None = None
    auto: bool = False


class Answer(NamedTuple):
    """A prompt, and the text and tokens that a model answered with."""

    prompt: Prompt
    text: str
    tokens: list[int]


def answer(
    opened: Opened,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    done: Mapping[int, Answer] | None = None,
    keep: Callable[[Mapping[int, Answer]], None] = lambda answers: None,
    log: Log = print,
) -> list[Answer]:
    """Answers prompts, in their order; what is random in an answer depends on the seed, the prompt's place and, where
    tokens are drawn, the exit layer and draft length.

    Args:
      opened: the language model.
      prompts: to be answered.
      settings: how.
      done: answers that are there already, by the place of their prompt.
      keep: takes the answers of every batch as soon as they are there, likewise.
      log: takes lines on how it went.

    Raises:
      UserError: naming the option, or the prompt that is too long.
    """
    settings = drafted(opened, prompts, settings, log=log)
    tokens, answers = _encoded(opened, prompts, settings), dict(done or {})
    batches = _batches(tokens, [place for place in range(len(tokens)) if place not in answers], settings.batch)
    if not batches:
        return [answers[place] for place in range(len(tokens))]
    keys, options = _keys(settings, len(tokens)), _options(opened, settings)
    drawn = {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p")}
    draft = {"exit_layer": settings.exit_layer, "draft_length": settings.draft_length}
    run = generate if settings.exit_layer is None else functools.partial(speculate, **draft)
    figures, began = [], time.monotonic()
    for places in batches:
        texts = [tokens[place] for place in places]
        batch = jax.device_get(run(opened.config, opened.params, texts, **options, **drawn, key=keys[places]))
        rows = {int(place): row for row, place in enumerate(places)}  # a prompt that fills up is answered once
        new = {place: _answer(opened, prompts[place], batch, row) for place, row in rows.items()}
        keep(new)
        answers |= new
        figures.append({name: getattr(batch, name)[list(rows.values())] for name in batch._fields})
    log(_summary(figures, time.monotonic() - began))
    return [answers[place] for place in range(len(tokens))]


def drafted(opened: Opened, prompts: Sequence[Prompt], settings: Settings, *, log: Log = print) -> Settings:
    """The settings with the exit layer and draft length that ``auto`` chooses, on the first prompts.

    Greedy answers do not depend on the choice, which is by timing. Drawn ones do: it is by acceptance and the weights
    that are read, the same in every call.

    Args:
      opened: the language model.
      prompts: to be answered.
      settings: how; those without ``auto`` are checked and returned.
      log: takes the line that says what was chosen.

    Raises:
      UserError: naming the option, or the prompt that is too long.
    """
    _check(opened, settings)
    if not settings.auto:
        return settings
    tokens = _encoded(opened, prompts, settings)[:CHOSEN_ON]
    batch = min(settings.batch, len(prompts))
    options = _options(opened, settings) | {"key": _keys(settings, len(tokens))}
    costs = measured_costs(opened.config, opened.params, batch=batch) if settings.temperature == 0.0 else None
    return settings._replace(auto=False, **chosen(opened.config, opened.params, tokens, options, log, costs=costs))


def _options(opened: Opened, settings: Settings) -> dict[str, Any]:
    return {
        "max_tokens": settings.max_tokens,
        "stops": opened.tokenizer.stops,
        "noise": opened.deviation(settings.gamma),
    }


def _keys(settings: Settings, count: int) -> jax.Array:
    """A key for each prompt, by its place."""
    root = jax.random.key(settings.seed)
    return jax.vmap(lambda place: jax.random.fold_in(root, place))(np.arange(count))


def _check(opened: Opened, settings: Settings) -> None:
    """Has the library check its arguments, which are options here, before anything is computed."""
    try:
        sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
        requested(opened.config, [[0]], settings.max_tokens, sampling=sampling, key=jax.random.key(settings.seed))
        if settings.exit_layer is not None or settings.auto:
            check_draft(opened.config, settings.exit_layer or 1, settings.draft_length or 1)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise UserError(f"--{name.replace('_', '-')} {rest}") from error


def _encoded(opened: Opened, prompts: Sequence[Prompt], settings: Settings) -> list[np.ndarray]:
    texts = [prompt.text for prompt in prompts]
    if settings.chat:
        tokens = AnswerTokenizer(opened.tokenizer, opened.template, mend=WITHOUT).questions(texts)
    else:
        tokens = opened.tokenizer.encode(texts, special=True)
    room = opened.config.max_positions - settings.max_tokens
    for number, text in enumerate(tokens, start=1):
        if not 1 <= len(text) <= room:
            raise UserError(
                f"prompt {number} has {len(text)} tokens, and the decoder has places for 1 to {room} before an answer "
                f"of --max-tokens {settings.max_tokens}; shorten or leave out the prompt, or shorten the answers"
            )
    return tokens


def _batches(tokens: Sequence[np.ndarray], left: Sequence[int], size: int) -> list[np.ndarray]:
    """Batches the places that are left by length of prompt, for least padding; the last one fills up its batch."""
    if not left:
        return []
    size = min(size, len(left))
    places = np.asarray(sorted(left, key=lambda place: len(tokens[place])))
    filled = np.concatenate([places, np.repeat(places[-1:], -len(places) % size)])
    return list(filled.reshape(-1, size))


def _answer(opened: Opened, prompt: Prompt, generated: Generated | Speculated, row: int) -> Answer:
    tokens = np.asarray(generated.tokens[row][: generated.lengths[row]]).tolist()
    words = tokens[:-1] if generated.stopped[row] else tokens
    return Answer(prompt, opened.tokenizer.decode(words, special=False).strip(), tokens)


def _summary(figures: Sequence[dict[str, np.ndarray]], seconds: float) -> str:
    totals = {name: sum(int(one[name].sum()) for one in figures) for name in figures[0]}
    count, tokens = sum(len(one["lengths"]) for one in figures), totals["lengths"]
    line = (
        f"{count} answers of {tokens:,} tokens in {seconds:.0f} s, {tokens / seconds:.1f} tokens a second; "
        f"{totals['stopped']} ended with a stop"
    )
    if not totals.get("drafted"):
        return line
    stood, call = totals["accepted"] / totals["drafted"], (tokens - count) / totals["calls"]
    return f"{line}; {stood:.0%} of drafted tokens stood, {call:.2f} tokens a verification"
