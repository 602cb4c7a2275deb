"""`unroll-jax generate`: answers of a language model to prompts, plain or drafted by
its first layers."""

import functools
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from unroll_jax.models import Sampling, generate, speculate
from unroll_jax.models.language.generation import make_request
from unroll_jax.models.language.sampling import row_keys
from unroll_jax.models.language.speculative import check_draft

from .cli import parse
from .config.commands import GenerateArguments
from .config.errors import UserError, one_line
from .config.options import differences
from .core.task import Log, Row
from .data.answers import AnswerTokenizer
from .data.instructions import Prompt, read_prompts
from .loading import Opened, open_decoder
from .system.distributed import digest
from .system.files import check_file, expanded, strict_json, write_json, writing
from .system.reading import read_regular
from .tasks.common import check_noise

MAX_TOKENS = 256  # of an answer, unless an option sets it


class Settings(NamedTuple):
    """Options for answering prompts, see `config.commands.GenerateArguments`."""

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
    out = (
        None
        if parsed.out is None
        else check_file(parsed.out, overwrite=parsed.overwrite, inputs=inputs)
    )
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
        return _write_answers(opened, prompts, settings, out, name)
    for number, one in enumerate(answer(opened, prompts, settings), start=1):
        print(f"\n{number}. {one.prompt.text}\n\n{one.text}")


def _write_answers(
    opened: Opened, prompts: Sequence[Prompt], settings: Settings, out: Path, name: str
) -> None:
    """Writes answers as AlpacaEval reads them, resuming behind those that an
    interrupted command left."""
    unfinished = Unfinished(out, about(opened, prompts, settings))
    with writing(f"--out {out}", "give the same command again, or pass another file"):
        if done := unfinished.start(prompts):
            print(
                f"{unfinished.path}: resumes behind {len(done)} of {len(prompts)}"
                " answers"
            )
        answers = answer(opened, prompts, settings, done=done, keep=unfinished.add)
        write_json(out, [_alpaca_row(one, name) for one in answers])
        unfinished.path.unlink(missing_ok=True)
    print(f"{out}: {len(answers)} answers of {name}")


def answer(
    opened: Opened,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    done: Mapping[int, Answer] | None = None,
    keep: Callable[[Mapping[int, Answer]], None] = lambda answers: None,
    log: Log = print,
) -> list[Answer]:
    """Answers prompts, in batches of similar lengths; returns the answers in the order
    of the prompts. Random numbers depend on the seed and the place of the prompt;
    sampled tokens also on the draft. ``done`` are answers of an earlier call by the
    place of their prompt; ``keep`` takes the answers of each batch.
    """
    _check_settings(opened, settings)
    tokens, answers = _encoded(opened, prompts, settings), dict(done or {})
    batches = _batches(
        tokens,
        [place for place in range(len(tokens)) if place not in answers],
        settings.batch,
    )
    draft = {"exit_layer": settings.exit_layer, "draft_length": settings.draft_length}
    run = (
        generate
        if settings.exit_layer is None
        else functools.partial(speculate, **draft)
    )
    figures, began = [], time.monotonic()
    keys = row_keys(jax.random.key(settings.seed), len(tokens))
    options = {
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "stops": opened.tokenizer.stops,
        "noise": opened.deviation(settings.gamma),
        "dtype": "float32" if jax.default_backend() == "cpu" else None,
    }
    for places in batches:
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
        new = {
            place: _answer(opened, prompts[place], batch, row)
            for place, row in rows.items()
        }
        keep(new)
        answers |= new
        known = {
            name: values
            for name, values in batch._asdict().items()
            if values is not None
        }
        figures.append(
            {name: values[list(rows.values())] for name, values in known.items()}
        )
    if figures:
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


class Unfinished:
    """A file of the answers so far: a line of all that they depend on, then an
    answer a line, in any order."""

    def __init__(self, out: Path, about: Row) -> None:
        self.path, self._about = out.with_name(f"{out.stem}.unfinished.jsonl"), about

    def start(self, prompts: Sequence[Prompt]) -> dict[int, Answer]:
        """Returns the answers so far, by the place of their prompt; a line that a
        kill cut short is removed."""
        if not self.path.exists():
            return {}
        *lines, rest = read_regular(
            self.path, where=str(self.path), mend="delete it"
        ).split(b"\n")
        if rest:
            os.truncate(self.path, sum(len(line) + 1 for line in lines))
        rows = [
            self._parsed(line, number, len(prompts))
            for number, line in enumerate(lines, start=1)
        ]
        if len(rows) <= 1:
            self.path.write_bytes(b"")  # no answer, of any command
        elif changed := differences(rows[0]["about"], self._about):
            raise UserError(
                f"{self.path} holds answers of another command ({'; '.join(changed)});"
                " give that one again, delete the file, or pass another --out"
            )
        return {
            row["place"]: Answer(prompts[row["place"]], row["text"], row["tokens"])
            for row in rows[1:]
        }

    def add(self, answers: Mapping[int, Answer]) -> None:
        """Appends answers, and flushes them to the disk; the first ones make the
        file."""
        rows = [
            {"place": place, "text": one.text, "tokens": one.tokens}
            for place, one in answers.items()
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            before = [] if file.tell() else [{"about": self._about}]
            file.writelines(
                json.dumps(row, allow_nan=False).encode() + b"\n"
                for row in before + rows
            )
            file.flush()
            os.fsync(file.fileno())

    def _parsed(self, line: bytes, number: int, count: int) -> dict[str, Any]:
        kinds = (
            {"about": dict}
            if number == 1
            else {"place": int, "text": str, "tokens": list}
        )
        try:
            row = strict_json(line)
            wrong = [
                name
                for name in kinds.keys() | row.keys()
                if type(row.get(name)) is not kinds.get(name)
            ]
            if wrong or not 0 <= row.get("place", 0) < count:
                raise ValueError(f"it holds {row!r:.60}")
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.path} is damaged in line {number} ({one_line(error)}); delete"
                " it, or pass another --out"
            ) from error
        return row


def about(opened: Opened, prompts: Sequence[Prompt], settings: Settings) -> Row:
    """Returns JSON values of all that answers depend on: prompts, weights and
    tokenizer by their checksums."""
    if settings.temperature == 0.0:  # drafts change no greedy answer
        settings = settings._replace(exit_layer=None, draft_length=None)
    texts = json.dumps(
        [[prompt.instruction, prompt.input, prompt.dataset] for prompt in prompts]
    ).encode()
    return {
        "prompts": {"count": len(prompts), "checksum": zlib.crc32(texts)},
        "weights": digest(opened.params, {})[0],
        "dtype": str(
            np.result_type(*{leaf.dtype for leaf in jax.tree.leaves(opened.params)})
        ),
        "tokenizer": opened.tokenizer.checksum,
        "template": opened.template,
        # but for round-off
        **{
            name: value for name, value in settings._asdict().items() if name != "batch"
        },
    }


def _check_options(parsed: GenerateArguments) -> None:
    if (parsed.exit_layer is None) != (parsed.draft_length is None):
        raise UserError(
            "--exit-layer and --draft-length go together; give both, or neither"
        )
    for name in ("batch", "max_tokens", "limit", "exit_layer", "draft_length"):
        value = getattr(parsed, name)
        if value is not None and value < 1:
            raise UserError(
                f"--{name.replace('_', '-')} must be at least 1, got {value}"
            )
    check_noise(parsed.gamma, parsed.seed)


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


def _batches(
    tokens: Sequence[np.ndarray], left: Sequence[int], size: int
) -> list[np.ndarray]:
    """Batches the places that are left by length of prompt, for least padding; the
    last one fills up its batch."""
    if not left:
        return []
    size = min(size, len(left))
    places = np.asarray(
        [place for _, place in sorted((len(tokens[place]), place) for place in left)]
    )
    filled = np.concatenate([places, np.repeat(places[-1:], -len(places) % size)])
    return list(filled.reshape(-1, size))


def _answer(opened: Opened, prompt: Prompt, generated: Any, row: int) -> Answer:
    tokens = np.asarray(generated.tokens[row][: generated.lengths[row]]).tolist()
    words = tokens[:-1] if generated.stopped[row] else tokens
    return Answer(prompt, opened.tokenizer.decode(words, special=False).strip(), tokens)


def _summary(figures: Sequence[dict[str, np.ndarray]], seconds: float) -> str:
    totals = {name: sum(int(one[name].sum()) for one in figures) for name in figures[0]}
    count, tokens = sum(len(one["lengths"]) for one in figures), totals["lengths"]
    speed = f"{seconds:.0f} s, {tokens / seconds:.1f} tokens a second"
    line = (
        f"{count} answers of {tokens:,} tokens in {speed}; {totals['stopped']} ended"
        " with a stop"
    )
    if not totals.get("drafted"):
        return line
    accepted, call = (
        totals["accepted"] / totals["drafted"],
        (tokens - count) / totals["calls"],
    )
    return (
        f"{line}; {accepted:.0%} of drafted tokens were accepted, {call:.2f} tokens a"
        " verification"
    )
