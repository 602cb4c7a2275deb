"""`python -m train predict`: what every layer of a text run says of texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .config.commands import PredictArguments
from .config.errors import UserError
from .config.text import TextRunConfig
from .data.rows import decoded
from .loading import load
from .parsing import parse
from .runs import read_config
from .system.terminal import Table, as_text
from .tasks.common import check_noise
from .tasks.reading import Prediction
from .weights import is_export, read_export

LARGEST = 1 << 26  # bytes of a --file; more is taken for a file without end


def command(arguments: list[str]) -> None:
    """`python -m train predict RUN --text TEXT ...`: what every layer of a text run says of texts."""
    hint = "write a text that begins with a dash as --text=TEXT or --second=TEXT, several as lines of --file"
    parsed = parse(PredictArguments, arguments, "python -m train predict", hint=hint)
    texts, seconds = read_texts(parsed.text, parsed.second, parsed.file)
    check_noise(parsed.gamma, parsed.seed)
    export = read_export(parsed.run) if is_export(parsed.run) else None
    experiment, config = (export.card["experiment"], export.config) if export else read_config(parsed.run)
    if not isinstance(config, TextRunConfig):
        raise UserError(
            f"{parsed.run} is a run of {experiment}, which classifies no text; give one of a text experiment"
        )
    model = load(parsed.run)
    predictions = model.predict(texts, seconds=seconds, gamma=parsed.gamma, seed=parsed.seed)
    for number, prediction in enumerate(predictions, start=1):
        print(_described(number, prediction))


def read_texts(
    texts: Sequence[str], seconds: Sequence[str], file: Path | None
) -> tuple[Sequence[str], Sequence[str] | None]:
    """Texts and their second ones, None where there are none, from the command line or the lines of a file."""
    if file is None:
        return texts, seconds or None
    if texts or seconds:
        raise UserError("--file takes the place of --text and --second; give one or the other")
    lines = _lines(file)
    parts = [line.split("\t") for line in lines]
    if all(len(part) == 1 for part in parts):
        return lines, None
    odd = next((number for number, part in enumerate(parts, start=1) if len(part) != 2), None)
    if odd is not None:
        count = len(parts[odd - 1]) - 1
        raise UserError(
            f"--file {file} line {odd} has {count} tabs where others have 1; put one between the texts of a pair"
        )
    return [first for first, _ in parts], [second for _, second in parts]


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:  # no more than that of a file without end
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"--file {path} cannot be read ({error.strerror}); give a file with a text a line") from error
    if len(content) > LARGEST:
        raise UserError(f"--file {path} holds more than {LARGEST >> 20} MiB; give a file with a text a line, in parts")
    content = decoded(content, where=f"--file {path}")
    lines = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty:
        raise UserError(f"--file {path} has empty lines, the first is line {empty[0]}; leave them out")
    return lines


def _described(number: int, prediction: Prediction) -> str:
    """A table with a row for each layer; the loss is that of the class predicted in the end."""
    last, names = prediction.probabilities[-1].argmax(), prediction.class_names
    rows = tuple(
        (
            str(layer),
            names[int(row.argmax())],
            *(f"{share:.3f}" for share in row),
            f"{-np.log(max(row[last], np.finfo(np.float32).tiny)):.3f}",
        )
        for layer, row in enumerate(prediction.probabilities)
    )
    shown = prediction.text if len(prediction.text) <= 80 else f"{prediction.text[:77]}..."
    title = f"{number}. {prediction.label} ({prediction.probabilities[-1].max():.1%}): {shown}"
    note = f"loss: -log p({names[int(last)]}), of the class that the last layer predicts"
    return as_text(Table(title, ("layer", "class", *(f"p({name})" for name in names), "loss"), rows, note))
