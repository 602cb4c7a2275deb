"""The protocol of tasks that are still classes."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Array, Float

from .config.run import RunConfig
from .core.task import Batch, Params, Row, SampleLosses


class Training(NamedTuple):
    """What a plan needs of such a task.

    Attributes:
      num_examples: of the train split; None without data or an end.
      examples: what these are, for messages.
      numbers: of layers 0..L in the model, where not every layer has a loss.
      trained: marks trained parameters, None for all.
      bases: of the optimiser's steps, see `unroll_jax.in_coordinates`.
    """

    num_examples: int | None
    examples: str = "samples"
    numbers: Any = None
    trained: Any = None
    bases: Any = None


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
