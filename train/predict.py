"""The way back from a run: `load` gives the model with its preparation, tokenizer and architecture; and `predict`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .checkpoint import Checkpoints, way_back
from .config.commands import PredictArguments
from .config.errors import UserError, one_line
from .config.run import RunConfig
from .config.text import TextRunConfig
from .data.rows import decoded
from .parsing import parse
from .registry import PASS_IT
from .runs import FACTS, read_config, require_checkpoints
from .step import state_like
from .system.run_files import read_object, way_out
from .system.terminal import Table, as_text
from .task import Params, Row, Task
from .tasks.common import check_noise
from .tasks.reading import Prediction
from .tasks.table import by_config, options_of, rebuild
from .weights import AGAIN, CONFIG, is_export, read_export, restored

Log = Callable[[str], None]
LARGEST = 1 << 26  # bytes of a --file; more is taken for a file without end


class Model:
    """A trained model, and all it takes to use it.

    Attributes:
      task: what was trained, without its data.
      params: of the best checkpoint.
      config: of the run.
      card: what is known of it: experiment, step, and of an export figures and whether it is feasible.
    """

    def __init__(self, task: Task, params: Params, card: dict[str, Any]):
        self.task, self.params, self.card = task, params, card

    @property
    def config(self) -> RunConfig:
        """The configuration that it was trained with."""
        return self.task.config

    def predict(self, inputs: Any, **options: Any) -> Any:
        """What the model makes of inputs of its kind; see the task's ``predict``.

        Video: a picture or video, as a file or an array; denoised frames come back. Images and scenes: files or arrays,
        one or a list; classes, or maps of them. Text: strings, with ``seconds=`` where the run is of pairs. A task of
        your own: a batch.
        """
        return self.task.predict(self.params, inputs, **options)


def load(folder: Path | str, *, task: Task | None = None, log: Log = print) -> Model:
    """Loads the model of a run folder (its best checkpoint) or of an export, wherever it was trained.

    Args:
      folder: of the run, or the export.
      task: where it was trained on a task of your own, an `OwnTask` or any `Task`, that task; no other needs one. Its
        options are those that the folder holds, whatever it has itself, but for its mesh.
      log: where messages go.

    Raises:
      UserError: if the folder is neither, is damaged, or was written by another version.
    """
    folder, kind = Path(folder), options_of(task)
    if is_export(folder):
        found = read_export(folder, kind)
        path = folder / CONFIG
        source, mend = (path, AGAIN) if task is None else ("the task that was passed", PASS_IT)
        task = _rebuilt(found.config, found.facts, path, AGAIN) if task is None else by_config(task, found.config)
        params, like = restored(task, found.arrays, source=source, mend=mend), state_like(task).params
        return Model(task, jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, like)), found.card)
    experiment, config = read_config(folder, kind)
    require_checkpoints(folder, experiment)
    path = folder / FACTS
    task = _rebuilt(config, read_object(path), path, way_out(path)) if task is None else by_config(task, config)
    with Checkpoints(folder / "checkpoints", read_only=True, mend=way_back(task.config), log=log) as checkpoints:
        step, state, notes = checkpoints.best(state_like(task))
    return Model(task, state.evaluated, {"experiment": experiment, "step": step, "score": notes["score"]})


def command(arguments: list[str]) -> None:
    """`python -m train predict RUN --text TEXT ...`: what every layer of a text run says of texts."""
    hint = "write a text that begins with a dash as --text=TEXT or --second=TEXT, several as lines of --file"
    parsed = parse(PredictArguments, arguments, "python -m train predict", hint=hint)
    texts, seconds = read_texts(parsed.text, parsed.second, parsed.file)
    check_noise(parsed.gamma, parsed.seed)
    found = read_export(parsed.run) if is_export(parsed.run) else None
    experiment, config = (found.card["experiment"], found.config) if found else read_config(parsed.run)
    if not isinstance(config, TextRunConfig):
        raise UserError(
            f"{parsed.run} is a run of {experiment}, which classifies no text; give one of a text experiment"
        )
    model = load(parsed.run)
    found = model.predict(texts, seconds=seconds, gamma=parsed.gamma, seed=parsed.seed)
    for number, prediction in enumerate(found, start=1):
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


def _rebuilt(config: RunConfig, facts: Row, path: Path, mend: str) -> Task:
    try:
        return rebuild(config, facts)
    except UserError:
        raise
    except Exception as error:  # what is wrong with facts shows where they are used
        raise UserError(f"{path} is damaged ({one_line(error)}); {mend}") from None


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
