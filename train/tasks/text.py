"""Text classification with perturbed embeddings: encoders and unrolled transformers,
plain and under constraints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.keys import threefry_keys

from ..config.errors import UserError
from ..config.tokens import TextRunConfig
from ..core.task import Log, Params, Row, SampleLosses
from ..data.tokens import TokenBatch, token_batch
from ..data.words import check_pairs
from ..sharding.mesh import keep_rows
from .common import Trial, check_noise, feasibility_words, gaussian, keyed, on_batches
from .text_data import TextInputs, load_inputs
from .text_models import (
    Prediction,
    SplitReading,
    TextReading,
    build_model,
    cross_entropy,
    evaluate_exits,
    read_sample,
)
from .tokens import TokenTask, area_words

# texts, in an evaluation: no gradient is kept, so more fit than in training
BATCH_SIZE = 128
TOGETHER = 32  # texts a batch of a prediction

Record = Callable[[Float[Array, "batch classes"]], Any]


class Perturbed(NamedTuple):
    """A batch with the noise of its embeddings; None for no noise."""

    batch: TokenBatch
    noise: Any


class TextTask(TokenTask[TextRunConfig]):
    """f_l is the mean cross entropy of the shared readout at layer l; layer 0 is the
    embeddings, noise included.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 5 and Appendix B.3.
    """

    spec_type, _load = TextInputs, staticmethod(load_inputs)

    def __init__(self, config: TextRunConfig, data: TextInputs):
        super().__init__(config, data)
        self.model = build_model(config, data)
        self.num_layers = self.model.num_layers
        self.training = self.train_on(
            data.num_examples, examples="texts", trained=self.model.trained
        )
        self._read, self._predict = (
            on_batches(self._readings),
            jax.jit(self._probabilities),
        )

    def trained(self, params: Params) -> Any:
        """Returns which parameters are trained: given word embeddings may be frozen."""
        return None if self.model.trained is None else self.model.trained(params)

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[TokenBatch]:
        """Yields texts of the train split; all rows are read, as the length of a
        batch depends on all."""
        reading = {
            "batch_size": self.config.batch_size,
            "seed": self.config.seed,
            "start_step": start_step,
        }
        for batch in self.data.tokens.batches("train", **reading):
            yield batch if rows is None else TokenBatch(*(part[rows] for part in batch))

    def held(self, split: str) -> Iterator[tuple[TokenBatch, jax.Array]]:
        """Yields texts of a split, each batch with the key of its noise."""
        return keyed(self.data.tokens.examples(split, batch_size=BATCH_SIZE))

    def labels(self, batch: Perturbed) -> Any:
        """Returns the class of every text."""
        return batch.batch.labels

    def sample_noise(self, batch: TokenBatch, key: jax.Array) -> Perturbed:
        """Draws noise of the strength of training."""
        strength = self.variance(self.config.train_gamma)
        return Perturbed(
            batch, self._noise(key, batch, strength) if strength > 0.0 else None
        )

    def outputs(
        self, params: Params, batch: TokenBatch, noise: Array | None, record: Record
    ) -> Any:
        """``record(logits)`` of layers 0..L, stacked; noise is added to the
        embeddings of real words."""
        tokens, mask, token_types, _ = batch
        trained = self.trained(params)
        if trained is not None:
            params = jax.tree.map(
                lambda leaf, moves: leaf if moves else jax.lax.stop_gradient(leaf),
                params,
                trained,
            )

        def read(logits: Array) -> Any:
            return record(keep_rows(logits))

        return self.model.module.apply(
            params,
            tokens,
            mask,
            token_types=token_types,
            perturbation=noise,
            record=read,
        )

    def losses(
        self, params: Params, batch: Perturbed, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Cross entropies of every text at every layer."""
        texts, noise = jax.tree.map(keep_rows, batch)
        return (
            self.outputs(
                params, texts, noise, lambda logits: cross_entropy(logits, texts.labels)
            ).T,
            {},
        )

    def reading(self, params: Params, split: str, trial: Trial) -> SplitReading:
        """Reads every layer on a split; compiled once a length of batch."""
        variance = np.float32(self.variance(trial.gamma))
        read = [
            (self._read(params, batch, variance, key), batch.labels)
            for batch, key in self.held(split)
        ]
        parts, labels = zip(*read, strict=True)
        joined = (
            np.concatenate(column, axis=1).T for column in zip(*parts, strict=True)
        )
        return SplitReading(*joined, labels=np.concatenate(labels))

    def further_figures(
        self, params: Params, readings: Mapping[Trial, SplitReading]
    ) -> Row:
        """Returns the area under the accuracy, figures by layer at the noise of
        training, and early exit."""
        validation = self.reading(params, "validation", self.training_trial)
        exits = evaluate_exits(validation, readings[self.training_trial])
        names, gammas = list(self.data.spec.class_names), self.trials()[self.score]
        shares = _class_shares(readings[self.training_trial], names)
        floors = {"chance": 1.0 / len(names), "majority class": float(shares.max())}
        return {
            "class_names": names,
            **super().further_figures(params, readings),
            "floors": {
                name: dict.fromkeys(gammas, share) for name, share in floors.items()
            },
            "floor_shares": dict.fromkeys(floors, 1.0),
            "early_exit": exits,
        }

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
        """Classes of texts, or of pairs with their ``seconds``, and probabilities by
        layer. Noise of a strength ``gamma`` may be added, with a key for every text:
        the reading of a text depends on its place among them, not on the other texts.
        The number of texts that were too long is logged.
        """
        inputs = [inputs] if isinstance(inputs, str) else inputs
        check_noise(gamma, seed)
        _check_inputs(inputs, seconds, pairs=self.data.spec.pairs)
        # numbers of a text, whatever JAX_DEFAULT_PRNG_IMPL is: see `threefry_keys`
        key = threefry_keys(jax.random.key(seed))
        deviation = np.float32(np.sqrt(self.variance(gamma))) if gamma > 0.0 else None
        names, outputs, truncated = self.data.spec.class_names, [], 0
        # All texts are tokenised before the first is run: an unusable one is reported
        # at once.
        for number, (batch, longer) in enumerate(self._token_batches(inputs, seconds)):
            numbers = number * TOGETHER + np.arange(len(batch.tokens))
            outputs.append(
                np.swapaxes(
                    jax.device_get(
                        self._predict(params, batch, numbers, deviation, key)
                    ),
                    0,
                    1,
                )
            )
            truncated += longer
        if truncated:
            longest = self.config.max_length
            log(
                f"{truncated} of {len(inputs)} texts are longer than {longest} tokens;"
                " their ends are left out"
            )
        return [
            Prediction(
                text, names[int(probabilities[-1].argmax())], probabilities, names
            )
            for text, probabilities in zip(inputs, np.concatenate(outputs), strict=True)
        ]

    def summary_line(self, evaluation: Row) -> str:
        """Accuracy at the noise of training, the area under it, and feasibility."""
        accuracy = evaluation["accuracy"][str(float(evaluation["train_gamma"]))]
        words = f"{area_words(evaluation)}{feasibility_words(evaluation)}"
        return f"accuracy {accuracy:.1%} at gamma {evaluation['train_gamma']}, {words}"

    def _token_batches(
        self, texts: Sequence[str], seconds: Sequence[str] | None
    ) -> list[tuple[TokenBatch, int]]:
        check_pairs(texts, seconds)  # an error has the place among all, not in a part
        tokenizer, length = self.data.spec.tokenizer, self.config.max_length
        return [
            token_batch(
                tokenizer,
                texts[part],
                None if seconds is None else seconds[part],
                max_length=length,
            )
            for part in (
                slice(start, start + TOGETHER)
                for start in range(0, len(texts), TOGETHER)
            )
        ]

    def _probabilities(
        self,
        params: Params,
        batch: TokenBatch,
        numbers: Array,
        deviation: Any,
        key: jax.Array,
    ) -> Array:
        """Returns class probabilities by layer; with ``deviation``, under noise
        drawn for every text by its number."""
        noise = None
        if deviation is not None:
            shape = (self.config.max_length, self.model.dim)
            drawn = jax.vmap(
                lambda number: jax.random.normal(jax.random.fold_in(key, number), shape)
            )(numbers)
            noise = deviation * drawn[:, : batch.tokens.shape[1]]
        return self.outputs(params, batch, noise, jax.nn.softmax)

    def _readings(
        self, params: Params, batch: TokenBatch, variance: Array, key: Array
    ) -> TextReading:
        noise = self._noise(key, batch, variance)
        return self.outputs(
            params, batch, noise, lambda logits: read_sample(logits, batch.labels)
        )

    def _noise(
        self, key: jax.Array, batch: TokenBatch, variance: float | Array
    ) -> Float[Array, "batch n dim"]:
        """Draws noise for every token of a batch, padding included."""
        return gaussian(key, (*batch.tokens.shape, self.model.dim), variance)


def _check_inputs(
    texts: Sequence[str], seconds: Sequence[str] | None, *, pairs: bool
) -> None:
    if not texts:
        raise UserError("predict needs texts; give --text, or a --file of lines")
    if seconds is not None and len(seconds) != len(texts):
        raise UserError(
            f"--second must be as many as --text, {len(texts)}, got {len(seconds)}"
        )
    if pairs != (seconds is not None):
        kind = (
            "pairs of texts; give the second with"
            if pairs
            else "single texts; leave out"
        )
        raise UserError(
            f"the run classifies {kind} --second, or tabs in the lines of --file"
        )


def _class_shares(reading: SplitReading, class_names: Any) -> np.ndarray:
    """Returns the share of each class in the labels."""
    return np.bincount(reading.labels, minlength=len(class_names)) / len(reading.labels)
