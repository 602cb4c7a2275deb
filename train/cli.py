"""The command line: run, search, evaluate, export, report, figures, prepare, list."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tyro

from train.arguments import ExportArguments, SearchArguments
from train.errors import UserError

__all__ = ["main"]

T = TypeVar("T")

HELP = ("-h", "--help")
USAGE = """\
usage: python -m train COMMAND ...

  run EXPERIMENT [--option value ...]   train and evaluate; goes on where an interrupted run stopped (--help: options)
  search EXPERIMENT [--option value ..] search over its rates and bounds; feasible first, then the validation metric
  evaluate RUN                          evaluate the best checkpoint of a run folder again
  export RUN [--out FOLDER]             write the best checkpoint's parameters as safetensors, with their configuration
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


@dataclasses.dataclass(frozen=True)
class PrepareArguments:
    """Prepare a data source ahead of its first use."""

    source: tyro.conf.Positional[Literal[VideoSource, ImageSource, SceneSource]]
    """Kind of data: video, images with a class each, or scenes with a map of classes."""
    root: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """The folder, archive or video file to read."""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit code: 0, 2 for what the user can mend, 130 when interrupted."""
    commands = {
        "run": _run,
        "search": _search,
        "evaluate": _evaluate,
        "export": _export,
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
        sys.stderr.write(
            "interrupted; a run, or a search, goes on from its last checkpoint when the same command is given again\n"
        )
        return 130
    return 0


def _run(arguments: list[str]) -> None:
    if name := _experiment("run", arguments):
        from train.experiments import EXPERIMENTS
        from train.runs import run

        default = EXPERIMENTS[name].config
        run(_parse(type(default), arguments[1:], f"python -m train run {name}", default), experiment=name)


def _search(arguments: list[str]) -> None:
    if name := _experiment("search", arguments):
        from train.experiments import EXPERIMENTS
        from train.search import search

        default = dataclasses.replace(EXPERIMENTS[name].config, out=None)
        whole, program = SearchArguments(config=default), f"python -m train search {name}"
        parsed = _parse(SearchArguments[type(default)], arguments[1:], program, whole)
        over = {option.replace("_", "-"): text for option, text in vars(parsed.over).items()}
        search(parsed.config, experiment=name, over=over, sampler=parsed.sampler, trials=parsed.trials)


def _experiment(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    from train.experiments import EXPERIMENTS  # imports JAX: not needed to say what is wrong with a command

    name, choices = arguments[0] if arguments else "", ", ".join(EXPERIMENTS)
    if name in HELP:
        sys.stdout.write(f"usage: python -m train {command} EXPERIMENT [--option value ...]\nexperiments: {choices}\n")
        return None
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}; choose from {choices}")
    return name


def _evaluate(arguments: list[str]) -> None:
    parsed = _parse(EvaluateArguments, arguments, "python -m train evaluate")
    from train.runs import evaluate

    evaluate(parsed.run)


def _export(arguments: list[str]) -> None:
    parsed = _parse(ExportArguments, arguments, "python -m train export")
    from train.export import export

    export(parsed.run, parsed.out)


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
    from train.data import DataConfig, images, prepare, scenes

    source: Any = parsed.source  # of one of three kinds, which the type checker cannot tell apart
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
