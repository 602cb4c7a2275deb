"""Tasks: a model, its batches, the losses of its layers, and its judgement. A new task is one file."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from .config.run import RunConfig

Params = Any  # a pytree of arrays
Batch = Any  # a pytree of arrays with a row a sample
Row = dict[str, Any]  # of metrics.jsonl: JSON values by name
Log = Callable[[str], None]
SampleLosses = Float[Array, "samples layers_and_one"]


class Objective(Protocol):
    """The objective of the parameters, a function of every layer's loss, and the state that moves beside them."""

    def init(self) -> Any:
        """Returns the moving state, as multipliers, before the first step; None for nothing."""
        ...

    def is_affine(self, moving: Any, step: Array) -> bool | Bool[Array, ""]:
        """Returns whether the weights of losses in the value are known without the losses."""
        ...

    def value(self, samples: SampleLosses, means: Array, moving: Any, step: Array) -> Float[Array, ""]:
        """Returns the value that the parameters descend."""
        ...

    def advance(self, samples: SampleLosses, means: Array, moving: Any, step: Array) -> tuple[Any, Any]:
        """Returns the moving state after the step, and its figures, as of before."""
        ...

    def describe(self, step: int, value: Any, means: Any, figures: Any) -> tuple[Row, dict[str, str]]:
        """The figures as a row, and a few words for the progress bar."""
        ...

    def judge(self, step: int, samples: np.ndarray, moving: Any) -> tuple[Row, float]:
        """The row of a validation from its losses, and the score of its checkpoint: the highest is the best."""
        ...

    def report(self, samples: np.ndarray, moving: Any) -> Row:
        """Returns the report of an evaluation on the layers, on held-out data; empty where there is none."""
        ...


class Training(NamedTuple):
    """Training of a task: all of its options that steps depend on.

    Attributes:
      objective: plain risk, or constrained.
      optimizer: of the parameters; it must keep no state of those that are not trained.
      num_steps: of the whole run.
      validate_every: steps between validations, each of which writes a checkpoint.
      mesh: the devices.
      stop_on_collapse: whether two collapses in a row end the run.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    num_steps: int
    validate_every: int
    mesh: Mesh
    stop_on_collapse: bool = False


class Validation(NamedTuple):
    """The result of a validation.

    Attributes:
      losses: of the samples at every layer, (N, L + 1); or their means, (1, L + 1).
      row: figures of the task's own.
      score: of the checkpoint where not the objective gives it.
      collapse: that the model has collapsed, in words.
    """

    losses: np.ndarray
    row: Row
    score: float | None = None
    collapse: str | None = None


class Task(Protocol):
    """A model and its data, as the step, the loop and the commands see them; methods with a body are defaults."""

    training: Training
    num_layers: int
    """L: losses have L + 1 columns, the first of the embedded input. 0: a network with one loss."""
    remarks: tuple[str, ...] = ()
    """Lines to log where a run starts afresh."""

    @property
    def config(self) -> RunConfig:
        """All options."""
        ...

    def again(self, config: Any) -> "Task":
        """The same task by another configuration of its kind, on the same data."""
        ...

    def init(self, key: jax.Array) -> Params:
        """Parameters, from the key alone."""
        ...

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[Batch]:
        """Batches without end, each a function of the seed and its step; ``rows`` are this process's, None for all."""
        ...

    def losses(self, params: Params, batch: Batch, probe: Any) -> tuple[SampleLosses, Mapping[str, Array]]:
        """The losses of every sample, each a function of its row alone, and other figures of the samples, a row each.

        The gradient in ``probe`` is what `probe` says.
        """
        ...

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """The parameters on the validation split."""
        ...

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray | None]:
        """Figures of the test split, and its samples' losses for the objective's report; pictures go to the folder."""
        ...

    def found(self) -> Row:
        """Figures that change when the data do."""
        ...

    def facts(self) -> Row:
        """All that the model needs to know of its data: from these and the configuration it is built again."""
        ...

    def predict(self, params: Params, inputs: Any) -> Any:
        """Applies the model to inputs; tasks take options of their own."""
        ...

    def verdict(self, evaluation: Row) -> str:
        """An evaluation in a few words."""
        ...

    def given(self) -> Any:
        """Large parameters made anew, which `start` takes: no program holds them, and the state takes their memory;
        None for none."""
        return None

    def start(self, params: Params, given: Any) -> Params:
        """Returns the parameters to start from: those of `init`, with given ones in their place."""
        del given
        return params

    def trained(self, params: Params) -> Any:
        """Returns for each parameter whether it is trained; None where all are."""
        del params
        return None

    def draw(self, batch: Batch, key: jax.Array) -> Batch:
        """The batch with all that is random in a step."""
        del key
        return batch

    def counts(self, batch: Batch) -> Float[Array, "samples"] | None:
        """Returns how many losses each sample's is the sum of, where a mean is over these; None: over samples."""
        del batch
        return None

    def probe(self, rows: int) -> Any:
        """Zeros whose gradient carries figures out of the backward pass of so many samples; None for none."""
        del rows
        return None

    def summarise(self, figures: Mapping[str, Array], counts: Array | None, probed: Any) -> Mapping[str, Array]:
        """Figures of a step, from those of its samples and from the gradient in the probe."""
        del counts, probed
        return {name: jax.numpy.mean(rows) for name, rows in figures.items()}

    def describe(self, figures: Mapping[str, Any]) -> tuple[Row, dict[str, str]]:
        """The same as a row, and a few words for the progress bar."""
        return {name: float(value) for name, value in figures.items()}, {}


class PlainRisk:
    """The mean loss of the last layer, with nothing beside it."""

    def init(self) -> None:
        """Returns None: nothing moves."""
        return

    def is_affine(self, moving: Any, step: Array) -> bool:
        """Returns True: the weights are equal."""
        return True

    def value(self, samples: SampleLosses, means: Array, moving: Any, step: Array) -> Float[Array, ""]:
        """The mean loss of the last layer."""
        return means[-1]

    def advance(self, samples: SampleLosses, means: Array, moving: Any, step: Array) -> tuple[None, None]:
        """Returns None twice: nothing moves."""
        return None, None

    def describe(self, step: int, value: Any, means: Any, figures: Any) -> tuple[Row, dict[str, str]]:
        """The loss."""
        return {"loss": float(means[-1])}, {"loss": f"{means[-1]:.3f}"}

    def judge(self, step: int, samples: np.ndarray, moving: Any) -> tuple[Row, float]:
        """The loss; the lowest is the best."""
        loss = float(samples.mean(axis=0)[-1])
        return {"loss": loss}, -loss

    def report(self, samples: np.ndarray, moving: Any) -> Row:
        """No layers, no figures of them."""
        return {}
