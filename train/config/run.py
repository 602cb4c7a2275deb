"""Options of every run: seed, batch, devices, data; its optimiser; experiments."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from .errors import OptionError, option_text
from .options import (
    Count,
    Fraction,
    NonNegative,
    Parts,
    Positive,
    Seed,
    Share,
    Text,
    options,
    to_json,
)
from .sources import source_at, sources_of

Remat = Literal["none", "everything", "dots", "dots_without_batch"]
Tracker = Literal["tensorboard", "wandb"]

# Options that may change when a run resumes or is evaluated: devices, the parts that a
# batch is computed in, recomputation, who hears of figures, when a run gives up, its
# place. The step stays as it is.
FREE: dict[str, Any] = {
    "mesh": None,
    "accumulate": 1,
    "remat": "none",
    "log": (),
    "early_stop": None,
    "overwrite": False,
    "config": None,
    "out": None,
}
# Of these, the options of the place of a run, which are not stored with it.
PLACE = ("overwrite", "config", "out")
LENGTHS = ("steps", "epochs")  # options of how long a run is


class Judgement(NamedTuple):
    """The judgement of a model by one validation.

    Attributes:
      feasible: whether it meets its constraints. True where it has none.
      excess: by which share of a bound it exceeds it, where that is largest. None
        without constraints.
      metric: the number that feasible models are compared by.
    """

    feasible: bool
    excess: float | None
    metric: float


@options
class SourceConfig:
    """Data to train and test on, and the folder for prepared data."""

    own: ClassVar[str]
    """The source of files at --data.root that no published data have."""

    source: Text
    """Name of the data."""
    root: Text | None = None
    """Path of the original files. Data that the program makes need none. What lies
    there tells the source, if none is given."""
    prepared: Text | None = None
    """Folder for prepared data, by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""

    def __post_init__(self) -> None:
        """Takes the source of the files at the root in place of one without files."""
        known = sources_of(type(self))
        if self.root is not None and self.source == known[0]:
            source = source_at(self.root, known, self.own)
            object.__setattr__(self, "source", source)


@options
class PrimalConfig:
    """Adam or Muon on the parameters: linear warm-up, then a schedule.

    Example:
      >>> from unroll_jax.train import OwnConfig
      >>> OwnConfig(primal=PrimalConfig(schedule="constant")).primal.learning_rate
      0.0005
    """

    learning_rate: Positive = 5e-4
    """Peak learning rate."""
    warmup_share: Share = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """After the warm-up: cosine and linear fall to 0 at the last step."""
    clip_norm: Positive | None = 1.0
    """Largest global norm of a gradient. None for no bound."""
    name: Literal["adam", "muon"] = "adam"
    """adam; or muon: momentum with all singular values made equal, and steps as
    large as Adam's."""


@options
class DecayedPrimalConfig(PrimalConfig):
    """Adam or Muon on the parameters with decoupled weight decay: AdamW."""

    weight_decay: NonNegative = 0.0
    """Share of the weights that a step of rate 1 takes away."""


@options
class OptimizerConfig:
    """Adam, Muon or SGD, with a schedule over the run."""

    name: Literal["adam", "muon", "sgd"] = "adam"
    """adam; sgd, of momentum 0.9; or muon: momentum with all singular values made
    equal, steps as large as Adam's."""
    learning_rate: Positive = 3e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "poly", "staircase", "constant"] = "cosine"
    """cosine, linear and poly, (1 - step / steps)^0.9, fall to 0 at the last step;
    staircase falls every `decay_every` epochs."""
    warmup_share: Share = 0.0
    """Share of the steps over which the learning rate rises from 0."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Factor of the staircase."""
    decay_every: Count = 30
    """Epochs between two stairs."""
    weight_decay: NonNegative = 0.0
    """Added to the gradient as this times the weights for sgd; decoupled for adam
    and muon."""
    clip_norm: Positive | None = None
    """Largest global norm of a gradient."""


@options
class RunConfig:
    """Options of every run."""

    task: ClassVar[str]
    """Name of the task in `train.tasks`."""
    metric: ClassVar[str]
    """Metric of a sweep's table on the validation split, with its unit."""
    rates: ClassVar[str] = "--primal.learning-rate or --primal.clip-norm"
    """The options to lower where a number is not finite."""

    seed: Seed = 0
    """Seed of initialisation, batch order, and of noise or augmentation."""
    batch_size: Parts = 64
    """Examples a step."""
    accumulate: Parts = 1
    """Parts that a batch is computed in, one after the other: less memory, the same
    step."""
    remat: Remat = "none"
    """Part of the forward pass that the backward pass recomputes: none; everything;
    dots, everything but matrix products; dots_without_batch, everything but products
    with weights.
    """
    mesh: Text | None = None
    """Devices by axis, as in data=2,fsdp=4 (data, fsdp, tensor). None means data
    over all that divide the batch."""
    ema: Fraction | None = None
    """Decay of a moving average of the parameters, such as 0.99. Validations, the best
    checkpoint and all that is made of it take the average. None: no average."""
    early_stop: Count | None = None
    """End a run after so many validations in a row without a better one. None trains
    all steps."""
    log: tuple[Tracker, ...] = ()
    """Further places for the figures of steps and validations: tensorboard, wandb."""
    out: Text | None = None
    """Run folder. None makes one under runs/ named after the experiment."""
    overwrite: bool = False
    """Delete a run that is in the folder, and begin anew."""
    config: Text | None = None
    """FILE of options as TOML, or the config.json of a run. Options on the command
    line override them."""

    @property
    def title(self) -> str:
        """The title of the progress bar."""
        return self.task

    def check(self) -> None:
        """Checks rules across fields, before data are read or anything is computed."""
        if self.batch_size % self.accumulate:
            size = option_text("batch_size", self.batch_size)
            raise OptionError("accumulate", f"a divisor of {size}", self.accumulate)

    def resolved(self) -> Self:
        """The options of a run, without defaults that others of them rule out."""
        return self

    @property
    def tied_to_end(self) -> bool:
        """True where steps depend on the number of all steps, so no more may follow."""
        rates = getattr(self, "primal", None) or getattr(self, "optimizer", None)
        to_zero = ("cosine", "linear", "poly")
        if rates and (rates.warmup_share or rates.schedule in to_zero):
            return True
        constraints = getattr(self, "constraints", None)
        return constraints is not None and 0 < constraints.warmup_steps < 1

    def variants(self) -> Sequence[tuple[str, Self]]:
        """The runs of one command by subfolder. "" is the run folder itself."""
        return [("", self)]

    def label(self) -> str:
        """The name of the run folder where none is given: title, seed, and a digest
        of all options, so the same for the same command."""
        options = to_json(self)
        for name in (*FREE, *LENGTHS):
            options.pop(name, None)
        text = json.dumps(options, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.title}-seed{self.seed}-{digest[:8]}"

    def describe(self) -> str:
        """The words that the log begins a run with."""
        return f"{self.title}, seed {self.seed}"

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """Judges a model by a validation row of metrics.jsonl, as checkpoints are
        scored: by its loss."""
        return Judgement(True, None, row["loss"])


class Experiment(NamedTuple):
    """One row of the table of experiments.

    Attributes:
      config: the defaults, which command-line options override.
      summary: one line for `unroll-jax list`.
      paper: where it comes from.
      expect: the expected result of a run, and its time.
    """

    config: RunConfig
    summary: str
    paper: str
    expect: str

    @property
    def has_run(self) -> bool:
        """True if it was run here: ``expect`` then has the results."""
        return "not yet run" not in self.expect


@dataclasses.dataclass(frozen=True)
class Membership:
    """The options before a command, by which a process finds the others. All None
    for a single process."""

    coordinator: str | None = None
    """HOST:PORT of process 0."""
    processes: int | None = None
    """Number of processes."""
    process: int | None = None
    """Number of this process, from 0."""
    cluster: str | None = None
    """A name of JAX's cluster detection in place of the three, or auto."""
