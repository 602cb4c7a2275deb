"""`unroll-jax generate`: answers of a language model to prompts, plain or drafted by
its first layers."""

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from unroll_jax.models import Sampling, generate, speculate
from unroll_jax.models.language.generation import make_request
from unroll_jax.models.language.sampling import row_keys
from unroll_jax.models.language.speculative import check_draft

from .cli import GenerateArguments, parse
from .config.errors import UserError, one_line
from .core.task import Log
from .loading import Opened, open_decoder
from .system.files import check_file, expanded, write_json
from .tasks.language.answers import AnswerTokenizer
from .tasks.language.instructions import Prompt, read_prompts

MAX_TOKENS = 256  # of an answer, unless an option sets it


class Settings(NamedTuple):
    """Options for answering prompts, see `cli.GenerateArguments`."""

    chat: bool = True
    max_tokens: int = MAX_TOKENS
    batch: int = 8
    temperature: float = 0.0
    gamma: float = 0.0
    seed: int = 0
    exit_layer: int | None = None
    draft_length: int | None = None


class Answer(NamedTuple):
    """A prompt, and the text and tokens that a model answered with."""

    prompt: Prompt
    text: str
    tokens: list[int]


def command(arguments: list[str]) -> None:
    """`unroll-jax generate SOURCE --prompts FILE ...`: answers on the screen, or as
    AlpacaEval reads them."""
    parsed = parse(GenerateArguments, arguments, "unroll-jax generate")
    _check_options(parsed)
    inputs = (parsed.prompts, parsed.source)
    out = parsed.out
    if out is not None:
        out = check_file(out, overwrite=parsed.overwrite, inputs=inputs)
    prompts = read_prompts(expanded(str(parsed.prompts), "--prompts"))[: parsed.limit]
    opened = open_decoder(parsed.source, dtype=parsed.dtype)
    longest = parsed.max_tokens or min(
        MAX_TOKENS, max(1, opened.config.max_positions // 2)
    )
    settings = Settings(
        **{name: getattr(parsed, name) for name in Settings._fields}
    )._replace(max_tokens=longest)
    if out is not None:
        name = parsed.name or opened.name + (
            f"-gamma{parsed.gamma:g}" if parsed.gamma > 0.0 else ""
        )
        answers = answer(opened, prompts, settings)
        write_json(out, [_alpaca_row(one, name) for one in answers])
        print(f"{out}: {len(answers)} answers of {name}")
        return
    for number, one in enumerate(answer(opened, prompts, settings), start=1):
        print(f"\n{number}. {one.prompt.text}\n\n{one.text}")


def answer(
    opened: Opened, prompts: Sequence[Prompt], settings: Settings, *, log: Log = print
) -> list[Answer]:
    """Answers prompts, in batches of similar lengths. Returns the answers in the order
    of the prompts. Random numbers depend on the seed and the place of the prompt;
    sampled tokens also on the draft.
    """
    _check_settings(opened, settings)
    tokens = _encoded(opened, prompts, settings)
    run: Any = generate
    if settings.exit_layer is not None:
        length = settings.draft_length or 1  # as `command` checks
        run = functools.partial(
            speculate, exit_layer=settings.exit_layer, draft_length=length
        )
    keys = row_keys(jax.random.key(settings.seed), len(tokens))
    options = {
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "stops": opened.tokenizer.stops,
        "noise": opened.deviation(settings.gamma),
        "dtype": "float32" if jax.default_backend() == "cpu" else None,
    }
    answers: dict[int, Answer] = {}
    figures = []
    began = time.monotonic()
    for places in _batches(tokens, settings.batch):
        texts = [tokens[place] for place in places]
        try:
            generated = run(
                opened.config, opened.params, texts, **options, key=keys[places]
            )
        except ValueError as error:  # NaN in the logits: all else is checked before
            raise UserError(
                f"{opened.name} cannot answer ({one_line(error)})"
            ) from error
        batch = jax.device_get(generated)
        # a prompt that fills the batch is answered once
        rows = {int(place): row for row, place in enumerate(places)}
        for place, row in rows.items():
            answers[place] = _answer(opened, prompts[place], batch, row)
        kept = list(rows.values())
        values = batch._asdict().items()
        figures.append({name: one[kept] for name, one in values if one is not None})
    log(_summary(figures, time.monotonic() - began))
    return [answers[place] for place in range(len(tokens))]


def _check_settings(opened: Opened, settings: Settings) -> None:
    """Raises UserError for settings that the library has no answers for."""
    try:
        sampling, key = Sampling(settings.temperature), jax.random.key(settings.seed)
        make_request(
            opened.config, [[0]], settings.max_tokens, sampling=sampling, key=key
        )
        if settings.exit_layer is not None:
            check_draft(opened.config, settings.exit_layer, settings.draft_length or 1)
    except ValueError as error:  # whose arguments are options here
        name, _, rest = str(error).partition(" ")
        raise UserError(f"--{name.replace('_', '-')} {rest}") from error


def _check_options(parsed: GenerateArguments) -> None:
    if (parsed.exit_layer is None) != (parsed.draft_length is None):
        raise UserError(
            "--exit-layer and --draft-length go together; give both, or neither"
        )


def _alpaca_row(answer: Answer, generator: str) -> dict[str, str]:
    prompt = answer.prompt
    row = {
        "instruction": prompt.instruction,
        "output": answer.text,
        "generator": generator,
    }
    return row | {
        name: value for name in ("input", "dataset") if (value := getattr(prompt, name))
    }


def _encoded(
    opened: Opened, prompts: Sequence[Prompt], settings: Settings
) -> list[np.ndarray]:
    texts = [prompt.text for prompt in prompts]
    if settings.chat:
        mend = "pass --no-chat, which takes prompts as they are"
        tokens = AnswerTokenizer(
            opened.tokenizer, opened.template, mend=mend
        ).questions(texts)
    else:
        tokens = opened.tokenizer.encode(texts, special=True)
    room = opened.config.max_positions - settings.max_tokens
    for number, text in enumerate(tokens, start=1):
        if not 1 <= len(text) <= room:
            raise UserError(
                f"prompt {number} has {len(text)} tokens, and the decoder has places"
                f" for 1 to {room} before an answer of --max-tokens"
                f" {settings.max_tokens}; shorten or leave out the prompt, or shorten"
                " the answers"
            )
    return tokens


def _batches(tokens: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Batches the places of prompts by their length, for least padding. The last one
    fills up its batch."""
    size = min(size, len(tokens))
    places = np.argsort([len(text) for text in tokens], kind="stable")
    filled = np.concatenate([places, np.repeat(places[-1:], -len(places) % size)])
    return list(filled.reshape(-1, size))


def _answer(opened: Opened, prompt: Prompt, generated: Any, row: int) -> Answer:
    tokens = np.asarray(generated.tokens[row][: generated.lengths[row]]).tolist()
    words = tokens[:-1] if generated.stopped[row] else tokens
    return Answer(prompt, opened.tokenizer.decode(words, special=False).strip(), tokens)


def _summary(figures: Sequence[dict[str, np.ndarray]], seconds: float) -> str:
    totals = {name: sum(int(one[name].sum()) for one in figures) for name in figures[0]}
    count = sum(len(one["lengths"]) for one in figures)
    tokens = totals["lengths"]
    line = (
        f"{count} answers of {tokens:,} tokens in {seconds:.0f} s,"
        f" {tokens / seconds:.1f} tokens a second; {totals['stopped']} ended with a"
        " stop"
    )
    if not totals.get("drafted"):
        return line
    return (
        f"{line}; {totals['accepted'] / totals['drafted']:.0%} of drafted tokens were"
        f" accepted, {(tokens - count) / totals['calls']:.2f} tokens a verification"
    )
