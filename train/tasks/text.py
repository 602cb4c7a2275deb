"""Text classification with perturbed embeddings: encoders and unrolled transformers, plain and under constraints."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ..config.constrained import check_depth
from ..config.disturbances import Disturbance
from ..config.errors import UserError
from ..config.text import TextRunConfig
from ..data.tokens import TokenBatch, token_batch
from ..data.words import check_texts
from ..sharding.mesh import keep_rows
from ..task import Log, Params, Row, SampleLosses, Validation
from .common import (
    NOISE_SEED,
    DataTask,
    check_batch_size,
    check_noise,
    constrained_training,
    feasibility_words,
    noise_figures,
    num_parameters,
    on_batches,
)
from .disturbances import disturbance_figures
from .early_exit import Predictor, evaluate_exits, exit_times
from .encoders import build_model
from .material import TextMaterial, load_material, material_of
from .reading import Prediction, Reading, SplitReading, cross_entropy, draw_noise, lose_tokens, read_sample

# Texts a batch of the evaluation: no gradient is kept, so more fit than in training.
BATCH_SIZE = 128
TOGETHER = 32  # texts a batch of a prediction
TIMED_TEXTS = 30  # whose time is taken, one by one

Record = Callable[[Float[Array, "batch classes"]], Any]


class Perturbed(NamedTuple):
    """A batch with what is random in a step: the noise of the embeddings, or None where there is none."""

    batch: TokenBatch
    noise: Any


class TextTask(DataTask[TextRunConfig]):
    """f_l is the mean cross entropy of the shared readout at layer l; layer 0 is the embeddings, noise included.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 5 and Appendix B.3.
    """

    def __init__(self, config: TextRunConfig, material: TextMaterial):
        super().__init__(config, material)
        self.model = build_model(config, material)
        self.num_layers, self.remarks = self.model.num_layers, self.model.remarks
        check_depth(config, self.num_layers)
        check_batch_size(config.batch_size, material.tokens.num_examples("train"), "texts")
        self.training = constrained_training(
            config,
            num_layers=self.num_layers,
            steps_an_epoch=material.tokens.steps_an_epoch("train", batch_size=config.batch_size),
            trained=self.model.trained,
        )
        self._read, self._predict = on_batches(self._readings), jax.jit(self._probabilities)

    def init(self, key: jax.Array) -> Params:
        """Parameters, from what is given and the key."""
        return self.model.init(key)

    def trained(self, params: Params) -> Any:
        """Word embeddings that are given may stay as they are."""
        return None if self.model.trained is None else self.model.trained(params)

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[TokenBatch]:
        """Texts of the train split; all rows are read, as the length of a batch depends on all."""
        reading = {"batch_size": self.config.batch_size, "seed": self.config.seed, "start_step": start_step}
        for batch in self.data.tokens.batches("train", **reading):
            yield batch if rows is None else TokenBatch(*(part[rows] for part in batch))

    def variance(self, gamma: float) -> float:
        """Returns the variance of the noise of a strength."""
        if gamma == 0.0:
            return 0.0  # without reading the train split
        size = gamma * self.data.embedding_std
        return size**2 if self.config.noise == "deviation" else size

    def sample_noise(self, batch: TokenBatch, key: jax.Array) -> Perturbed:
        """Noise of the strength of training."""
        strength = self.variance(self.config.train_gamma)  # reads the train split, which prediction needs not
        return Perturbed(batch, draw_noise(key, batch, self.model.dim, strength) if strength > 0.0 else None)

    def outputs(self, params: Params, batch: TokenBatch, noise: Array | None, record: Record) -> Any:
        """``record(logits)`` of layers 0..L, stacked; noise is added to the embeddings of real words."""
        tokens, mask, token_types, _ = batch
        trained = self.trained(params)
        if trained is not None:
            freeze = lambda leaf, moves: leaf if moves else jax.lax.stop_gradient(leaf)  # noqa: E731
            params = jax.tree.map(freeze, params, trained)
        read = lambda logits: record(keep_rows(logits))  # noqa: E731
        return self.model.module.apply(params, tokens, mask, token_types=token_types, perturbation=noise, record=read)

    def losses(self, params: Params, batch: Perturbed, probe: Any) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Cross entropies of every text at every layer."""
        del probe
        texts, noise = jax.tree.map(keep_rows, batch)
        return self.outputs(params, texts, noise, lambda logits: cross_entropy(logits, texts.labels)).T, {}

    def split_reading(self, params: Params, split: str, gamma: float, *, lost: float = 0.0) -> SplitReading:
        """Every layer on a whole split, of whose tokens a share may be lost; compiled once for each length of batch."""
        parts, labels, variance = [], [], np.float32(self.variance(gamma))
        for index, batch in enumerate(self.data.tokens.examples(split, batch_size=BATCH_SIZE)):
            key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
            parts.append(self._read(params, batch, variance, key, *([np.float32(lost)] if lost else [])))
            labels.append(batch.labels)
        joined = (np.concatenate(column, axis=1).T for column in zip(*parts, strict=True))
        return SplitReading(*joined, labels=np.concatenate(labels))

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """At the noise of training."""
        del multipliers
        reading = self.split_reading(params, "validation", self.config.train_gamma)
        accuracies = reading.accuracies()
        row = {"accuracy": float(accuracies[-1]), "error_rates": (1.0 - accuracies).tolist()}
        return Validation(reading.losses, row, collapse=_describe_collapse(reading, self.data.class_names))

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray]:
        """Accuracy at every strength of noise, the area under it over ``test_gammas`` alone, and early exit.

        So runs of different training noise compare. Figures of layers are at the noise of training.
        """
        config, noise = self.config, noise_figures(self.config)
        readings = {gamma: self.split_reading(params, "test", gamma) for gamma in config.noise_levels}
        accuracies = {gamma: float(reading.accuracies()[-1]) for gamma, reading in readings.items()}
        at_training = readings[float(config.train_gamma)]
        validation = self.split_reading(params, "validation", config.train_gamma)
        figures = {
            "method": config.method,
            **noise,
            "num_layers": self.num_layers,
            "seed": config.seed,
            "num_examples": self.data.tokens.num_examples("test"),
            "class_names": list(self.data.class_names),
            "accuracy": {str(gamma): accuracy for gamma, accuracy in accuracies.items()},
            "area": area_under({gamma: accuracies[gamma] for gamma in noise["test_gammas"]}),
            "error_rates": (1.0 - at_training.accuracies()).tolist(),
            **disturbance_figures(config.test_disturbances, "accuracy", functools.partial(self._disturbed, params)),
            "embedding_std": self.data.embedding_std,
            "noise": config.noise,
            "parameters": num_parameters(params),
            "early_exit": evaluate_exits(validation, at_training, self._exit_times(params)),
        }
        return figures, at_training.losses

    def predict(
        self,
        params: Params,
        inputs: Sequence[str],
        *,
        seconds: Sequence[str] | None = None,
        gamma: float = 0.0,
        seed: int = 0,
        log: Log = print,
    ) -> list[Prediction]:
        """Classes of texts, or of pairs with their ``seconds``, and what every layer makes of them.

        Noise of a strength ``gamma`` may be added, of its own key for every text: the reading of a text
        depends on its place among them, not on the other texts. The log has the number of texts that were too long.
        """
        inputs = [inputs] if isinstance(inputs, str) else inputs
        check_noise(gamma, seed)
        _check_inputs(inputs, seconds, pairs=self.data.pairs)
        key = jax.random.key(seed)
        deviation = np.float32(np.sqrt(self.variance(gamma))) if gamma > 0.0 else None
        names, outputs, truncated = self.data.class_names, [], 0
        # All are made into tokens before the first is run: a text that cannot be used is told at once.
        for number, (batch, longer) in enumerate(self._token_batches(inputs, seconds)):
            numbers = number * TOGETHER + np.arange(len(batch.tokens))
            outputs.append(np.swapaxes(jax.device_get(self._predict(params, batch, numbers, deviation, key)), 0, 1))
            truncated += longer
        if truncated:
            longest = self.config.max_length
            log(f"{truncated} of {len(inputs)} texts are longer than {longest} tokens; their ends are left out")
        return [
            Prediction(text, names[int(probabilities[-1].argmax())], probabilities, names)
            for text, probabilities in zip(inputs, np.concatenate(outputs), strict=True)
        ]

    def summary_line(self, evaluation: Row) -> str:
        """Accuracy at the noise of training, the area under it, and feasibility."""
        low, high = evaluation["test_gammas"][0], evaluation["test_gammas"][-1]
        at_training = evaluation["accuracy"][str(float(evaluation["train_gamma"]))]
        area = "" if evaluation["area"] is None else f"area {evaluation['area']:.3f} over gamma {low:g} to {high:g}, "
        return f"accuracy {at_training:.1%} at gamma {evaluation['train_gamma']}, {area}{feasibility_words(evaluation)}"

    def _token_batches(self, texts: Sequence[str], seconds: Sequence[str] | None) -> list[tuple[TokenBatch, int]]:
        parts = [slice(start, start + TOGETHER) for start in range(0, len(texts), TOGETHER)]
        tokenizer, length = self.data.tokens.tokenizer, self.config.max_length
        try:
            return [
                token_batch(tokenizer, texts[part], None if seconds is None else seconds[part], max_length=length)
                for part in parts
            ]
        except UserError:
            # It was checked by its place in the part; here it is known which of all texts it is.
            check_texts(texts)
            check_texts(seconds or (), what="second texts")
            raise

    def _probabilities(
        self, params: Params, batch: TokenBatch, numbers: Array, deviation: Any, key: jax.Array
    ) -> Array:
        """Returns class probabilities by layer; with ``deviation``, under noise drawn for every text by its number."""
        noise = None
        if deviation is not None:
            shape = (self.config.max_length, self.model.dim)
            draw = lambda number: jax.random.normal(jax.random.fold_in(key, number), shape)  # noqa: E731
            noise = deviation * jax.vmap(draw)(numbers)[:, : batch.tokens.shape[1]]
        return self.outputs(params, batch, noise, jax.nn.softmax)

    def _readings(self, params: Params, batch: TokenBatch, variance: Array, key: Array, lost: Any = None) -> Reading:
        if lost is not None:
            batch = lose_tokens(batch, jax.random.fold_in(key, 1), lost)
        noise = draw_noise(key, batch, self.model.dim, variance)
        return self.outputs(params, batch, noise, lambda logits: read_sample(logits, batch.labels))

    def _disturbed(self, params: Params, one: Disturbance) -> float:
        """Accuracy of the last layer on the test split without a share of its tokens."""
        return float(self.split_reading(params, "test", self.config.train_gamma, lost=one.size).accuracies()[-1])

    def _exit_times(self, params: Params) -> Callable[[Predictor, float], dict[str, float]]:
        def whole(params: Params, batch: TokenBatch, noise: Any) -> jax.Array:
            return self.outputs(params, batch, noise, lambda logits: logits)[-1]

        def times(predictor: Predictor, threshold: float) -> dict[str, float]:
            variance, key = self.variance(self.config.train_gamma), jax.random.key(self.config.seed)
            tokens = self.data.tokens.batches("test", batch_size=1, seed=0)
            texts = [
                (batch, draw_noise(key, batch, self.model.dim, variance))
                for batch in itertools.islice(tokens, TIMED_TEXTS)
            ]
            return exit_times(whole, self.model.layerwise, params, texts, predictor, threshold)

        return times


def open_text(config: TextRunConfig, log: Log) -> TextTask:
    """The task on the data of its configuration."""
    return TextTask(config, load_material(config, log))


def text_of(config: TextRunConfig, facts: Row) -> TextTask:
    """The task that `TextTask.model_spec` describes, without its data."""
    return TextTask(config, material_of(facts))


def _check_inputs(texts: Sequence[str], seconds: Sequence[str] | None, *, pairs: bool) -> None:
    if not texts:
        raise UserError("predict needs texts; give --text, or a --file of lines")
    if seconds is not None and len(seconds) != len(texts):
        raise UserError(f"--second must be as many as --text, {len(texts)}, got {len(seconds)}")
    if pairs and seconds is None:
        raise UserError("the run classifies pairs of texts; give the second with --second, or behind a tab in the file")
    if not pairs and seconds is not None:
        raise UserError("the run classifies single texts; leave out --second, or the tabs in the lines of --file")


def area_under(accuracies: dict[float, float]) -> float | None:
    """Area under accuracies by gamma, by trapezoids and unnormalised: over [0, 2] it is at most 2; None under one."""
    gammas = sorted(accuracies)
    if len(gammas) < 2:
        return None
    return float(np.trapezoid([accuracies[gamma] for gamma in gammas], gammas))


def _describe_collapse(reading: SplitReading, class_names: Any) -> str | None:
    """One plain sentence if every text gets the same class and that is no better than knowing the shares of classes."""
    shares = np.bincount(reading.labels, minlength=len(class_names)) / len(reading.labels)
    known = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    given, loss = np.unique(reading.predictions[:, -1]), float(reading.losses[:, -1].mean())
    if len(given) > 1 or loss < known - 1e-3:
        return None
    return (
        f"the model has collapsed (loss {loss:.3f}, that of the shares of the classes is {known:.3f}): it gives "
        f"every text the class {class_names[given[0]]}"
    )
