"""`python -m train predict`: what every layer of a trained run says of texts at hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from train.data.text import TokenBatch, check_texts, token_batch
from train.data.text.originals import decoded
from train.errors import UserError
from train.report.tables import Table, as_text
from train.runs import best_checkpoint, read_config
from train.text.config import TextRunConfig
from train.text.material import TextMaterial
from train.text.task import text_task

__all__ = ["Prediction", "predict", "read_texts"]

Log = Callable[[str], None]
# Texts a batch.
TOGETHER = 32
SEEDS = 2**32
LARGEST = 1 << 26  # bytes of a --file; more is taken for a file without end


class Prediction(NamedTuple):
    """What a classifier says of one text.

    Attributes:
      text: the text, or of a pair the first.
      label: the most probable class of the last layer.
      probabilities: of the classes by layer, (L + 1, classes).
    """

    text: str
    label: str
    probabilities: np.ndarray


def predict(
    run: Path,
    texts: Sequence[str],
    seconds: Sequence[str] | None = None,
    *,
    gamma: float = 0.0,
    seed: int = 0,
    log: Log = print,
) -> list[Prediction]:
    """Classifies texts with the best checkpoint of a run, and says what every layer made of them.

    Args:
      run: the run's folder; its data must be at hand, as the words it knows are theirs.
      texts: to classify.
      seconds: the second text of each, where the run is of pairs.
      gamma: strength of noise on the embeddings, as in training.
      seed: of the noise; that of a text depends on its place among the texts, not on the other ones.
      log: takes the table, and how many texts were too long.

    Raises:
      UserError: if the run is none of text, a text is empty, or texts and pairs do not go together.
    """
    if not (gamma >= 0.0 and np.isfinite(gamma)):
        raise UserError(f"--gamma must be finite and at least 0, got {gamma}")
    if not 0 <= seed < SEEDS:
        raise UserError(f"--seed must be a whole number in [0, 2**32), got {seed}")
    experiment, _, config = read_config(run)
    if not isinstance(config, TextRunConfig):
        raise UserError(f"{run} is a run of {experiment}, which classifies no text; give one of a text experiment")
    best = best_checkpoint(run, log=log)
    material: TextMaterial = best.data
    _check_count(texts, seconds, pairs=material.pairs)
    probabilities, truncated = _probabilities(best.config, material, best.state.evaluated, texts, seconds, gamma, seed)
    if truncated:
        longest = best.config.max_length
        log(f"{truncated} of {len(texts)} texts are longer than {longest} tokens; their ends are left out")
    names = material.class_names
    found = [
        Prediction(text, names[int(own[-1].argmax())], own) for text, own in zip(texts, probabilities, strict=True)
    ]
    for number, prediction in enumerate(found, start=1):
        log(_described(number, prediction, names))
    return found


def read_texts(
    texts: Sequence[str], seconds: Sequence[str], file: Path | None
) -> tuple[Sequence[str], Sequence[str] | None]:
    """Texts and their second ones, None where there are none, from the command line or the lines of a file.

    Raises:
      UserError: if there are none, both ways are used at once, or the file cannot be read, is not UTF-8, or has an
        empty line or some lines with a tab and some without.
    """
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


def _check_count(texts: Sequence[str], seconds: Sequence[str] | None, *, pairs: bool) -> None:
    if not texts:
        raise UserError("predict needs texts; give --text, or a --file of lines")
    if seconds is not None and len(seconds) != len(texts):
        raise UserError(f"--second must be as many as --text, {len(texts)}, got {len(seconds)}")
    if pairs and seconds is None:
        raise UserError("the run classifies pairs of texts; give the second with --second, or behind a tab in the file")
    if not pairs and seconds is not None:
        raise UserError("the run classifies single texts; leave out --second, or the tabs in the lines of --file")


def _probabilities(
    config: Any,
    material: TextMaterial,
    params: Any,
    texts: Sequence[str],
    seconds: Sequence[str] | None,
    gamma: float,
    seed: int,
) -> tuple[np.ndarray, int]:
    """(texts, L + 1, classes), and how many texts were truncated."""
    task, found, truncated = text_task(config, material), [], 0
    deviation, key = np.sqrt(task.variance(gamma)), jax.random.key(seed)

    def noise_of(number: jax.Array) -> jax.Array:
        # As long as any text, and of its own key: what is said of a text does not depend on those beside it.
        return deviation * jax.random.normal(jax.random.fold_in(key, number), (config.max_length, task.model.dim))

    @jax.jit
    def run(params: Any, batch: Any, numbers: jax.Array) -> jax.Array:
        noise = jax.vmap(noise_of)(numbers)[:, : batch.tokens.shape[1]] if gamma > 0.0 else None
        return task.outputs(params, batch, noise, jax.nn.softmax)

    # All before the first is run: a text that cannot be used is told at once.
    for number, (batch, longer) in enumerate(_batches(material, texts, seconds, config.max_length)):
        numbers = number * TOGETHER + np.arange(len(batch.tokens))
        found.append(np.swapaxes(jax.device_get(run(params, batch, numbers)), 0, 1))
        truncated += longer
    return np.concatenate(found), truncated


def _batches(
    material: TextMaterial, texts: Sequence[str], seconds: Sequence[str] | None, max_length: int
) -> list[tuple[TokenBatch, int]]:
    parts = [slice(start, start + TOGETHER) for start in range(0, len(texts), TOGETHER)]
    try:
        return [
            token_batch(
                material.tokens.tokenizer,
                texts[part],
                None if seconds is None else seconds[part],
                max_length=max_length,
            )
            for part in parts
        ]
    except UserError:
        # It was checked by its place in the part; here it is known which of all texts it is.
        check_texts(texts)
        check_texts(seconds or (), what="second texts")
        raise


def _described(number: int, prediction: Prediction, names: Sequence[str]) -> str:
    """A table with a row for each layer; the loss is that of the class predicted in the end."""
    last = prediction.probabilities[-1].argmax()
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
