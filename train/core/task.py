"""A task and a plan as values: all that a run needs, as pure functions and data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from unroll_jax.constrained import Constraint

# key of evaluation.json, where ``feasible`` is of the test split
VALIDATED = "feasible_on_validation"

Params = Any  # a pytree of arrays
Batch = Any  # a pytree of arrays with a row a sample
Row = dict[str, Any]  # JSON values by name
Log = Callable[[str], None]
SampleLosses = Float[Array, "samples layers_and_one"]
Figures = Mapping[str, Array]  # with a row a sample
# "losses" (N, L + 1), and figures with a row a sample
Reading = Mapping[str, np.ndarray]


class NoData(NamedTuple):
    """The properties of data in place of the data: enough to predict with a model."""

    spec: Any

    def num_examples(self, split: str) -> None:
        """Returns None, as the number is not known."""


class Trial(NamedTuple):
    """Conditions of a pass over data. Numbers may be traced: one program reads all.

    Attributes:
      gamma: strength of the noise on inputs.
      layer_noise: standard deviation of the noise on layers.
      lost: the layer that is left out, from 1, or 0 for none.
      disturbance: a further one of the examples, of a type of the task.
      augment: whether images are also augmented, as in steps of training.
      probe: zeros whose gradient carries figures out of the backward pass.
    """

    gamma: Any = 0.0
    layer_noise: Any = 0.0
    lost: Any = 0
    disturbance: Any = None
    augment: bool = False
    probe: Any = None


def mean_last_loss(reading: Reading, split: str) -> float:
    """Returns the mean loss of the last layer, the score where a task has no other."""
    return float(np.mean(reading["losses"][:, -1], dtype=np.float64))


def unchanged(batch: Batch, trial: Trial, key: jax.Array) -> Batch:
    """Returns the batch of a task without noise."""
    return batch


def figure_means(
    figures: Figures, counts: Array | None, probed: Any
) -> Mapping[str, Array]:
    """Returns the mean of each figure over the samples of a step."""
    return {name: jax.numpy.mean(rows) for name, rows in figures.items()}


def figure_row(figures: Mapping[str, Any]) -> tuple[Row, dict[str, str]]:
    """Returns figures of a step as a row of metrics.jsonl, none for the bar."""
    return {name: float(value) for name, value in figures.items()}, {}


def no_figures(*_: Any) -> Row:
    """Returns an empty row."""
    return {}


class Task(NamedTuple):
    """A model with its data, as pure functions: no class to extend.

    ``make(options, data)`` of a module of `train.tasks` returns one, and `own_task`
    makes one of your functions and arrays. None of the functions depends on the seed.

    Attributes:
      options: its options, a dataclass.
      num_layers: L: losses have L + 1 columns, the first of the embedded input. 0 is a
        network with one loss.
      init: ``key -> params``.
      batches: ``(seed, start_step, rows) -> batches`` of the train split without end,
        each a function of the seed and its step. ``rows`` are the rows of this process,
        None for all.
      examples: ``(split, trial) -> batches`` of a whole split, the same every time.
        Only a disturbance of a trial changes them.
      losses: ``(params, batch, trial) -> (losses, figures)``: losses (samples, L + 1)
        and figures by name, each row a function of its sample only.
      make: ``options -> task`` on the same data.
      predict: ``(params, inputs, **options) -> predictions``.
      summary: ``evaluation -> line`` that sums it up.
      corrupt: ``(batch, trial, key) -> batch``: all random parts of a step or reading.
      trial: conditions of training and validation.
      trials: ``{score: {label: Trial}}``, what an evaluation tries.
      score: ``(reading, split) -> number`` of one trial.
      row: ``(params, reading) -> figures`` of a validation beyond losses.
      best: ``row -> number``: the score of a feasible checkpoint by its validation.
        None takes the least loss.
      baselines: ``(params, readings by trial) -> figures`` of an evaluation beyond
        its scores, such as those of floors.
      read: ``(params, batch, trial) -> reading of the batch``. None takes ``losses``.
      reading: ``(params, split, trial) -> reading`` in place of ``examples`` and
        ``read``, for what no batch of samples shows. None reads them.
      join: ``([reading of a batch, ...], split) -> reading``. None puts rows one after
        the other.
      size: name of the number of test samples in evaluation.json.
      keep: ``(params, folder, figures)`` writes further files of an evaluation, such as
        pictures. The figures are those of `baselines`.
      counts: ``batch -> (samples,)``: how many losses each sample's loss sums, for
        means over these. None for means over samples.
      probe: ``rows -> zeros`` of `Trial.probe` for so many samples. None for none.
      summarise: ``(figures, counts, gradient in the probe) -> figures of a step``.
      describe: ``figures of a step -> (row, words for the progress bar)``.
      trained: ``params -> bool`` for each parameter. None where all are trained.
      pretrained: ``() -> arrays``, read at each call. None for none.
      with_pretrained: ``(params, arrays) -> params`` with pretrained ones in place.
      bases: of the optimiser's steps, see `unroll_jax.in_coordinates`. None for none.
      numbers: of layers 0..L in the model, where not every layer has a loss.
      num_examples: of the train split. None where there is no end of them, or no data.
      epoch: number of samples that counts as a pass over the data, where there is no
        end of them.
      examples_are: what these are, as "images", for messages.
      fingerprint: ``() -> JSON values`` that change when the data do.
      spec: ``() -> JSON values`` from which, with the options, the model is built
        without data.
      plan: ``task -> Plan`` of a task with options of its own. None plans by the
        options of this package.
      inner: model and data, for commands of this task only, such as generating.
    """

    options: Any
    num_layers: int
    init: Callable[[jax.Array], Params]
    batches: Callable[[int, int, np.ndarray | None], Iterator[Batch]]
    examples: Callable[[str, Trial], Iterable[Batch]]
    losses: Callable[[Params, Batch, Trial], tuple[SampleLosses, Figures]]
    make: Callable[[Any], "Task"]
    predict: Callable[..., Any]
    summary: Callable[[Row], str]
    corrupt: Callable[[Batch, Trial, jax.Array], Batch] = unchanged
    trial: Trial = Trial()
    trials: Mapping[str, Mapping[str, Trial]] = {}
    score: Callable[[Reading, str], float] = mean_last_loss
    row: Callable[[Params, Reading], Row] = no_figures
    best: Callable[[Row], float] | None = None
    baselines: Callable[[Params, Mapping[Trial, Reading]], Row] = no_figures
    read: Callable[[Params, Batch, Trial], Figures] | None = None
    reading: Callable[[Params, str, Trial], Reading] | None = None
    join: Callable[[list[Reading], str], Reading] | None = None
    size: str = "num_examples"
    keep: Callable[[Params, Path, Row], object] = no_figures
    counts: Callable[[Batch], Float[Array, "samples"]] | None = None
    probe: Callable[[int], Any] | None = None
    summarise: Callable[..., Mapping[str, Array]] = figure_means
    describe: Callable[[Mapping[str, Any]], tuple[Row, dict[str, str]]] = figure_row
    trained: Callable[[Params], Any] | None = None
    pretrained: Callable[[], Any] | None = None
    with_pretrained: Callable[[Params, Any], Params] | None = None
    bases: Any = None
    numbers: tuple[int, ...] | None = None
    num_examples: int | None = None
    epoch: int | None = None
    examples_are: str = "samples"
    fingerprint: Callable[[], Row] = no_figures
    spec: Callable[[], Row] = no_figures
    plan: Callable[["Task"], "Plan"] | None = None
    inner: Any = None


class Plan(NamedTuple):
    """How a task is trained.

    Attributes:
      optimizer: a `primal_dual` where constraints are enforced, else any of optax. It
        keeps no state for parameters that are not trained.
      num_steps: steps of the whole run.
      validate_every: steps between validations, each with a checkpoint.
      mesh: devices.
      weights: (L + 1,) of the layer losses in the objective.
      constraints: on the layer losses, as training enforces or only watches them: with
        margins, in the form of the options.
      stated: the same as stated to the user, as shares of their bounds: validation and
        reports judge by these.
        Needed with constraints.
      stated_of_means: the same on mean losses, for bounds in their units.
      enforced: whether multipliers enforce the constraints.
      judged: (L + 1,) of the layer losses by which feasible checkpoints are compared.
      warmup: steps before multipliers count.
      normalise: divide the Lagrangian by 1 + the sum of multipliers.
      resilience: beta of resilient constraints. None for hard ones.
      explicit_slacks: whether slacks are variables of the optimiser, of `with_slacks`.
        Else multipliers decay by the resilience.
      of_means: whether constraints read mean losses only.
      affine: whether the weights of losses in the objective are known without them.
      form: of the violations: "ratio", "difference" or "log_ratio", with "_of_means".
      tolerance: by which share a bound may be exceeded and holds.
      parts: of a batch, computed one after the other.
      ema: decay of the moving average of parameters that is evaluated. None evaluates
        the parameters.
    """

    optimizer: optax.GradientTransformation
    num_steps: int
    validate_every: int
    mesh: Mesh
    weights: np.ndarray
    constraints: Mapping[str, Constraint] = {}
    stated: Mapping[str, Constraint] = {}
    stated_of_means: Mapping[str, Constraint] = {}
    enforced: bool = False
    judged: np.ndarray | None = None
    warmup: int = 0
    normalise: bool = False
    resilience: float | None = None
    explicit_slacks: bool = False
    of_means: bool = True
    affine: bool = True
    form: str = "ratio_of_means"
    tolerance: float = 0.0
    parts: int = 1
    ema: float | None = None
