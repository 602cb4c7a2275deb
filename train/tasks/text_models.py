"""Classifiers of texts, readings of their logits, and early exit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax.models import (
    Classifier,
    Encoder,
    EncoderConfig,
    UnrolledClassifier,
    UnrolledTransformer,
    dct,
    scaled_identity,
)

from ..config.errors import OptionError
from ..config.tokens import EncoderOptions, TextRunConfig, UnrolledConfig
from ..data.pretrained.encoders import start_from
from ..sharding.rules import POLICIES, path_name
from .early_exit import (
    calibrate,
    calibrate_crosswise,
    choose_threshold,
    cost_of_exit,
    exit_curve,
    exit_layers,
    thresholds_of,
)
from .text_data import TextInputs

# Factor of a drawn encoder's tables: they start with a standard deviation of 0.02, and the unit of noise is 1.
UNIT_VARIANCE = 50.0

# V starts as the first times the cosine transform; W as the second times the identity, and U as the rest.
ATTENTION_SCALE, MIXING = 0.25, 0.2


class TextModel(NamedTuple):
    """A classifier."""

    module: Classifier | UnrolledClassifier
    num_layers: int
    dim: int  # of the tokens
    init: Callable[[jax.Array], Any]  # key -> params, with pretrained ones in their place
    trained: Callable[[Any], Any] | None  # params -> bool for each; None where all are trained


class TextReading(NamedTuple):
    """Readings of the texts of a batch by one layer, or by every layer."""

    losses: Any  # cross entropy in nats
    entropies: Any  # of the predicted probabilities, in nats
    predictions: Any  # the most probable class


class SplitReading(NamedTuple):
    """Every layer on a whole split at one strength of noise: arrays (N, L + 1) as in `TextReading`, and labels (N,)."""

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
    loop = {"remat": POLICIES[config.remat] or False, "unroll": config.unroll}
    if isinstance(config.model, EncoderOptions):
        return _encoder(config.model, config.max_length, loop, inputs)
    return _unrolled(config.model, config.max_length, loop, inputs)


def _encoder(settings: EncoderOptions, max_length: int, loop: dict[str, Any], inputs: TextInputs) -> TextModel:
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
        scale = lambda path: UNIT_VARIANCE if path_name(path).endswith("embedding") else 1.0  # noqa: E731
        return jax.tree.map_with_path(lambda path, leaf: scale(path) * leaf, params)

    trained = _all_but_words if settings.frozen and pretrained is not None else None
    return TextModel(module, shape.num_layers, shape.dim, init, trained)


def _unrolled(settings: UnrolledConfig, max_length: int, loop: dict[str, Any], inputs: TextInputs) -> TextModel:
    table = inputs.table
    dim = settings.dim if table is None else table.shape[1]
    if settings.rank is not None and settings.rank > dim:
        raise OptionError("model.rank", f"at most the width of the embeddings, {dim}", settings.rank)
    transformer = UnrolledTransformer(
        dim=dim,
        num_layers=settings.num_layers,
        rank=settings.rank,
        dtype=jnp.dtype(settings.dtype),
        **loop,
        V_init=dct(ATTENTION_SCALE),
        W_init=scaled_identity(MIXING),
        U_init=scaled_identity(1.0 - MIXING),
    )
    module = UnrolledClassifier(
        transformer,
        inputs.vocabulary_size,
        len(inputs.spec.class_names),
        settings.pooling,
        max_positions=max_length if settings.positions else None,
    )

    def init(key: jax.Array) -> Any:
        params = module.init(key, jnp.zeros((1, 1), jnp.int32))
        if table is None:
            return params
        words = jnp.asarray(table)
        return jax.tree.map_with_path(lambda path, leaf: words if _is_word_table(path) else leaf, params)

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
    return TextReading(cross_entropy(logits, labels), entropies, jnp.argmax(logits, axis=-1))


def cross_entropy(logits: Float[Array, "batch classes"], labels: Any) -> Float[Array, "batch"]:
    """-log p(label), in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def evaluate_exits(validation: SplitReading, test: SplitReading) -> dict[str, Any]:
    """Early exit on the test split, calibrated and its threshold chosen on the validation split; JSON values.

    Depths count layers that are run, of L.
    """
    predictor = calibrate(validation.losses, validation.entropies)
    unseen = calibrate_crosswise(validation.losses, validation.entropies)
    thresholds = thresholds_of(np.concatenate([unseen.ravel(), *predictor.improvements]))
    correct = [reading.predictions == reading.labels[:, None] for reading in (validation, test)]
    chosen = choose_threshold(unseen, correct[0], thresholds)
    met = predictor.all(test.entropies)
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
