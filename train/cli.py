"""The arguments of commands; options from their words, by tyro, and from files of
options; errors as one line."""

import collections
import contextlib
import dataclasses
import difflib
import io
import os
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from .config.errors import OptionError, UserError, one_line
from .config.options import Count, Fraction, NonNegative, Seed, from_json, options
from .config.run import PLACE, RunConfig
from .registry import EXPERIMENTS
from .system.files import expanded, read_object, read_regular
from .tasks.images.options import ImageSource, SceneSource
from .tasks.language.options import InstructionSource
from .tasks.text.options import TextSource
from .tasks.video.options import VideoSource

T = TypeVar("T")

C = TypeVar("C")
ExportFormat = Literal["unroll_jax", "transformers"]

# Fields of an evaluation that are not options of its run.
PLACES = ("run", "mesh", "on_source", "on_root")
HELP = ("-h", "--help")
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has errors for those
# the commands that take the folder of a run in place of an experiment
WITH_FOLDERS = ("run", "plan")
USAGE = """\
usage: unroll-jax {command} EXPERIMENT [--option value ...]
{folder}experiments: {experiments}
options: unroll-jax {command} EXPERIMENT --help shows those of one
"""
FOLDER = """\
       unroll-jax {} FOLDER [--option value ...], with the options of that run
"""
WAY_OUT = "give a TOML file of options, or the config.json of a run of this experiment"
FRAME = re.compile(r"[\u2500-\u257f]|-{5,}")  # lines around and between tyro's messages
NOT_OPTIONS = ("version", "experiment", "task", "found")  # of a config.json
NARROWEST = 40  # columns in which tyro can draw
INDENTED = re.compile(r"^( {5,})\S.*(?:\n\1\S.*)*", re.MULTILINE)  # a paragraph


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate the best checkpoint of a run folder again."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    mesh: str | None = None
    """Devices by axis, as in data=2,fsdp=4. None means data over all that divide the
    batch."""
    on_source: VideoSource | None = None
    """Of video: another source whose test split to evaluate on. Its figures go to
    evaluation_on_NAME_SUM.json, with a checksum of its path."""
    on_root: str | None = None
    """Path of the files of that source."""
    test_disturbances: tuple[str, ...] | None = None
    """Of video: disturbances of the frames, as in blur=1. This option and the next
    replace the run's."""
    test_gammas: tuple[float, ...] | None = None
    """Noise levels, of runs whose every layer has a loss."""

    @property
    def disturbances(self) -> dict[str, Any]:
        """The options of the evaluation that were given, by field."""
        names = [
            field.name for field in dataclasses.fields(self) if field.name not in PLACES
        ]
        return {
            name: value for name in names if (value := getattr(self, name)) is not None
        }


@dataclasses.dataclass(frozen=True)
class ReportArguments:
    """Compare runs: tables, figures, an HTML page, summary.json."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("runs/report")
    """Folder for the report."""


@options
class PrepareArguments:
    """Prepare a data source ahead of its first use."""

    source: tyro.conf.Positional[
        Literal[VideoSource, ImageSource, SceneSource, TextSource, InstructionSource]
    ]
    """Data of video, images, scenes, texts, or instructions with their answers."""
    root: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """The folder, archive, video file or table to read."""
    validation_share: Fraction = 0.1
    """Of images, texts and instructions: the run's share. Data are prepared for each
    share."""
    text_column: str = "text"
    """Of a table: the column of the text."""
    label_column: str = "label"
    """Of a table: the column of the class."""


@options
class PredictArguments:
    """Show what a run makes of texts, pictures or clips, by its best checkpoint. Of a
    text run: class, probabilities and loss of every layer. Of a language run: mean loss
    of the tokens of an answer (nats) and share of right ones, of every layer. Of a run
    on images: class and probabilities, and if it is certified the radius. Of other runs
    on pictures or clips: those that come out.
    """

    run: tyro.conf.Positional[Path]
    """Run folder, or its export."""
    text: tuple[str, ...] = ()
    """Texts; of a language run prompts."""
    second: tuple[str, ...] = ()
    """The second text of each, where the run is of pairs; of a language run the
    answer to each."""
    file: tuple[Path, ...] = ()
    """Pictures or clips, or a folder of pictures. Of runs on texts a UTF-8 file in
    place of --text: a table (.csv, .jsonl) with the run's column of texts, or a text a
    line, a tab before its second text or answer. Of a language run also a .json list or
    .jsonl of objects with instruction, output and perhaps input.
    """
    out: Path | None = None
    """Folder for predictions.jsonl, an object a line for each input, and for pictures;
    or a .jsonl file. None prints tables, and puts pictures into RUN/predictions."""
    overwrite: bool = False
    """Replace files at --out that are there already."""
    gamma: NonNegative = 0.0
    """Strength of noise on the embeddings, as in training."""
    seed: Seed = 0
    """Of the noise."""


@options
class GenerateArguments:
    """Answer prompts with a language model. Where its first layers draft, greedy
    answers stay the same, and sampled ones have the same distribution, but are other
    texts for another exit layer or draft length.
    """

    source: tyro.conf.Positional[str]
    """Run folder of an sft experiment, its export, or folder of transformers."""
    prompts: Path
    """UTF-8: a .json list or .jsonl of objects with an instruction and perhaps an
    input; else a text a line."""
    out: Path | None = None
    """JSON file for the answers, as AlpacaEval reads it. None prints them."""
    overwrite: bool = False
    """Replace the file --out where it is there already."""
    name: str | None = None
    """Name of the generator in the file. None takes the name of the source, with
    gamma where there is noise."""
    limit: Count | None = None
    """Number of prompts, from the first. None takes all."""
    chat: bool = True
    """Put prompts through the template of the run or tokenizer. Else they are texts
    to continue."""
    max_tokens: Count | None = None
    """Longest answer, in tokens. None takes 256, or half the context where that is
    shorter."""
    batch: Count = 8
    """Prompts answered together."""
    temperature: NonNegative = 0.0
    """Divides the logits. 0 takes the most probable token."""
    gamma: NonNegative = 0.0
    """Strength of noise on the embeddings of all tokens, also of the answer: of a run,
    in the unit of its training. Else the standard deviation of the noise over the
    embedding table's.
    """
    seed: Seed = 0
    """Of noise and sampling."""
    exit_layer: Count | None = None
    """Number of layers that draft, for --draft-length."""
    draft_length: Count | None = None
    """Tokens that --exit-layer drafts before the other layers verify them."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of parameters, and off CPUs of computation, too. None takes the source's."""


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write the parameters of a run's best checkpoint as model.safetensors, with
    their config.json."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    out: Path | None = None
    """Folder for the export. None means the folder export in the run's, or
    transformers after the format."""
    format: ExportFormat = "unroll_jax"
    """unroll_jax: all parameters, for `load` and this program; transformers: the
    decoder of an sft run, with low-rank changes merged, and its tokenizer, as a folder
    of transformers.
    """
    mesh: str | None = None
    """Devices by axis, as in fsdp=8, where one cannot hold the parameters. None
    means data over all of them."""


@dataclasses.dataclass(frozen=True)
class SweepArguments(Generic[C]):
    """Train and evaluate a grid of runs, and write their table.

    --over.OPTION VALUE,VALUE,... makes an option of the experiment an axis, as in
    --over.num-layers 3,5 --over.method plain,constrained --over.seed 0,1,2. The last
    part of a name is enough where only one option has it. Every cell is a run folder
    under --out. The same command resumes a sweep, and more values extend it.

    --over.OPTION LOW:HIGH, as in --over.learning-rate 1e-4:1e-2, searches a range: in
    each cell, --trials runs by Bayesian optimisation, of which the best on validation
    is tested. Processes and machines that share the folder share the trials.
    """

    config: Annotated[C, tyro.conf.arg(name="")]
    """Options that all cells share. --out is the folder of the sweep."""
    jobs: int = 1
    """Cells that are computed at the same time, each in a process with its share of
    the cores and GPUs."""
    trials: int = 0
    """Runs of each cell that search the ranges."""


def parse(
    cls: type[T],
    arguments: list[str],
    program: str,
    default: T | None = None,
    *,
    hint: str = "",
) -> T:
    """Parses a command's options into a dataclass. ``hint`` is for unknown options."""
    _check_words(arguments)
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    given_default: dict[str, Any] = {} if default is None else {"default": default}
    # no terminals: colours would be escaped
    printed, shown = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(shown):
            return tyro.cli(cls, args=arguments, prog=program, **given_default)
    except SystemExit as ended:
        if not ended.code:
            sys.stdout.write(filled(shown.getvalue()))
            raise
        message = f"{_message(printed.getvalue(), hint)}; see `{program} --help`"
        raise _option_error(ended) or UserError(message) from None


def filled(text: str) -> str:
    """Returns tyro's help with full lines, where it keeps the breaks of the source."""
    width = shutil.get_terminal_size().columns

    def fill(match: re.Match[str]) -> str:
        words = " ".join(match[0].split())
        room = width - len(match[1])
        lines = textwrap.fill(words, room, break_on_hyphens=False)
        return textwrap.indent(lines, match[1])

    return INDENTED.sub(fill, text)


def configured(
    command: str, arguments: list[str], known: tuple[str, RunConfig] | None = None
) -> tuple[str, RunConfig] | None:
    """The experiment and its configuration (of a run: ``known``), with the options
    after its name, or None for help."""
    options = arguments[1:]
    if known is None:
        name = experiment_named(command, arguments)
        if name is None:
            return None
        known = name, EXPERIMENTS[name].config
    name, usual = known
    program = f"unroll-jax {command} {arguments[0]}"
    config = parse(type(usual), options, program, usual)
    if config.config:
        default = with_file(config.config, usual)
        config = parse(type(usual), options, program, default)
    return name, config


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names, or None where only help was asked for."""
    name = arguments[0] if arguments else ""
    takes_folders = command in WITH_FOLDERS
    if name in HELP:
        folder = FOLDER.format(command) if takes_folders else ""
        names = ", ".join(EXPERIMENTS)
        sys.stdout.write(
            USAGE.format(command=command, folder=folder, experiments=names)
        )
        return None
    if name.startswith("-"):
        raise UserError(
            f"{command} has its experiment first, as in `{command} demo {name} ...`,"
            f" got {name}"
        )
    if os.sep in name or name in (os.curdir, os.pardir):
        problem = f"{command} takes the name of an experiment, not a folder, got {name}"
        if takes_folders:
            problem = (
                f"there is no run folder {name}; give that of a run, or the name of an"
                " experiment"
            )
        raise UserError(problem)
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def with_file(file: str, usual: RunConfig) -> RunConfig:
    """The configuration with the options of a TOML file, or all those of the
    config.json of a run but its place."""
    path = expanded(file, "--config")
    source = f"--config {file}"
    if path.suffix == ".toml":
        try:
            content = read_regular(path, where=source, mend=WAY_OUT)
            text = content.decode("utf-8-sig")  # editors may write a mark
            words = list(_words(tomllib.loads(text)))
        except (ValueError, RecursionError) as error:
            problem = f"{source} cannot be read ({one_line(error)}); {WAY_OUT}"
            raise UserError(problem) from error
        return parse(
            type(usual), words, "unroll-jax run", usual, hint=f"leave it out of {file}"
        )
    missing = f"{source} does not exist; {WAY_OUT}"
    values = read_object(path, missing=missing, mend=WAY_OUT)
    for name in NOT_OPTIONS:
        values.pop(name, None)
    values |= {name: getattr(usual, name) for name in PLACE}
    return from_json(type(usual), values, source=source, again=WAY_OUT)


def given(arguments: Iterable[str], option: str) -> bool:
    """Returns whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], known: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the known ones, or missing."""
    words = f"no {what} given"
    if arguments:
        near = difflib.get_close_matches(arguments[0], known, n=1)
        words = f"unknown {what} {arguments[0]!r}{_suggestion(near)}"
    choices = f"choose from {', '.join(known)}"
    if len(known) > 20:
        choices = "`unroll-jax list` shows all"
    return UserError(f"{words}; {choices}")


def _words(options: Mapping[str, Any], group: str = "--") -> Iterator[str]:
    """The options of a TOML file as words of a command."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _words(value, f"{group}{name}.")
        elif isinstance(value, bool):
            yield f"{group}{'' if value else 'no-'}{name}"
        else:
            yield group + name
            yield from map(str, value if isinstance(value, list) else [value])


def _check_words(arguments: Sequence[str]) -> None:
    """Checks for words that a parser would take silently: the last of an option's
    several values, empty values."""
    if "--" in arguments:
        raise UserError("-- is no option; leave it out")
    names = [_name(word) for word in arguments if word.startswith("--")]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{twice[0]} is given more than once; give it once")
    option = "an argument"
    for word in arguments:
        value = word
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            value = value if equals else option
        if not value.strip() and option not in MAY_BE_EMPTY:
            raise UserError(f"{option} is empty; give it a value, or leave it out")


def _name(word: str) -> str:
    """An option as its help has it: --a_b=1 is --a-b, and --a.no-b is --a.b."""
    name = word.partition("=")[0].replace("_", "-")
    return re.sub(r"^(--(?:.*\.)?)no-", r"\1", name)


def _suggestion(near: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _option_error(ended: SystemExit) -> OptionError | None:
    """The error of an option's value because of which tyro ended, with the group of
    the option, or None for other mistakes."""
    fault: Any = ended.__context__
    if isinstance(fault, OptionError):
        return fault
    error = getattr(fault, "__context__", None)
    if not isinstance(error, OptionError):
        return None
    group = fault.arg.removeprefix("config.")  # the part of a sweep's arguments
    return OptionError(f"{group}.{error.field}", error.allowed, error.value)


def _message(printed: str, hint: str) -> str:
    """Returns tyro's first message in one line, with the hint or the names that tyro
    suggests."""
    lines = [FRAME.sub("", line).strip() for line in printed.splitlines()]
    paragraphs = "\n".join(lines[1:]).strip().split("\n\n")  # but the title
    message = " ".join(paragraphs[0].split()).rstrip(".")
    if hint and "Unrecognized" in message:
        return f"{message}; {hint}"
    near = re.search(r"Perhaps you meant[^-]*(--[\w.-]+)", printed)
    return message + _suggestion(near.groups() if near else ())
