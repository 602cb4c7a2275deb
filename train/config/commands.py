"""The arguments of commands that have more than an experiment's configuration."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from .data import ImageSource, InstructionSource, SceneSource, TextSource, VideoSource
from .options import Fraction, options

C = TypeVar("C")
ExportFormat = Literal["unroll_jax", "transformers"]

# Fields of an evaluation that are not options of its run.
PLACES = ("run", "mesh", "on_source", "on_root")


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate the best checkpoint of a run folder again."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    mesh: str | None = None
    """Devices by axis, as in data=2,fsdp=4; None means data over all that divide the
    batch."""
    on_source: VideoSource | None = None
    """Of video: another source whose test split to evaluate on; its figures go to
    evaluation_on_NAME.json."""
    on_root: str | None = None
    """Path of the files of that source."""
    test_disturbances: tuple[str, ...] | None = None
    """Of video: disturbances of the frames, as in blur=1; this option and the next
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
class Membership:
    """The options before a command, by which a process finds the others; all None
    for a single process."""

    coordinator: str | None = None
    """HOST:PORT of process 0."""
    processes: int | None = None
    """Number of processes."""
    process: int | None = None
    """Number of this process, from 0."""
    cluster: str | None = None
    """A name of JAX's cluster detection in place of the three, or auto."""


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


@dataclasses.dataclass(frozen=True)
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
    gamma: float = 0.0
    """Strength of noise on the embeddings, as in training."""
    seed: int = 0
    """Of the noise."""


@dataclasses.dataclass(frozen=True)
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
    """JSON file for the answers, as AlpacaEval reads it; None prints them. The same
    command resumes."""
    overwrite: bool = False
    """Replace the file --out where it is there already."""
    name: str | None = None
    """Name of the generator in the file; None takes the name of the source, with
    gamma where there is noise."""
    limit: int | None = None
    """Number of prompts, from the first; None takes all."""
    chat: bool = True
    """Put prompts through the template of the run or tokenizer; else they are texts
    to continue."""
    max_tokens: int | None = None
    """Longest answer, in tokens; None takes 256, or half the context where that is
    shorter."""
    batch: int = 8
    """Prompts answered together."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the most probable token."""
    gamma: float = 0.0
    """Strength of noise on the embeddings of all tokens, also of the answer: of a run,
    in the unit of its training; else the standard deviation of the noise over the
    embedding table's.
    """
    seed: int = 0
    """Of noise and sampling."""
    exit_layer: int | None = None
    """Number of layers that draft, for --draft-length."""
    draft_length: int | None = None
    """Tokens that --exit-layer drafts before the other layers verify them."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of parameters, and off CPUs of computation, too; None takes the source's."""


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write the parameters of a run's best checkpoint as model.safetensors, with
    their config.json."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    out: Path | None = None
    """Folder for the export; None means the folder export in the run's, or
    transformers after the format."""
    format: ExportFormat = "unroll_jax"
    """unroll_jax: all parameters, for `load` and this program; transformers: the
    decoder of an sft run, with low-rank changes merged, and its tokenizer, as a folder
    of transformers.
    """
    mesh: str | None = None
    """Devices by axis, as in fsdp=8, where one cannot hold the parameters; None
    means data over all of them."""


@dataclasses.dataclass(frozen=True)
class SweepArguments(Generic[C]):
    """Train and evaluate a grid of runs, and write their table.

    --over.OPTION VALUE,VALUE,... makes an option of the experiment an axis, as in
    --over.num-layers 3,5 --over.method plain,constrained --over.seed 0,1,2; the last
    part of a name is enough where only one option has it. Every cell is a run folder
    under --out; the same command resumes a sweep, and more values extend it.

    --over.OPTION LOW:HIGH, as in --over.learning-rate 1e-4:1e-2, searches a range: in
    each cell, --trials runs by Bayesian optimisation, of which the best on validation
    is tested. Processes and machines that share the folder share the trials.
    """

    config: Annotated[C, tyro.conf.arg(name="")]
    """Options that all cells share; --out is the folder of the sweep."""
    jobs: int = 1
    """Cells that are computed at the same time, each in a process with its share of
    the cores and GPUs."""
    trials: int = 0
    """Runs of each cell that search the ranges."""
