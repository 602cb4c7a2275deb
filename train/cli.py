"""The command line: run, evaluate, report, figures, prepare, list."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tyro

from train.errors import UserError

__all__ = ["main"]

T = TypeVar("T")

HELP = ("-h", "--help")
USAGE = """\
usage: python -m train COMMAND ...

  run EXPERIMENT [--option value ...]   train and evaluate; goes on where an interrupted run stopped (--help: options)
  evaluate RUN                          evaluate the best checkpoint of a run folder again
  report RUN [RUN ...] [--out FOLDER]   compare runs: tables, figures, an HTML page, summary.json
  figures NAME [--option value ...]     draw the figures of a paper (yang2022) with the numbers beside them
  prepare SOURCE --from PATH            prepare a data source ahead of its first use
  list                                  the experiments
"""


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate the best checkpoint of a run folder again."""

    run: tyro.conf.Positional[Path]
    """Run folder."""


@dataclasses.dataclass(frozen=True)
class ReportArguments:
    """Compare runs: tables, figures, an HTML page, summary.json."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("runs/report")
    """Where the report goes."""


# What the tables of sources hold, repeated here because those import more than it takes to say what is wrong.
VideoSource = Literal["photos", "frames", "file"]
ImageSource = Literal["digits", "cifar10", "image_folder"]
SceneSource = Literal["shapes", "camvid", "cityscapes"]
TextSource = Literal["verdicts", "imdb", "sst2", "mnli", "table"]


@dataclasses.dataclass(frozen=True)
class PrepareArguments:
    """Prepare a data source ahead of its first use."""

    source: tyro.conf.Positional[Literal[VideoSource, ImageSource, SceneSource, TextSource]]
    """Kind of data: video, images with a class each, scenes with a map of classes, or texts with a class each."""
    root: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """The folder, archive, video file or table to read."""
    text_column: str = "text"
    """Of a table: the column of the text."""
    label_column: str = "label"
    """Of a table: the column of the class."""
    second_column: str | None = None
    """Of a table: the column of the second text, where records are pairs."""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit code: 0, 2 for what the user can mend, 130 when interrupted."""
    commands = {
        "run": _run,
        "evaluate": _evaluate,
        "report": _report,
        "figures": _figures,
        "prepare": _prepare,
        "list": _list,
    }
    if not arguments or arguments[0] in HELP:
        sys.stdout.write(USAGE)
        return 0 if arguments else 2
    try:
        if arguments[0] not in commands:
            raise UserError(f"unknown command {arguments[0]!r}; choose from {', '.join(commands)}")
        commands[arguments[0]](list(arguments[1:]))
    except UserError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    except SystemExit:
        return 0  # help was asked for; `_parse` turns every other exit into a UserError
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; a run goes on from its last checkpoint when the same command is given again\n")
        return 130
    return 0


def _run(arguments: list[str]) -> None:
    from train.experiments import EXPERIMENTS  # imports JAX: not needed to say what is wrong with a command

    name, choices = arguments[0] if arguments else "", ", ".join(EXPERIMENTS)
    if name in HELP:
        sys.stdout.write(f"usage: python -m train run EXPERIMENT [--option value ...]\nexperiments: {choices}\n")
        return
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}; choose from {choices}")
    default = EXPERIMENTS[name].config
    config = _parse(type(default), arguments[1:], f"python -m train run {name}", default)
    from train.runs import run

    run(config, experiment=name)


def _evaluate(arguments: list[str]) -> None:
    parsed = _parse(EvaluateArguments, arguments, "python -m train evaluate")
    from train.runs import evaluate

    evaluate(parsed.run)


def _report(arguments: list[str]) -> None:
    parsed = _parse(ReportArguments, arguments, "python -m train report")
    from train.runs import report

    report(parsed.runs, parsed.out)


def _figures(arguments: list[str]) -> None:
    from train.figures import FIGURES, FiguresConfig  # imports JAX: not needed to say what is wrong with a command

    name, choices = arguments[0] if arguments else "", ", ".join(FIGURES)
    if name in HELP:
        sys.stdout.write(f"usage: python -m train figures NAME [--option value ...]\nfigures: {choices}\n")
        return
    if name not in FIGURES:
        raise UserError(f"unknown figures {name!r}; choose from {choices}")
    config = _parse(FiguresConfig, arguments[1:], f"python -m train figures {name}")
    FIGURES[name](config)


def _prepare(arguments: list[str]) -> None:
    parsed = _parse(PrepareArguments, arguments, "python -m train prepare")
    from train.data import DataConfig, images, prepare, scenes, text

    source: Any = parsed.source  # of one of four kinds, which the type checker cannot tell apart
    columns = {name: getattr(parsed, name) for name in ("text_column", "label_column", "second_column")}
    if source in get_args(TextSource):
        text.prepare(text.TextConfig(source=source, root=parsed.root, **columns), log=print)
        return
    usual = PrepareArguments(source)
    for name, value in columns.items():
        if value != getattr(usual, name):
            raise UserError(f"--{name.replace('_', '-')} {value} is for the source table; leave it out")
    if source in get_args(ImageSource):
        images.prepare(images.ImageConfig(source=source, root=parsed.root), log=print)
    elif source in get_args(SceneSource):
        scenes.prepare(scenes.SceneConfig(source=source, root=parsed.root), log=print)
    else:
        prepare(DataConfig(source=source, root=parsed.root), log=print)


def _list(arguments: list[str]) -> None:
    if arguments:
        raise UserError(f"list takes no arguments, got {' '.join(arguments)}")
    from train.experiments import EXPERIMENTS

    for name, experiment in EXPERIMENTS.items():
        sys.stdout.write(
            f"{name}\n  {experiment.summary}\n  source: {experiment.paper}\n  expect: {experiment.expect}\n"
        )


def _parse(cls: type[T], arguments: list[str], program: str, default: T | None = None) -> T:
    """tyro's parser, with its box of an error folded into one line."""
    errors = io.StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(cls, args=arguments, prog=program, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(f"{_one_line(errors.getvalue()).rstrip('.')}; see `{program} --help`") from None


def _one_line(box: str) -> str:
    """The message of one of tyro's boxes: what stands between its title and the first rule."""
    message = []
    for line in box.splitlines()[1:]:
        text = line.strip(" │|")
        if text.strip("─-╰╯+"):
            message.append(text)
        elif message:
            break
    return " ".join(message)
