"""Text classification with perturbed embeddings: encoders and unrolled transformers,
plain and under constraints."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from ...config.errors import UserError
from ...core.evaluate import noise_trials
from ...core.evaluate import read as read_split
from ...core.task import Log, Params, Reading, Row, Task, Trial
from ...data.words import check_pairs
from ...sharding import keep_rows
from ..common import check_noise, logged, with_reference
from .model import (
    TextInputs,
    all_but_words,
    build_module,
    from_json,
    init,
    load_inputs,
    width,
)
from .options import CHANCE, TextRunConfig
from .tokens import (
    SCORE,
    TokenBatch,
    accuracy,
    as_keys,
    draw_noise,
    dropout_keys,
    noise_figures,
    noise_words,
    token_batch,
    validation_row,
)

# texts, in an evaluation: no gradient is kept, so more fit than in training
READ_TOGETHER = 128
PREDICTED_TOGETHER = 32  # texts. Each has noise by its place
# Accuracy that the chosen threshold may cost on validation data, with the standard
# error of that: half a point.
TOLERATED = 0.005
NUM_THRESHOLDS = 40


class Perturbed(NamedTuple):
    """A batch with the noise of its embeddings, None for no noise."""

    batch: TokenBatch
    noise: Float[Array, "batch n dim"] | None
    keys: UInt32[Array, "batch 2"] | None = None  # of dropout


class Prediction(NamedTuple):
    """The prediction of a classifier for one text."""

    text: str  # the text, or of a pair the first
    label: str  # the most probable class of the last layer
    probabilities: np.ndarray  # of the classes by layer, (L + 1, classes)
    class_names: tuple[str, ...]  # of the classes


def open_task(options: TextRunConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    return logged(options, make(options, load_inputs(options, log)), log)


def rebuild(options: TextRunConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without its texts, to predict."""
    return make(options, from_json(spec))


def make(options: TextRunConfig, data: TextInputs) -> Task:
    """Returns the task: f_l is the mean cross entropy of the shared readout at layer l.
    Layer 0 is the embeddings, noise included.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 5 and Appendix B.3.
    """
    names = data.spec.class_names
    options = with_reference(options, CHANCE, math.log(len(names)) / math.log(2.0))
    module = build_module(options, data)
    tokens = data.tokens
    dim = width(options, data)
    depth = options.model if data.pretrained is None else data.pretrained.config
    frozen = options.model.frozen and data.table is not None
    draw = functools.partial(draw_noise, options, data.embedding_std)

    def batches(seed: int, start_step: int, rows: Any) -> Iterator[TokenBatch]:
        """Reads all rows: the length of a batch depends on all."""
        for batch in tokens.batches(
            "train", batch_size=options.batch_size, seed=seed, start_step=start_step
        ):
            yield batch if rows is None else TokenBatch(*(part[rows] for part in batch))

    def corrupt(batch: TokenBatch, trial: Trial, key: jax.Array) -> Perturbed:
        noise = draw(key, (*batch.tokens.shape, dim), trial.gamma)
        keys = dropout_keys(options, trial, key, len(batch.tokens))
        return Perturbed(batch, noise, keys)

    def outputs(params: Params, batch: Perturbed, record: Any) -> Any:
        """Returns ``record(logits)`` of layers 0..L, stacked. Noise is added to the
        embeddings of real words."""
        texts = batch.batch
        # the unrolled transformer has no dropout
        dropped = {}
        if batch.keys is not None:
            dropped["dropout_key"] = as_keys(batch.keys)
        return module.apply(
            params,
            texts.tokens,
            texts.mask,
            token_types=texts.token_types,
            perturbation=batch.noise,
            record=lambda logits: record(keep_rows(logits)),
            **dropped,
        )

    def losses(params: Params, batch: Perturbed, trial: Trial) -> Any:
        kept = jax.tree.map(keep_rows, batch)
        labels = kept.batch.labels
        found = outputs(params, kept, lambda logits: cross_entropy(logits, labels))
        return found.T, {}

    def read(params: Params, batch: Perturbed, trial: Trial) -> Any:
        """Returns losses, entropies of the predicted probabilities in nats, and whether
        the most probable class is the right one."""
        labels = batch.batch.labels

        def read_layer(logits: Array) -> dict[str, Array]:
            logs = jax.nn.log_softmax(logits)
            return {
                "losses": cross_entropy(logits, labels),
                "entropies": -jnp.sum(jnp.exp(logs) * logs, axis=-1),
                "right": jnp.argmax(logits, axis=-1) == labels,
            }

        found = outputs(params, batch, read_layer)
        return {"labels": labels, **jax.tree.map(jnp.transpose, found)}

    def baselines(params: Params, readings: Any) -> Row:
        test = readings[task.trial]
        validation = read_split(task, params, "validation", task.trial)
        shares = np.bincount(test["labels"]) / len(test["labels"])
        floors = {"chance": 1.0 / len(names), "majority class": float(shares.max())}
        return {
            "class_names": list(names),
            **noise_figures(options, readings, data.embedding_std, floors),
            "early_exit": evaluate_exits(validation, test),
        }

    @jax.jit
    def probabilities(
        params: Params, batch: TokenBatch, gamma: Any, key: Any
    ) -> Float[Array, "layers batch classes"]:
        """Returns class probabilities. Noise is drawn for a full batch: that of a text
        depends on its place only."""
        noise: Any = draw(key, (PREDICTED_TOGETHER, options.max_length, dim), gamma)
        count, length = batch.tokens.shape
        noisy = Perturbed(batch, noise[:count, :length])
        return outputs(params, noisy, jax.nn.softmax)

    def predict(
        params: Params,
        inputs: Sequence[str],
        *,
        seconds: Sequence[str] | None = None,
        gamma: float = 0.0,
        seed: int = 0,
        log: Log = print,
    ) -> list[Prediction]:
        """Returns classes of texts, or of pairs with their ``seconds``, and
        probabilities by layer. Noise of a strength ``gamma`` may be added: that of a
        text depends on its place among them, not on the other texts. The number of
        texts that were too long is logged.
        """
        texts = [inputs] if isinstance(inputs, str) else inputs
        check_noise(gamma, seed)
        _check_texts(texts, seconds, pairs=data.spec.pairs)
        length, predictions, truncated = options.max_length, [], 0
        for start in range(0, len(texts), PREDICTED_TOGETHER):
            part = slice(start, start + PREDICTED_TOGETHER)
            second = None if seconds is None else seconds[part]
            batch, longer = token_batch(
                data.spec.tokenizer, texts[part], second, max_length=length
            )
            key = jax.random.fold_in(jax.random.key(seed), start)
            found = probabilities(params, batch, np.float32(gamma), key)
            by_text = np.swapaxes(jax.device_get(found), 0, 1)
            for text, shares in zip(texts[part], by_text, strict=True):
                label = names[int(shares[-1].argmax())]
                predictions.append(Prediction(text, label, shares, names))
            truncated += longer
        if truncated:
            log(
                f"{truncated} of {len(texts)} texts are longer than {length} tokens;"
                " their ends are left out"
            )
        return predictions

    trial = Trial(float(options.train_gamma))
    task = Task(
        options=options,
        num_layers=depth.num_layers,
        init=functools.partial(init, module, data),
        batches=batches,
        examples=lambda split, trial: tokens.examples(split, batch_size=READ_TOGETHER),
        losses=losses,
        make=lambda other: make(other, data),
        predict=predict,
        summary=summary,
        corrupt=corrupt,
        trial=trial,
        trials=noise_trials(SCORE, options.noise_levels, trial),
        score=accuracy,
        row=validation_row,
        baselines=baselines,
        read=read,
        trained=all_but_words if frozen else None,
        num_examples=None if tokens is None else tokens.num_examples("train"),
        examples_are="texts",
        fingerprint=data.fingerprint,
        spec=data.to_json,
    )
    return task


def summary(evaluation: Row) -> str:
    """Returns the accuracy at the noise of training, the area under it, and
    feasibility."""
    found = evaluation[SCORE][str(float(evaluation["train_gamma"]))]
    return f"accuracy {found:.1%} {noise_words(evaluation)}"


class Exits(NamedTuple):
    """Results of early exit, arrays with one entry per threshold."""

    depths: np.ndarray  # means over texts of the layers that are run
    accuracies: np.ndarray
    costs: np.ndarray  # accuracy that is lost
    errors: np.ndarray  # standard errors of the costs


def evaluate_exits(validation: Reading, test: Reading) -> Row:
    """Returns early exit on the test split, calibrated and thresholded on validation.
    A text leaves at the first layer after which little improvement is predicted."""
    unseen, predicted, levels = predict_improvements(validation, test)
    thresholds = thresholds_of(np.concatenate([unseen.ravel(), *levels]))
    chosen = choose_threshold(exits(unseen, validation["right"], thresholds))
    found = exits(predicted, test["right"], thresholds)
    return {
        "curve": {
            "thresholds": thresholds.tolist(),
            "mean_depths": found.depths.tolist(),
            "accuracies": found.accuracies.tolist(),
        },
        "full_accuracy": accuracy(test),
        "threshold": float(thresholds[chosen]),
        "mean_depth": float(found.depths[chosen]),
        "accuracy": float(found.accuracies[chosen]),
        "standard_error": float(found.errors[chosen]),
    }


def predict_improvements(
    validation: Reading, test: Reading
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Predicts the improvement of a text's loss behind layer l, f_l - f_L, from the
    entropy of the layer's prediction, by isotonic regression on validation texts.

    Returns:
      Those of validation texts at all layers but the last, (N, L), each half of the
      texts from the other: no text is predicted from its losses. The same of test
      texts, from all validation texts. The values of each regression.
    """
    # takes a second, and is needed only to evaluate
    from sklearn.isotonic import IsotonicRegression
    from sklearn.model_selection import cross_val_predict

    losses = validation["losses"]
    entropies: Any = np.float64(validation["entropies"])
    even, odd = (np.arange(start, len(losses), 2) for start in (0, 1))
    unseen, predicted, levels = [], [], []
    for layer in range(losses.shape[1] - 1):
        known = entropies[:, layer]
        improvements = np.float64(losses[:, layer] - losses[:, -1])
        regression = IsotonicRegression(out_of_bounds="clip")
        halves = [(even, odd), (odd, even)]
        unseen.append(cross_val_predict(regression, known, improvements, cv=halves))
        regression.fit(known, improvements)
        predicted.append(regression.predict(np.float64(test["entropies"][:, layer])))
        levels.append(regression.y_thresholds_)
    return np.stack(unseen, axis=1), np.stack(predicted, axis=1), levels


def exits(predicted: np.ndarray, right: np.ndarray, thresholds: np.ndarray) -> Exits:
    """Lets each text leave at the first layer whose predicted improvement, (N, L), is
    under a threshold, else at the last. ``right``, (N, L + 1), marks layers that
    classify correctly."""
    under = predicted < thresholds[:, None, None]
    layers = np.where(under.any(axis=2), under.argmax(axis=2), predicted.shape[1])
    left = right[np.arange(len(right)), layers]
    lost = right[:, -1] - left.astype(float)
    errors = lost.std(axis=1) / np.sqrt(len(right))
    return Exits(layers.mean(axis=1), left.mean(axis=1), lost.mean(axis=1), errors)


def choose_threshold(tried: Exits) -> int:
    """Returns the index of the threshold of least depth whose cost, with its standard
    error, is at most `TOLERATED`."""
    # A threshold below all predictions lets none leave, and costs nothing.
    allowed = tried.costs + tried.errors <= TOLERATED
    return int(np.where(allowed, tried.depths, np.inf).argmin())


def thresholds_of(predicted: np.ndarray) -> np.ndarray:
    """Returns thresholds, from no text leaving early to all leaving at layer 0."""
    levels = np.unique(np.quantile(predicted, np.linspace(0.0, 1.0, NUM_THRESHOLDS)))
    return np.append(levels, np.nextafter(levels[-1], np.inf))


def _check_texts(
    texts: Sequence[str], seconds: Sequence[str] | None, *, pairs: bool
) -> None:
    if not texts:
        raise UserError("predict needs texts; give --text, or a --file of lines")
    if seconds is not None and len(seconds) != len(texts):
        raise UserError(
            f"--second must be as many as --text, {len(texts)}, got {len(seconds)}"
        )
    if pairs and seconds is None:
        raise UserError(
            "the run classifies pairs of texts; give the second with --second, or tabs"
            " in the lines of --file"
        )
    if not pairs and seconds is not None:
        raise UserError(
            "the run classifies single texts; leave out --second, or tabs in the lines"
            " of --file"
        )
    check_pairs(texts, seconds)  # an error has the place among all, not in a part
