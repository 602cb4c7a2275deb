"""The frame of tasks: data, training under constraints, and an evaluation that each
task fills."""

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from unroll_jax.perturbations import layer_noise, lost_layer

from ..config.constrained import ConstrainedConfig
from ..config.errors import OptionError
from ..config.fields import LARGEST
from ..config.run import RunConfig
from ..objective import constrained_training
from ..sharding.mesh import put_beside
from ..system.distributed import fetch
from ..task import VALIDATED, Log, Params, Row, SampleLosses, Task, Training, Validation

C = TypeVar("C", bound=RunConfig)
L = TypeVar("L", bound=ConstrainedConfig)
T = TypeVar("T")
Trials = Mapping[str, Mapping[str, "Trial"]]

# One seed for all evaluations: noise is drawn once and scaled to each level. Runs
# compare like with like.
NOISE_SEED = 20260101


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


class Trial(NamedTuple):
    """Conditions of a pass over a split."""

    gamma: float  # strength of the noise on inputs
    layer_noise: float = 0.0  # standard deviation of the noise on layers
    lost: int = 0  # the layer that is left out, from 1; 0 for none
    # a further disturbance of the inputs, of a type of the task
    disturbance: Any = None


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

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """Validates at the noises of training."""
        reading = self.reading(params, "validation", self.training_trial)
        return Validation(reading.losses, self.row_of(reading))

    def train_on(self, num_examples: int | None, **options: Any) -> Training:
        """Returns the training by `constrained_training` on examples of that number;
        None without data."""
        return constrained_training(
            self.config,
            num_layers=self.num_layers,
            num_examples=num_examples,
            **options,
        )

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

    def readings(self, params: Params, split: str, trials: Trials) -> dict[Trial, Any]:
        """Returns the reading of each trial, and of the noises of training."""
        every = [trial for cases in trials.values() for trial in cases.values()]
        return {
            trial: self.reading(params, split, trial)
            for trial in dict.fromkeys([*every, self.training_trial])
        }

    def scores(
        self, readings: Mapping[Trial, Any], trials: Trials, split: str = "test"
    ) -> Row:
        """Returns the scores of trials from their readings."""
        return {
            name: {
                label: self.score_of(readings[trial], split)
                for label, trial in cases.items()
            }
            for name, cases in trials.items()
        }

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray]:
        """Returns the scores of all trials on the test split, further figures, and
        losses at the noises of training."""
        config, trials = self.config, self.trials()
        readings = self.readings(params, "test", trials)
        losses = readings[self.training_trial].losses
        figures = {
            "method": config.method,
            "train_gamma": config.train_gamma,
            "test_gammas": sorted({float(gamma) for gamma in config.test_gammas}),
            "num_layers": self.num_layers,
            "seed": config.seed,
            self.count: len(losses),
            **self.scores(readings, trials),
            **self.further_figures(params, readings),
            "parameters": num_parameters(params),
        }
        return figures, losses


class PerturbedTask(LayeredTask[L]):
    """A task with noise on inputs that is also tested with noise on layers and with
    each layer left out."""

    score_batch: ClassVar[int] = 250
    """Samples of a batch of an evaluation: no gradient is kept, so more fit than in
    training."""
    # (batch, gamma, key) -> the batch with noise, and ``keys`` of noise on layers
    _drawn: Callable[..., Any]
    # (params, batch with noise, perturbation of layers or None) -> losses
    _losses: Callable[..., SampleLosses]

    def __init__(self, config: L, data: Any, spec: Any = None):
        super().__init__(config, data, spec)
        self._read = on_batches(self._tried)

    def sample_noise(self, batch: Any, key: jax.Array) -> Any:
        """Draws noise of the strength of training."""
        return self._drawn(batch, self.config.train_gamma, key)

    def reading(self, params: Params, split: str, trial: Trial) -> Reading:
        """Returns the losses of every sample of a split at every layer."""
        batches, strengths = (
            self.samples.examples(split, batch_size=self.score_batch),
            map(np.asarray, trial[:3]),
        )
        strengths = tuple(strengths)
        return Reading(
            np.concatenate(
                [
                    self._read(params, batch, *strengths, key)
                    for batch, key in keyed(batches)
                ]
            )
        )

    def trials(self) -> dict[str, dict[str, Trial]]:
        """Returns the levels of noise on inputs and on layers, and each layer left
        out."""
        gamma, levels = (
            float(self.config.train_gamma),
            vars(self.config)["test_layer_noises"],
        )
        noisy = {
            str(level): Trial(gamma, layer_noise=level) for level in sorted(levels)
        }
        lost = {
            str(layer): Trial(gamma, lost=layer)
            for layer in range(1, self.num_layers + 1)
        }
        further = {f"layer_noise_{self.score}": noisy, f"lost_layer_{self.score}": lost}
        return super().trials() | {
            name: cases for name, cases in further.items() if cases
        }

    def _tried(
        self,
        params: Params,
        batch: Any,
        gamma: Array,
        noise: Array,
        lost: Array,
        key: Array,
    ) -> Array:
        """Losses of every sample at every layer under a `Trial`, whose numbers are
        traced: one program for all."""
        drawn = self._drawn(batch, gamma, key)
        noisy, lose = (
            layer_noise(jax.random.wrap_key_data(drawn.keys), noise),
            lost_layer(lost),
        )
        return self._losses(
            params,
            drawn,
            lambda layer, before, z: noisy(layer, before, lose(layer, before, z)),
        )


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
