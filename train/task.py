"""Protocols of a task (model, batches, layer losses, evaluation) and of its
objective; and checks of their numbers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from .config.errors import PLAIN, UNSHOWN, OptionError, UserError
from .config.run import RunConfig

# key of evaluation.json, where ``feasible`` is of the test split
VALIDATED = "feasible_on_validation"
MANY = 1 << 30  # number of examples without data: more than any batch has

Params = Any  # a pytree of arrays
Batch = Any  # a pytree of arrays with a row a sample
Row = dict[str, Any]  # of metrics.jsonl: JSON values by name
Log = Callable[[str], None]
SampleLosses = Float[Array, "samples layers_and_one"]


class Objective(Protocol):
    """The objective of the parameters, a function of every layer's loss. Methods with a
    body serve an objective without constraints.
    """

    is_affine: bool = True
    """True if the weights of losses in the value are known without the losses."""

    def value(
        self, samples: SampleLosses, means: Array, opt_state: Any, step: Array
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """Returns the value that the parameters descend, and arguments of the optimiser
        beyond the gradient, such as violations."""
        ...

    def figures(self, extra: dict[str, Any], opt_state: Any) -> Any:
        """Returns the figures of a step, from these arguments and the state before."""
        return None

    def describe(
        self, step: int, value: Any, means: Any, figures: Any
    ) -> tuple[Row, dict[str, str]]:
        """Returns the figures of a step as a row, and some of them for the progress
        bar."""
        ...

    def multipliers(self, opt_state: Any) -> np.ndarray | None:
        """Returns the multipliers of the constraints; None without constraints."""
        return None

    def judge(
        self, step: int, samples: np.ndarray, opt_state: Any
    ) -> tuple[Row, float]:
        """Returns the row of a validation, and the score of its checkpoint: the
        highest is the best."""
        ...

    def report(self, samples: np.ndarray, opt_state: Any) -> Row:
        """Returns figures by layer on held-out data, for the evaluation; empty where
        there are none."""
        return {}


class Training(NamedTuple):
    """Training of a task: all of its options that steps depend on.

    Attributes:
      objective: Plain risk, or a constrained objective.
      optimizer: Optimiser of the parameters, a `primal_dual` under constraints; it must
        keep no state for parameters that are not trained.
      num_steps: Steps of the whole run.
      validate_every: Steps between validations; each writes a checkpoint.
      mesh: Devices.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    num_steps: int
    validate_every: int
    mesh: Mesh


class Validation(NamedTuple):
    """Result of a validation.

    Attributes:
      losses: Losses of the samples at every layer, (N, L + 1); or their means, (1, L +
        1).
      row: Further figures of the task.
      score: Score of the checkpoint; None takes the objective's.
    """

    losses: np.ndarray
    row: Row
    score: float | None = None


class Task(Protocol):
    """A model and its data, as the step, the loop and the commands use them; methods
    with a body are defaults."""

    training: Training
    num_layers: int
    """L: losses have L + 1 columns, the first of the embedded input. 0: a network
    with one loss."""

    @property
    def config(self) -> RunConfig:
        """All options."""
        ...

    def with_config(self, config: Any) -> "Task":
        """Returns the same task with another configuration, on the same data."""
        ...

    def init(self, key: jax.Array) -> Params:
        """Returns parameters, from the key only."""
        ...

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[Batch]:
        """Yields batches without end, each a function of the seed and its step.
        ``rows`` are the rows of this process; None for all.
        """
        ...

    def losses(
        self, params: Params, batch: Batch, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns losses by sample and layer, and other figures by sample; each row
        depends on its sample only. The gradient in ``probe`` carries the figures that
        `probe` describes.
        """
        ...

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """Returns losses and figures on the validation split; ``multipliers`` are
        the objective's."""
        ...

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray | None]:
        """Returns figures of the test split, and its losses by sample for the
        objective's report. Further files, such as pictures, go to the folder.
        """
        ...

    def data_fingerprint(self) -> Row:
        """Returns figures that change when the data do."""
        ...

    def model_spec(self) -> Row:
        """Returns JSON values from which, with the configuration, the model is built
        without its data."""
        ...

    def predict(self, params: Params, inputs: Any) -> Any:
        """Applies the model to inputs; tasks may take further options."""
        ...

    def summary_line(self, evaluation: Row) -> str:
        """Returns a line that sums up an evaluation."""
        ...

    def pretrained(self) -> Any:
        """Reads large pretrained parameters for `load_pretrained`; None without any.
        They are read at each call: no program holds them, and the state takes over
        their memory.
        """
        return None

    def load_pretrained(self, params: Params, pretrained: Any) -> Params:
        """Returns the parameters of `init` with pretrained ones in their place."""
        return params

    def trained(self, params: Params) -> Any:
        """Returns for each parameter whether it is trained; None where all are."""
        return None

    def sample_noise(self, batch: Batch, key: jax.Array) -> Batch:
        """Returns the batch with all random parts of a step: noise, augmentation."""
        return batch

    def counts(self, batch: Batch) -> Float[Array, "samples"] | None:
        """Returns how many losses each sample's loss sums, for means over these;
        None for means over samples."""
        return None

    def probe(self, rows: int) -> Any:
        """Returns zeros whose gradient carries figures of ``rows`` samples out of
        the backward pass; None for none."""
        return None

    def summarise(
        self, figures: Mapping[str, Array], counts: Array | None, probed: Any
    ) -> Mapping[str, Array]:
        """Returns figures of a step, from the figures of its samples and from the
        gradient in the probe."""
        return {name: jax.numpy.mean(rows) for name, rows in figures.items()}

    def describe(self, figures: Mapping[str, Any]) -> tuple[Row, dict[str, str]]:
        """Returns the figures of a step as a row, and some of them for the progress
        bar."""
        return {name: float(value) for name, value in figures.items()}, {}


class PlainRisk(Objective):
    """The mean loss of the last layer."""

    def value(
        self, samples: SampleLosses, means: Array, opt_state: Any, step: Array
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The mean loss of the last layer."""
        return means[-1], {}

    def describe(
        self, step: int, value: Any, means: Any, figures: Any
    ) -> tuple[Row, dict[str, str]]:
        """The loss."""
        return {"loss": float(means[-1])}, {"loss": f"{means[-1]:.3f}"}

    def judge(
        self, step: int, samples: np.ndarray, opt_state: Any
    ) -> tuple[Row, float]:
        """The loss; the lowest is the best."""
        loss = float(samples.mean(axis=0)[-1])
        return {"loss": loss}, -loss


class NotFiniteError(UserError):
    """A number of a training run is not finite; the loop adds the last checkpoint
    and the way out."""


def require_finite(
    step: int, values: Any, what: str, *, each: str | None = None
) -> None:
    """Checks that a number, or each of a list, is finite; the error names the first
    place of a list, as "layer"."""
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def check_params(params: Params) -> None:
    """Raises a `UserError` for parameters that cannot be trained, or not be read
    back from a checkpoint."""
    leaves, names = jax.tree.leaves_with_path(params), dict[str, str]()
    if not leaves:
        raise UserError(
            f"init must return parameters with an array at least, got {params!r:.60};"
            " return one"
        )
    for path, leaf in leaves:
        place = (
            "init must return arrays of floating numbers; its array"
            f" {jax.tree_util.keystr(path)!a}"
        )
        name, dtype = (
            jax.tree_util.keystr(path, simple=True, separator="."),
            jax.numpy.result_type(leaf),
        )
        if UNSHOWN.search(name):
            raise UserError(f"{place} needs keys of {PLAIN}; rename the key")
        if name in names:
            raise UserError(
                f"{place} has the name {name!r} in checkpoints, as {names[name]} has;"
                " rename a key"
            )
        if not jax.numpy.issubdtype(dtype, np.floating):
            raise UserError(
                f"{place} is of {dtype}; convert it, or keep it out of the parameters"
            )
        if np.size(leaf) == 0:
            raise UserError(
                f"{place} has no element, its shape is {np.shape(leaf)}; leave it out"
            )
        names[name] = jax.tree_util.keystr(path)


def check_rows(samples: Any, batch: Batch, num_layers: int) -> None:
    """Raises a `UserError` unless losses have a row for every row of a batch, and a
    column for every layer."""
    expected = (jax.tree.leaves(batch)[0].shape[0], num_layers + 1)
    if samples.shape != expected:
        raise UserError(
            f"losses must have shape {expected} for a batch of {expected[0]} samples,"
            f" got {samples.shape}; return a row for each sample"
        )


def check_batch_size(batch_size: int, num_examples: int, examples: str) -> None:
    """Raises a `UserError` for a batch larger than the train split, before anything
    of its size is made."""
    if batch_size > num_examples:
        raise OptionError(
            "batch_size",
            f"at most the {num_examples:,} {examples} of the train split",
            batch_size,
        )


def json_value(value: Any, name: str) -> Any:
    """A figure as a value of JSON, from numbers and arrays of NumPy and JAX;
    ``name`` is for messages."""
    if isinstance(value, Mapping):
        return {
            key: json_value(part, f"{name}[{key!r}]") for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            json_value(part, f"{name}[{place}]") for place, part in enumerate(value)
        ]
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), name)
    if (
        value is None
        or isinstance(value, str | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    given = value if isinstance(value, float) else type(value).__name__
    raise UserError(
        f"{name} must be finite numbers, texts, None, or lists or dicts of these, got"
        f" {given}; mend it"
    )


def json_numbers(values: Iterable[Any], *, length: int = 0) -> list[float | None]:
    """Numbers for JSON: null for those that are not finite, and nulls in front to
    make up ``length``."""
    finite = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(finite)) + finite
