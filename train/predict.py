"""`unroll-jax predict`: predictions of every layer of a text or language run."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cli import PredictArguments, parse
from .config.errors import UserError
from .core.folder import read_config
from .core.task import Row
from .data.rows import read_text
from .loading import Model, is_export, load, read_export
from .system.files import check_file, write_all
from .system.terminal import Table, as_text
from .tasks.language.instructions import read_prompts
from .tasks.language.options import LanguageConfig
from .tasks.language.task import paired
from .tasks.text.options import TextRunConfig

JSON = (".json", ".jsonl")  # suffixes of files of objects
WIDEST = 80  # characters of a text in a title

Texts = Sequence[str]


def command(arguments: list[str]) -> None:
    """`unroll-jax predict RUN --text TEXT ...`: predictions of every layer of a run."""
    hint = (
        "texts go behind --text, as --text=TEXT where one begins with a dash, or into"
        " the lines of --file"
    )
    parsed = parse(PredictArguments, arguments, "unroll-jax predict", hint=hint)
    if parsed.file is not None and (parsed.text or parsed.second):
        raise UserError(
            "--file takes the place of --text and --second; give one or the other"
        )
    config = _config_of(parsed.run)
    out = None
    if parsed.out is not None:
        inputs = (parsed.file, parsed.run)
        out = check_file(parsed.out, overwrite=parsed.overwrite, inputs=inputs)
    noise = {"gamma": parsed.gamma, "seed": parsed.seed}
    if isinstance(config, LanguageConfig):
        prompts, answers = paired(*read_pairs(parsed.text, parsed.second, parsed.file))
        results = _of_language(load(parsed.run), prompts, answers, **noise)
    else:
        texts, seconds = read_texts(parsed.text, parsed.second, parsed.file)
        results = _of_texts(load(parsed.run), texts, seconds, **noise)
    predictions = []
    for number, (figures, row, table) in enumerate(results, start=1):
        if not np.isfinite(figures).all():
            raise UserError(
                f"{parsed.run} computes values that are not finite for text {number} at"
                f" --gamma {parsed.gamma:g}; pass a lower one, or train the run again"
            )
        predictions.append((row, table))
    if out is None:
        for number, (_, table) in enumerate(predictions, start=1):
            print(f"{number}. {as_text(table)}")
        return
    lines = [f"{json.dumps(row, allow_nan=False)}\n" for row, _ in predictions]
    write_all(out.parent, {out.name: "".join(lines).encode()})
    print(f"{out}: predictions for {len(lines)} texts")


def _config_of(run: Path) -> TextRunConfig | LanguageConfig:
    """Returns the configuration of a run or an export, of a task on texts."""
    if is_export(run):
        export = read_export(run)
        experiment, config = export.card["experiment"], export.config
    else:
        experiment, config = read_config(run)
    if isinstance(config, TextRunConfig | LanguageConfig):
        return config
    raise UserError(
        f"{run} is a run of {experiment}; give one of a text or sft experiment, or call"
        " predict of unroll_jax.train.load(run) in Python"
    )


def read_texts(
    texts: Texts, seconds: Texts, file: Path | None
) -> tuple[Texts, Texts | None]:
    """Returns texts and second texts, or None, from the command line or the lines of
    a file."""
    if file is None:
        return texts, seconds or None
    if file.suffix.lower() in JSON:
        raise UserError(
            f"--file {file} is of JSON, which language runs take; give a file with a"
            " text a line"
        )
    if file.suffix.lower() == ".csv":
        raise UserError(
            f"--file {file} is a table with a header; give a file with a text a line,"
            " of its column alone"
        )
    lines = _lines(file)
    parts = [line.split("\t") for line in lines]
    if all(len(part) == 1 for part in parts):
        return lines, None
    for number, part in enumerate(parts, start=1):
        if len(part) != 2:
            raise UserError(
                f"--file {file} line {number} has {len(part) - 1} tabs where others"
                " have 1; put one between two texts"
            )
    return [first for first, _ in parts], [second for _, second in parts]


def read_pairs(
    texts: Texts, seconds: Texts, file: Path | None
) -> tuple[Texts, Sequence[str | None] | None]:
    """Returns prompts and answers, or None, from the command line, lines of a file,
    or objects of JSON."""
    if file is None or file.suffix.lower() not in JSON:
        return read_texts(texts, seconds, file)
    prompts = read_prompts(file, option="--file", answers=True)
    kept = [
        prompt for prompt in prompts if prompt.answer is None or prompt.answer.strip()
    ]
    if len(kept) < len(prompts):
        print(
            f"--file {file}: {len(prompts) - len(kept)} of {len(prompts)} entries have"
            " an empty output, left out"
        )
    return [prompt.text for prompt in kept], [prompt.answer for prompt in kept]


def _of_texts(
    model: Model, texts: Texts, seconds: Texts | None, **noise: Any
) -> Iterator[tuple[np.ndarray, Row, Table]]:
    """Yields the probabilities of each text, its row, and its table with a row for
    each layer."""
    predictions = model.predict(texts, seconds=seconds, **noise)
    for one, second in zip(predictions, seconds or [None] * len(texts), strict=True):
        shares = one.probabilities
        names = list(one.class_names)
        row = {
            "text": one.text,
            "label": one.label,
            "classes": names,
            "probabilities": shares.tolist(),
        }
        if second is not None:
            row["second"] = second
        best = int(shares[-1].argmax())
        losses = -np.log(np.maximum(shares[:, best], np.finfo(np.float32).tiny))
        columns: dict[str, Iterable[Any]] = {
            "layer": range(len(shares)),
            "class": [names[int(share.argmax())] for share in shares],
        }
        for name, column in zip(names, shares.T, strict=True):
            columns[f"p({name})"] = np.char.mod("%.3f", column)
        columns["loss"] = np.char.mod("%.3f", losses)
        title = f"{one.label} ({shares[-1].max():.1%}): {_shown(one.text)}"
        note = f"loss: -log p({names[best]}), of the class that the last layer predicts"
        yield shares, row, _table(title, columns, note)


def _of_language(
    model: Model, prompts: Texts, answers: Sequence[str | None], **noise: Any
) -> Iterator[tuple[np.ndarray, Row, Table]]:
    """Yields the figures of each prompt, its row, and its table with a row for each
    layer that is read."""
    predictions = model.predict(prompts, answers=answers, **noise)
    for prompt, one in zip(prompts, predictions, strict=True):
        count = len(one.log_probabilities)
        row = {
            "prompt": prompt,
            "layers": list(one.layers),
            "answer": one.answer,
            "tokens": count,
            "losses": one.losses.tolist(),
            "accuracies": one.accuracies.tolist(),
        }
        columns = {
            "layer": one.layers,
            "loss": np.char.mod("%.3f", one.losses),
            "right tokens": np.char.mod("%.1f%%", 100.0 * np.asarray(one.accuracies)),
        }
        note = (
            f"loss: mean of the {count} tokens of the answer, its end among them, in"
            " nats"
        )
        yield one.losses, row, _table(_shown(prompt), columns, note)


def _table(title: str, columns: Mapping[str, Iterable[Any]], note: str) -> Table:
    rows = zip(*columns.values(), strict=True)
    return Table(
        title, tuple(columns), tuple(tuple(map(str, row)) for row in rows), note
    )


def _lines(path: Path) -> list[str]:
    content = read_text(path, where=f"--file {path}")
    lines = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty:
        raise UserError(
            f"--file {path} has empty lines, the first is line {empty[0]}; leave"
            " them out"
        )
    return lines


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 3]}..."
