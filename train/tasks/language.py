"""Fine-tuning of language models on instructions with perturbed embeddings, plain
and under descent constraints."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax.constrained import chunked_cross_entropy

from ..config.tokens import LanguageConfig
from ..core.task import Params, Row, SampleLosses
from ..data.answers import PackedBatch, filled
from .common import (
    Trial,
    check_noise,
    feasibility_words,
    gaussian,
    num_parameters,
    on_batches,
)
from .language_model import LanguageInputs, LanguageModel, load_inputs
from .language_reading import (
    Answered,
    Drawn,
    LanguageReading,
    answered,
    choose,
    floors,
    paired,
    rows_of,
)
from .tokens import TokenTask, area_words


class LanguageTask(TokenTask[LanguageConfig]):
    """f_l is the mean cross entropy of the tokens of answers at the l-th layer that is
    read, by the norm and the head of the model; layer 0 is the embeddings, noise
    included.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 6 and Appendix B.7.
    """

    spec_type, _load = LanguageInputs, staticmethod(load_inputs)

    def __init__(self, config: LanguageConfig, data: LanguageInputs):
        super().__init__(config, data)
        self.samples = data.packed
        self.model = LanguageModel(config, data.source)
        self.num_layers = len(self.model.layers) - 1
        self.training = self.train_on(
            data.num_rows,
            examples="rows of instructions",
            numbers=self.model.layers,
            trained=self.model.trained if config.freezes else None,
        )
        self._read = on_batches(self._readings)

    def pretrained(self) -> Any:
        """Reads the pretrained decoder; None where it is drawn."""
        return self.data.source.read()

    def load_pretrained(self, params: Params, pretrained: Any) -> Params:
        """Returns the parameters with the pretrained decoder in place of the drawn
        one."""
        return {**params, "decoder": pretrained}

    def trained(self, params: Params) -> Any:
        """Returns which parameters are trained: low-rank changes only; None where
        all are."""
        return self.model.trained(params)

    def sample_noise(self, batch: PackedBatch, key: jax.Array) -> Drawn:
        """Draws noise of the strength of training, and positions at which layers
        before the last are read."""
        of_noise, of_places = jax.random.split(key)
        variance, share = (
            self.variance(self.config.train_gamma),
            self.config.descent.positions,
        )
        noise = self._noise(of_noise, batch, variance) if variance > 0.0 else None
        chosen = (None, None) if share == 1 else choose(of_places, batch.weights, share)
        return Drawn(batch, noise, *chosen)

    def losses(
        self, params: Params, batch: Drawn, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Cross entropies of every row at every layer that is read, sums over the
        tokens of its answers. Those before the last are constants for plain risk, which
        only watches them.
        """
        del probe
        rows, head = batch.batch, self.model.head(params)
        states = self.model.states(params, rows, batch.noise)
        watched = not (self.config.enforces or self.config.supervises)
        if batch.chosen is None and not watched:
            return self._layer_sums(states, head, rows.labels, rows.weights).T, {}
        part, labels, weights = states[:-1], jnp.asarray(rows.labels), rows.weights
        if batch.chosen is not None:
            part = jnp.take_along_axis(part, batch.chosen[None, ..., None], axis=2)
            labels, weights = (
                jnp.take_along_axis(labels, batch.chosen, axis=1),
                batch.weights,
            )
        before = self._layer_sums(
            *(jax.lax.stop_gradient((part, head)) if watched else (part, head)),
            labels,
            weights,
        )
        last = self._layer_sums(states[-1:], head, rows.labels, rows.weights)
        return jnp.concatenate([before, last]).T, {}

    def counts(self, batch: Drawn) -> Float[Array, "batch"]:
        """Returns the number of tokens of the answers in every row."""
        return jnp.sum(batch.batch.weights, axis=1)

    def reading(self, params: Params, split: str, trial: Trial) -> LanguageReading:
        """Reads the layers that are read out on a whole split."""
        count, layers = self.data.packed.texts[split], len(self.model.layers)
        losses, lengths = np.zeros((count, layers)), np.zeros(count)
        right, agreed = np.zeros((2, layers))
        variance = np.float32(self.variance(trial.gamma))
        for batch, key in self.held(split):
            token_losses, predicted = self._read(params, batch, variance, key)
            counted = batch.weights > 0.0
            owners = batch.owners[counted]
            np.add.at(losses, owners, token_losses[:, counted].T)
            np.add.at(lengths, owners, 1.0)
            words = predicted[:, counted]
            right += np.sum(words == batch.labels[counted], axis=1)
            agreed += np.sum(words == words[-1], axis=1)
        total = lengths.sum()
        perplexities = np.exp(losses.sum(axis=0) / total)
        return LanguageReading(
            losses / lengths.mean(), right / total, agreed / total, perplexities
        )

    def row_of(self, reading: LanguageReading) -> Row:
        """Returns accuracy, error rates of layers, and perplexity."""
        return {
            **super().row_of(reading),
            "perplexity": float(reading.perplexities[-1]),
        }

    def further_figures(
        self, params: Params, readings: Mapping[Trial, LanguageReading]
    ) -> Row:
        """Returns figures by layer that is read out: accuracies, acceptance,
        perplexities; and floors. Acceptance is the share of tokens at which a layer
        agrees with the last. A layer costs a product with the head per noise.
        """
        packed, trials = self.data.packed, self.trials()[self.score]
        by_gamma = {label: readings[trial] for label, trial in trials.items()}
        tables = floors(
            packed.whole("train"),
            packed.whole("test"),
            self.data.source.config.vocabulary_size,
        )
        return {
            "layers": list(self.model.layers),
            "num_tokens": int(packed.whole("test").weights.sum()),
            "layer_accuracies": {
                gamma: reading.accuracies.tolist()
                for gamma, reading in by_gamma.items()
            },
            "acceptance": {
                gamma: reading.agreements.tolist()
                for gamma, reading in by_gamma.items()
            },
            **super().further_figures(params, readings),
            "perplexity": {
                gamma: float(reading.perplexities[-1])
                for gamma, reading in by_gamma.items()
            },
            "layer_perplexities": readings[self.training_trial].perplexities.tolist(),
            "floors": {
                name: dict.fromkeys(by_gamma, table.accuracy)
                for name, table in tables.items()
            },
            "floor_shares": dict.fromkeys(tables, 1.0),
            "floor_losses": {name: table.loss for name, table in tables.items()},
            "trained_parameters": num_parameters(params.get("changes", params)),
        }

    def predict(
        self,
        params: Params,
        inputs: str | Sequence[str],
        *,
        answers: str | Sequence[str | None] | None = None,
        gamma: float = 0.0,
        seed: int = 0,
    ) -> list[Answered]:
        """Returns log-probabilities of the ``answers`` to prompts, and losses and
        accuracies of every layer that is read. Noise of a strength ``gamma`` may be
        added.
        """
        check_noise(gamma, seed)
        inputs, given = paired(inputs, answers)
        whole = rows_of(
            inputs, given, self.data.answers, max_length=self.config.max_length
        )
        parts, variance, size = (
            [],
            np.float32(self.variance(gamma)),
            self.config.batch_size,
        )
        for start in range(0, len(whole.tokens), size):
            # the last one too
            batch = filled(
                PackedBatch(*(part[start : start + size] for part in whole)), size
            )
            parts.append(
                self._read(
                    params,
                    batch,
                    variance,
                    jax.random.fold_in(jax.random.key(seed), start),
                )
            )
        losses, words = (
            np.concatenate(part, axis=1) for part in zip(*parts, strict=True)
        )
        return list(answered(given, losses, words, whole, self.model.layers))

    def summary_line(self, evaluation: Row) -> str:
        """Accuracy and perplexity at the noise of training, the area under the
        former, and feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        scores = (
            f"token accuracy {evaluation['accuracy'][gamma]:.1%}, perplexity"
            f" {evaluation['perplexity'][gamma]:.4g}"
        )
        words = f"{area_words(evaluation)}{feasibility_words(evaluation)}"
        return f"{scores} at gamma {evaluation['train_gamma']}, {words}"

    def to_transformers(
        self, params: Params
    ) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
        """Returns the tensors of the decoder, changes merged, and other files of a
        folder of `transformers`."""
        decoder = jax.device_get(self.model.decoder(params))
        return self.data.source.to_transformers(decoder, self.data.answers.jinja)

    def _noise(
        self, key: jax.Array, batch: PackedBatch, variance: float | Array
    ) -> Float[Array, "batch n dim"]:
        return gaussian(key, (*batch.tokens.shape, self.model.dim), variance)

    def _logits(self, states: Array, head: Array) -> Array:
        dtype = jnp.dtype(self.config.model.dtype)
        return jnp.matmul(
            states.astype(dtype),
            head.astype(dtype).T,
            preferred_element_type=jnp.float32,
        )

    def _layer_sums(
        self, states: Array, head: Array, labels: Any, weights: Any
    ) -> Float[Array, "layers batch"]:
        """Losses of all layers in one call, which makes the head's gradient once."""
        shape, dtype = labels.shape, jnp.dtype(self.config.model.dtype)
        flat = states.reshape(len(states), -1, states.shape[-1])
        losses = chunked_cross_entropy(
            flat,
            head,
            jnp.asarray(labels).reshape(-1),
            jnp.asarray(weights).reshape(-1),
            dtype=dtype,
        )
        return jnp.sum(losses.reshape(-1, *shape), axis=-1)

    def _readings(
        self, params: Params, batch: PackedBatch, variance: Array, key: jax.Array
    ) -> tuple[Array, ...]:
        """Losses and likeliest tokens at kept positions, (layers, batch, kept), by
        layer."""
        states, head = (
            self.model.states(params, batch, self._noise(key, batch, variance)),
            self.model.head(params),
        )

        def read(states: Array) -> tuple[Array, Array]:
            logits = self._logits(states, head)
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, jnp.asarray(batch.labels)
            )
            return losses, jnp.argmax(logits, axis=-1)

        return jax.lax.map(read, states)
