"""Classifiers of texts, readings of their logits, and early exit."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax.models import Classifier, Encoder, EncoderConfig, UnrolledClassifier

from ..config.tokens import EncoderOptions, TextRunConfig, UnrolledConfig
from ..data.pretrained.encoders import start_from
from ..sharding.rules import path_name
from .networks import START, loop_options, unrolled_transformer
from .text_data import TextInputs

# Factor of a drawn encoder's tables: they start with a standard deviation of 0.02, and
# the unit of noise is 1.
UNIT_VARIANCE = 50.0
# Accuracy that the chosen threshold may cost on validation data, with the standard
# error of that: half a point.
TOLERATED = 0.005
NUM_THRESHOLDS = 40


class TextModel(NamedTuple):
    """A classifier."""

    module: Classifier | UnrolledClassifier
    num_layers: int
    dim: int  # of the tokens
    # key -> params, with pretrained ones in their place
    init: Callable[[jax.Array], Any]
    # params -> bool for each; None where all are trained
    trained: Callable[[Any], Any] | None


class TextReading(NamedTuple):
    """Readings of the texts of a batch by one layer, or by every layer."""

    losses: Any  # cross entropy in nats
    entropies: Any  # of the predicted probabilities, in nats
    predictions: Any  # the most probable class


class SplitReading(NamedTuple):
    """Every layer on a whole split at one strength of noise: arrays (N, L + 1) as in
    `TextReading`, and labels (N,)."""

    losses: np.ndarray
    entropies: np.ndarray
    predictions: np.ndarray
    labels: np.ndarray

    @property
    def accuracies(self) -> np.ndarray:
        """(L + 1,) share of the texts that each layer classifies rightly."""
        return np.mean(self.predictions == self.labels[:, None], axis=0)


class Prediction(NamedTuple):
    """The prediction of a classifier for one text."""

    text: str  # the text, or of a pair the first
    label: str  # the most probable class of the last layer
    probabilities: np.ndarray  # of the classes by layer, (L + 1, classes)
    class_names: tuple[str, ...]  # of the classes


def build_model(config: TextRunConfig, inputs: TextInputs) -> TextModel:
    """Builds the classifier of a configuration."""
    build: Any = _encoder if config.is_encoder else _unrolled
    return build(config.model, config.max_length, loop_options(config), inputs)


def _encoder(
    settings: EncoderOptions, max_length: int, loop: dict[str, Any], inputs: TextInputs
) -> TextModel:
    pretrained = inputs.pretrained
    names = ("dim", "num_layers", "num_heads", "hidden_dim")
    shape = (
        pretrained.config
        if pretrained
        else EncoderConfig(
            vocabulary_size=inputs.vocabulary_size,
            max_positions=max_length,
            padding_token=inputs.spec.tokenizer.padding_token,
            **{name: getattr(settings, name) for name in names},
        )
    )
    encoder = Encoder(shape, dtype=jnp.dtype(settings.dtype), **loop)
    hidden = pretrained.hidden if pretrained is not None and settings.hidden else None
    module = Classifier(encoder, len(inputs.spec.class_names), settings.pooling, hidden)

    def init(key: jax.Array) -> Any:
        if pretrained is not None and pretrained.params:
            return start_from(pretrained, module, key)
        params = module.init(key, jnp.zeros((1, 1), jnp.int32))
        if pretrained is not None:
            return params  # only their shapes count

        def scale(path):
            return UNIT_VARIANCE if path_name(path).endswith("embedding") else 1.0

        return jax.tree.map_with_path(lambda path, leaf: scale(path) * leaf, params)

    trained = _all_but_words if settings.frozen and pretrained is not None else None
    return TextModel(module, shape.num_layers, shape.dim, init, trained)


def _unrolled(
    settings: UnrolledConfig, max_length: int, loop: dict[str, Any], inputs: TextInputs
) -> TextModel:
    table = inputs.table
    dim = settings.dim if table is None else table.shape[1]
    transformer = unrolled_transformer(settings, dim, **loop, **START)
    module = UnrolledClassifier(
        transformer,
        inputs.vocabulary_size,
        len(inputs.spec.class_names),
        max_positions=max_length if settings.positions else None,
    )

    def init(key: jax.Array) -> Any:
        params = module.init(key, jnp.zeros((1, 1), jnp.int32))
        if table is None:
            return params
        words = jnp.asarray(table)
        return jax.tree.map_with_path(
            lambda path, leaf: words if _is_word_table(path) else leaf, params
        )

    trained = _all_but_words if settings.frozen and table is not None else None
    return TextModel(module, settings.num_layers, dim, init, trained)


def _all_but_words(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, _: not _is_word_table(path), params)


def _is_word_table(path: Any) -> bool:
    return path_name(path).endswith("embeddings/word/embedding")


def read_sample(logits: Float[Array, "batch classes"], labels: Any) -> TextReading:
    """Reads every text from a layer's logits."""
    logs = jax.nn.log_softmax(logits)
    entropies = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    return TextReading(
        cross_entropy(logits, labels), entropies, jnp.argmax(logits, axis=-1)
    )


def cross_entropy(
    logits: Float[Array, "batch classes"], labels: Any
) -> Float[Array, "batch"]:
    """-log p(label), in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def evaluate_exits(validation: SplitReading, test: SplitReading) -> dict[str, Any]:
    """Early exit on the test split, calibrated and thresholded on validation; JSON
    values. Depths count run layers."""
    knots = calibrate(validation.losses, validation.entropies)
    unseen = calibrate_crosswise(validation.losses, validation.entropies)
    thresholds = thresholds_of(
        np.concatenate([unseen.ravel(), *(nats for _, nats in knots)])
    )
    correct = [
        reading.predictions == reading.labels[:, None] for reading in (validation, test)
    ]
    chosen = choose_threshold(unseen, correct[0], thresholds)
    met = predict_improvements(knots, test.entropies)
    layers = exit_layers(met, chosen)
    cost, error = cost_of_exit(layers, correct[1])
    full = float(np.mean(correct[1][:, -1]))
    return {
        "curve": exit_curve(met, correct[1], thresholds),
        "full_accuracy": full,
        "threshold": chosen,
        "mean_depth": float(layers.mean()),
        "accuracy": full - cost,
        "standard_error": error,
    }


def calibrate(
    losses: np.ndarray, entropies: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fits the improvement of a text's loss behind layer l, f_l - f_L, to the entropy
    of the layer's prediction, by isotonic regression on validation texts, (N, L + 1).
    Returns rising entropies of layers 0..L-1 and the nats at them. A text leaves at the
    first layer after which little is predicted.
    """
    # takes a second, and is needed only to evaluate
    from sklearn.isotonic import IsotonicRegression

    entropies, improvements = (
        np.asarray(part, np.float64)
        for part in (entropies, losses[:, :-1] - losses[:, -1:])
    )
    fits = [
        IsotonicRegression().fit(entropies[:, layer], each)
        for layer, each in enumerate(improvements.T)
    ]
    return [(fit.X_thresholds_, fit.y_thresholds_) for fit in fits]


def predict_improvements(
    knots: Sequence[tuple[np.ndarray, np.ndarray]], entropies: np.ndarray
) -> np.ndarray:
    """Returns the improvements predicted for texts at all layers but the last, (N,
    L), from entropies (N, L + 1)."""
    return np.stack(
        [np.interp(entropies[:, layer], *each) for layer, each in enumerate(knots)],
        axis=1,
    )


def exit_layers(predicted: np.ndarray, threshold: float) -> np.ndarray:
    """The first layer of each text whose predicted improvement (N, L) is under the
    threshold, else the last, L."""
    under = predicted < threshold
    return np.where(under.any(axis=1), under.argmax(axis=1), predicted.shape[1])


def exit_curve(
    predicted: np.ndarray, correct: np.ndarray, thresholds: Sequence[float]
) -> dict[str, list[float]]:
    """Mean depth and accuracy at every threshold, from predicted improvements (N, L)
    and correct ones (N, L + 1)."""
    depths, accuracies = [], []
    for threshold in thresholds:
        layers = exit_layers(predicted, threshold)
        depths.append(float(layers.mean()))
        accuracies.append(float(np.mean(correct[np.arange(len(layers)), layers])))
    return {
        "thresholds": list(map(float, thresholds)),
        "mean_depths": depths,
        "accuracies": accuracies,
    }


def calibrate_crosswise(losses: np.ndarray, entropies: np.ndarray) -> np.ndarray:
    """Predicts each half of the texts from the other, (N, L): no text is predicted
    from its losses."""
    predicted = np.empty(losses[:, :-1].shape)
    for half, other in (
        (slice(0, None, 2), slice(1, None, 2)),
        (slice(1, None, 2), slice(0, None, 2)),
    ):
        predicted[half] = predict_improvements(
            calibrate(losses[other], entropies[other]), entropies[half]
        )
    return predicted


def cost_of_exit(layers: np.ndarray, correct: np.ndarray) -> tuple[float, float]:
    """Returns the accuracy lost by leaving at these layers (N,), and its standard
    error; ``correct`` is (N, L + 1)."""
    lost = correct[:, -1].astype(float) - correct[np.arange(len(layers)), layers]
    return float(lost.mean()), float(lost.std() / np.sqrt(len(lost)))


def choose_threshold(
    predicted: np.ndarray, correct: np.ndarray, thresholds: Sequence[float]
) -> float:
    """The threshold of least depth whose cost, with its standard error, is
    `TOLERATED` at most."""
    layers = [exit_layers(predicted, threshold) for threshold in thresholds]
    kept = [
        place
        for place, exits in enumerate(layers)
        if sum(cost_of_exit(exits, correct)) <= TOLERATED
    ]
    # A threshold below all predictions lets none leave, and costs nothing.
    return float(thresholds[min(kept, key=lambda place: layers[place].mean())])


def thresholds_of(predicted: np.ndarray) -> list[float]:
    """Returns thresholds, from no text leaving early to all leaving at layer 0."""
    levels = np.unique(np.quantile(predicted, np.linspace(0.0, 1.0, NUM_THRESHOLDS)))
    return [
        float(levels[0]),
        *levels[1:].tolist(),
        float(np.nextafter(levels[-1], np.inf)),
    ]
