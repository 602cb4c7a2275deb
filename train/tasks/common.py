"""The frame of tasks: data, training under constraints, and an evaluation that each
task fills."""

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from ..config.constrained import ConstrainedConfig
from ..config.errors import OptionError
from ..config.options import LARGEST
from ..config.run import RunConfig
from ..core.evaluate import NOISE_SEED
from ..core.task import VALIDATED, Log, Params, Row, Trial
from ..sharding.mesh import put_beside
from ..system.distributed import fetch
from ..task import Task, Training

C = TypeVar("C", bound=RunConfig)
L = TypeVar("L", bound=ConstrainedConfig)
T = TypeVar("T")
Trials = Mapping[str, Mapping[str, "Trial"]]


class DataTask(Task, Generic[C]):
    """A task on one data set; ``data`` is None where it is built from a model's
    ``spec`` of them, to predict."""

    model: Any  # its ``init`` draws parameters
    spec_type: ClassVar[Any]
    """Reads what `model_spec` returns, by its ``from_json``."""
    _load: ClassVar[Callable[..., Any]]  # (config, log) -> data

    def __init__(self, config: C, data: Any, spec: Any = None):
        self._config, self.data, self.samples = config, data, data
        self.spec = data.spec if spec is None else spec
        # compiled steps; tasks that differ by the seed only share them
        self.programs: dict[Any, Any] = {}

    @classmethod
    def open(cls, config: C, log: Log) -> Self:
        """Returns the task on the data of its configuration, which are prepared on
        first use."""
        return cls(config, cls._load(config, log))

    @classmethod
    def rebuild(cls, config: C, spec: Row) -> Self:
        """Returns the task that `model_spec` describes, without its data, to predict
        with given parameters."""
        return cls(config, None, cls.spec_type.from_json(spec))

    @property
    def config(self) -> C:
        """All options."""
        return self._config

    def init(self, key: jax.Array) -> Params:
        """Returns parameters of the model, from the key only."""
        return self.model.init(key)

    def with_config(self, config: C) -> Self:
        """Returns the same task with another configuration, on the same data;
        another seed shares compiled programs."""
        if dataclasses.replace(config, seed=self.config.seed) == self.config:
            other = copy.copy(self)
            other._config = config
            return other
        # data of tokens are their spec
        more = () if self.spec is self.data else (self.spec,)
        return type(self)(config, self.data, *more)

    def model_spec(self) -> Row:
        """Returns the properties of the data that the model needs."""
        return self.spec.to_json()

    def held(self, split: str) -> Iterable[tuple[Any, jax.Array]]:
        """Yields batches of a split, each with the key of its noise."""
        return keyed(self.samples.examples(split, batch_size=self.config.batch_size))

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[Any]:
        """Yields samples of the train split."""
        size, seed = self.config.batch_size, self.config.seed
        return self.samples.batches(
            "train", batch_size=size, seed=seed, start_step=start_step, rows=rows
        )


class Reading(NamedTuple):
    """Losses of a split under a trial, (N, L + 1); tasks may return further figures
    with them."""

    losses: np.ndarray


class LayeredTask(DataTask[L]):
    """A task whose every layer has a loss. A subclass fills the frame: `reading`,
    and what else it has to say."""

    score: ClassVar[str]
    """Name of the score of a reading in evaluation.json."""
    count: ClassVar[str] = "num_examples"
    """Name of the number of test examples in evaluation.json."""

    @abc.abstractmethod
    def reading(self, params: Params, split: str, trial: Trial) -> Any:
        """Returns the losses of a split under a trial, as a `Reading` or with
        further figures."""

    def score_of(self, reading: Any, split: str) -> float:
        """Returns the score of the last layer; here its loss."""
        return float(np.mean(reading.losses[:, -1], dtype=np.float64))

    def row_of(self, reading: Any) -> Row:
        """Returns figures of a validation that are not losses."""
        return {}

    def train_on(self, num_examples: int | None, **options: Any) -> Training:
        """Returns what a plan needs of the task: the number of examples, None
        without data."""
        return Training(num_examples, **options)

    def further_figures(self, params: Params, readings: Mapping[Trial, Any]) -> Row:
        """Returns figures of an evaluation beyond the scores of its trials, whose
        ``readings`` are given."""
        return {}

    @property
    def training_trial(self) -> Trial:
        """The noises of training."""
        return Trial(float(self.config.train_gamma))

    def trials(self) -> dict[str, dict[str, Trial]]:
        """Returns the trials of an evaluation by score and label; here the levels of
        noise."""
        return {
            self.score: {str(level): Trial(level) for level in self.config.noise_levels}
        }


def check_noise(gamma: float, seed: int) -> None:
    """Raises a `UserError` for noise that a prediction cannot have; the noise of
    training has the same range."""
    if not 0.0 <= gamma <= LARGEST:
        raise OptionError("gamma", f"finite, from 0 to {LARGEST:g}", gamma)
    if not 0 <= seed < 2**32:
        raise OptionError("seed", "a whole number in [0, 2**32)", seed)


def keyed(batches: Iterable[T]) -> Iterator[tuple[T, jax.Array]]:
    """Yields the batches of an evaluation, each with the key of its noise."""
    for index, batch in enumerate(batches):
        yield batch, jax.random.fold_in(jax.random.key(NOISE_SEED), index)


def to_unit(
    pixels: UInt8[Array, "..."] | UInt8[np.ndarray, "..."], dtype: Any = jnp.float32
) -> Float[Array, "..."]:
    """Converts pixels from 0..255 to floats in [0, 1]."""
    return jnp.asarray(pixels).astype(dtype) / 255.0


def gaussian(
    key: jax.Array,
    shape: tuple[int, ...],
    variance: float | Array,
    dtype: Any = jnp.float32,
) -> Array:
    """Draws centred Gaussian noise of a variance."""
    return jnp.sqrt(jnp.asarray(variance, dtype)) * jax.random.normal(key, shape, dtype)


def add_noise(
    clean: Float[Array, "..."], variance: float | Array, key: jax.Array
) -> Float[Array, "..."]:
    """Adds centred Gaussian noise of a variance."""
    return clean + gaussian(key, clean.shape, variance, clean.dtype)


def on_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """``(params, batch, *others) -> arrays of NumPy``, jitted; batches are put on
    the mesh of the parameters."""
    compiled = jax.jit(function)
    return lambda params, batch, *others: fetch(
        compiled(params, put_beside(params, batch), *others)
    )


def feasibility_words(evaluation: Row) -> str:
    """Describes the feasibility of an evaluation by split."""
    plain = {
        "plain": "unconstrained",
        "deep_supervision": "with fixed weights on its layers",
    }
    if evaluation["method"] in plain:
        return plain[evaluation["method"]]
    splits = {"validation": evaluation.get(VALIDATED), "test": evaluation["feasible"]}
    met, missed = (
        [split for split, holds in splits.items() if holds is expected]
        for expected in (True, False)
    )
    each = (("feasible", met), ("NOT feasible", missed))
    return ", ".join(
        f"{word} on the {' and '.join(names)} split{'s' * (len(names) > 1)}"
        for word, names in each
        if names
    )


def num_parameters(params: Any) -> int:
    """Returns the number of parameters in a pytree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
