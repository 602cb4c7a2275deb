"""`unroll-jax predict`: predictions of a run for texts, tables, pictures and clips."""

import colorsys
import dataclasses
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from .cli import PredictArguments, parse
from .config.errors import UserError
from .config.run import RunConfig
from .core.folder import read_config
from .core.task import Row
from .data.pictures import IMAGE_SUFFIXES
from .data.rows import checked, read_rows, read_text
from .loading import Model, is_export, load, read_export
from .system.files import check_file, check_out, require_writable, write_all
from .system.terminal import Table, as_text
from .tasks.image_sets.options import ImageSetConfig
from .tasks.images.options import SceneTaskConfig, SupervisedConfig
from .tasks.language.instructions import read_prompts
from .tasks.language.options import LanguageConfig
from .tasks.language.task import paired
from .tasks.sparse_coding.options import SparseCodingConfig
from .tasks.text.options import TextRunConfig

JSON = (".json", ".jsonl")  # suffixes of files of objects
TABLES = (".csv", ".jsonl")
WIDEST = 80  # characters of a text in a title
FEW = 5  # classes whose probabilities have a column each
ROWS = "predictions.jsonl"  # of an output folder

Texts = Sequence[str]


class Answer(NamedTuple):
    """The prediction for one input.

    Attributes:
      figures: numbers that must be finite.
      row: JSON values.
      table: for the terminal. Tables of the same title are one.
      pictures: for the output folder, uint8 (height, width) or (frames, height, width)
        by name.
      classes: whether these are classes of pixels, not grey levels.
    """

    figures: np.ndarray
    row: Row
    table: Table
    pictures: Mapping[str, np.ndarray] = {}
    classes: bool = False


def command(arguments: list[str]) -> None:
    """`unroll-jax predict RUN --text TEXT ...` or `--file FILE ...`: predictions of a
    run."""
    hint = (
        "texts go behind --text, as --text=TEXT where one begins with a dash, or into"
        " the lines of --file"
    )
    parsed = parse(PredictArguments, arguments, "unroll-jax predict", hint=hint)
    if parsed.file and (parsed.text or parsed.second):
        raise UserError(
            "--file takes the place of --text and --second; give one or the other"
        )
    config = _config_of(parsed.run)
    place = _place(parsed, config)
    answers = []
    for number, answer in enumerate(_answers(parsed, config), start=1):
        if not np.isfinite(answer.figures).all():
            raise UserError(
                f"{parsed.run} computes values that are not finite for input {number}"
                f" at --gamma {parsed.gamma:g}; pass a lower one, or train the run"
                " again"
            )
        answers.append(answer)
    if place is None:
        _show(answers)
    else:
        _write(place, answers)


def _answers(parsed: PredictArguments, config: RunConfig) -> Iterator[Answer]:
    """Yields the answers to all inputs of a command, which are read before the
    model is."""
    noise = {"gamma": parsed.gamma, "seed": parsed.seed}
    if isinstance(config, LanguageConfig):
        file = _one_file(parsed.file)
        prompts, given = paired(*read_pairs(parsed.text, parsed.second, file))
        yield from _of_language(load(parsed.run), prompts, given, **noise)
        return
    if isinstance(config, TextRunConfig):
        file = _one_file(parsed.file)
        column = config.data.text_column
        texts, seconds = read_texts(parsed.text, parsed.second, file, column=column)
        yield from _of_texts(load(parsed.run), texts, seconds, **noise)
        return
    files = _files(parsed)
    if isinstance(config, SupervisedConfig):
        if parsed.gamma:
            raise UserError(
                f"--gamma {parsed.gamma:g} has no effect on a run of {config.task},"
                " which has no noise; leave it out"
            )
        of_files = _of_scenes if isinstance(config, SceneTaskConfig) else _of_images
        yield from of_files(load(parsed.run), files)
        return
    yield from _of_denoisers(load(parsed.run), config, files, **noise)


def _files(parsed: PredictArguments) -> list[Path]:
    """Returns the files of pictures or clips, those of a folder by name."""
    if parsed.text or not parsed.file:
        raise UserError(
            f"{parsed.run} is a run on pictures or clips; give them by --file, one or"
            " more, or a folder"
        )
    files: list[Path] = []
    for path in parsed.file:
        inside = [path]
        if path.is_dir():
            inside = sorted(
                one for one in path.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES
            )
        if not inside:
            raise UserError(
                f"--file {path} holds no pictures; give the folder that has them"
            )
        files += inside
    return files


def _one_file(files: Sequence[Path]) -> Path | None:
    if len(files) > 1:
        raise UserError(
            f"--file of a run on texts is one file, got {len(files)}; put the texts"
            " into one"
        )
    return files[0] if files else None


def _place(parsed: PredictArguments, config: RunConfig) -> Path | None:
    """Returns the file or folder for the predictions, which can be written, or None
    where they are printed. A name with a suffix is a file."""
    out = parsed.out
    paints = not isinstance(config, LanguageConfig | TextRunConfig | SupervisedConfig)
    paints = paints or isinstance(config, SceneTaskConfig)
    if out is None and paints:
        out = parsed.run / "predictions"
    if out is None:
        return None
    if out.suffix and not out.is_dir():
        if paints:
            raise UserError(
                f"--out {out} is the name of a file; a run of {config.task} makes"
                " pictures, so give a folder"
            )
        inputs = (*parsed.file, parsed.run)
        return check_file(out, overwrite=parsed.overwrite, inputs=inputs)
    folder = check_out(out)
    if folder.exists() and any(folder.iterdir()) and not parsed.overwrite:
        raise UserError(
            f"--out {out} holds files; pass another folder, or --overwrite, which"
            " replaces files of the same names"
        )
    require_writable(folder)
    return folder


def _write(place: Path, answers: Sequence[Answer]) -> None:
    """Writes rows to a file, or rows and pictures to a folder."""
    lines = [f"{json.dumps(one.row, allow_nan=False)}\n" for one in answers]
    content = "".join(lines).encode()
    if place.suffix and not place.is_dir():
        write_all(place.parent, {place.name: content})
        print(f"{place}: predictions (inputs: {len(lines)})")
        return
    pictures = 0
    for answer in answers:
        for name, pixels in answer.pictures.items():
            if pixels.ndim == 2:
                write_all(place, {f"{name}.png": _png(pixels, answer.classes)})
                pictures += 1
                continue
            frames = {f"{n:04d}.png": _png(one) for n, one in enumerate(pixels, 1)}
            write_all(place / name, frames)
            pictures += len(frames)
    write_all(place, {ROWS: content})
    print(f"{place}: {ROWS} (inputs: {len(lines)}), pictures: {pictures}")


def _show(answers: Sequence[Answer]) -> None:
    """Prints the tables of answers. Those without a title are one."""
    first = answers[0].table
    if not first.title:
        rows = tuple(row for one in answers for row in one.table.rows)
        print(as_text(dataclasses.replace(first, rows=rows)))
        return
    for number, answer in enumerate(answers, start=1):
        print(f"{number}. {as_text(answer.table)}")


def _of_images(model: Model, files: Sequence[Path]) -> Iterator[Answer]:
    """Yields class and probabilities of each picture, and its certified radius if the
    task has one."""
    spec = model.task.inner.spec
    names = spec.class_names
    size = f"{spec.shape[0]} x {spec.shape[1]}"
    predictions = model.predict([str(file) for file in files])
    for file, one in zip(files, predictions, strict=True):
        shares = np.asarray(one.probabilities, np.float64)
        row = {
            "file": str(file),
            "label": one.label,
            "probabilities": dict(zip(names, shares.tolist(), strict=True)),
        }
        shown = {"picture": str(file), "class": one.label}
        note = ""
        if len(names) > FEW:
            shown["p"] = f"{shares.max():.3f}"
        else:
            for name, share in zip(names, shares, strict=True):
                shown[f"p({name})"] = f"{share:.3f}"
        if hasattr(one, "radius"):
            row["radius"] = one.radius
            shown["radius"] = f"{one.radius:.3f}"
            note = (
                "radius: no disturbance of less Euclidean norm changes the class of"
                f" the picture as the network sees it, {size} with pixels in [0, 1]"
            )
        yield Answer(shares, row, _table("", {k: [v] for k, v in shown.items()}, note))


def _of_scenes(model: Model, files: Sequence[Path]) -> Iterator[Answer]:
    """Yields the class of every pixel of each picture, and the share of each class."""
    names = model.task.inner.spec.class_names
    predictions = model.predict([str(file) for file in files])
    for file, name, classes in zip(files, _names(files), predictions, strict=True):
        counts = np.bincount(classes.ravel(), minlength=len(names)) / classes.size
        row = {
            "file": str(file),
            "picture": f"{name}.png",
            "shares": dict(zip(names, counts.tolist(), strict=True)),
        }
        table = _table("", {"picture": [file], "class": [names[counts.argmax()]]}, "")
        yield Answer(counts, row, table, {name: classes}, True)


def _of_denoisers(
    model: Model, config: RunConfig, files: Sequence[Path], **noise: Any
) -> Iterator[Answer]:
    """Yields pictures or clips as the model makes them: without noise, or of codes."""
    if isinstance(config, ImageSetConfig):  # the files are one set
        outputs = model.predict([str(file) for file in files], **noise)
    else:
        outputs = (model.predict(str(file), **noise) for file in files)
    for file, name, output in zip(files, _names(files), outputs, strict=True):
        pixels = output
        row = {"file": str(file), "picture": f"{name}.png"}
        if isinstance(config, SparseCodingConfig):
            pixels = output.image
            row["code"] = output.code.tolist()
        if pixels.ndim == 3:
            row["picture"] = f"{name}/"
        table = _table("", {"file": [file], "picture": [row["picture"]]}, "")
        yield Answer(pixels, row, table, {name: pixels})


def _names(files: Sequence[Path]) -> list[str]:
    """Returns a name for the output of each file: its own without suffix, with a number
    where several are alike."""
    stems = [file.stem for file in files]
    return [
        stem if stems.count(stem) == 1 else f"{stem}-{number}"
        for number, stem in enumerate(stems, start=1)
    ]


def _png(pixels: np.ndarray, classes: bool = False) -> bytes:
    """Returns a PNG of grey levels, or of classes, which have a colour each."""
    picture = Image.fromarray(pixels)
    if classes:
        hues = [
            colorsys.hsv_to_rgb(0.618 * place % 1.0, 0.7, 0.9) for place in range(256)
        ]
        picture.putpalette([round(255 * part) for hue in hues for part in hue])
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def _config_of(run: Path) -> RunConfig:
    """Returns the configuration of a run or an export."""
    if is_export(run):
        return read_export(run).config
    return read_config(run)[1]


def read_texts(
    texts: Texts, seconds: Texts, file: Path | None, *, column: str = "text"
) -> tuple[Texts, Texts | None]:
    """Returns texts and second texts, or None, from the command line, the lines of a
    file, or a column of a table."""
    if file is None:
        return texts, seconds or None
    if file.suffix.lower() == ".json":
        raise UserError(
            f"--file {file} is of JSON, which language runs take; give a file with a"
            " text a line, or a table (.csv, .jsonl)"
        )
    if _is_table(file, column):
        rows = read_rows(file, (column,), where=f"--file {file}")
        return [checked(row.fields[column], where=row.where) for row in rows], None
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


def _is_table(file: Path, column: str) -> bool:
    """Returns True for a table. A .tsv without a header has pairs of texts."""
    if file.suffix.lower() != ".tsv":
        return file.suffix.lower() in TABLES
    return column in _lines(file)[0].split("\t")


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
) -> Iterator[Answer]:
    """Yields the probabilities of each text, with a table that has a row for each
    layer."""
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
        yield Answer(shares, row, _table(title, columns, note))


def _of_language(
    model: Model, prompts: Texts, answers: Sequence[str | None], **noise: Any
) -> Iterator[Answer]:
    """Yields the figures of each prompt, with a table that has a row for each layer
    that is read."""
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
        yield Answer(one.losses, row, _table(_shown(prompt), columns, note))


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
