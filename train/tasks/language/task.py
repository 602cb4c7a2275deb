"""Fine-tuning of language models on instructions with perturbed embeddings, plain
and under descent constraints."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt32
from scipy.sparse import csr_array

from unroll_jax.constrained import chunked_cross_entropy

from ...config.errors import UserError
from ...core.evaluate import noise_trials, num_parameters
from ...core.task import Log, Params, Reading, Row, Task, Trial
from ...data.rows import is_whole
from ..common import (
    check_noise,
    logged,
    on_batches,
    train_batches,
    with_reference,
)
from ..text.tokens import (
    SCORE,
    accuracy,
    as_keys,
    draw_noise,
    dropout_keys,
    noise_figures,
    noise_variance,
    noise_words,
    validation_row,
)
from .answers import AnswerTokenizer, PackedBatch, arrays, filled, kept_positions, pack
from .instructions import Conversation
from .model import (
    LanguageInputs,
    LanguageModel,
    build_model,
    from_json,
    load_inputs,
    token_share,
)
from .options import BYTES, LanguageConfig

# pairs of each first token that are counted as if the table of single tokens had drawn
# them
BACKED_OFF = 1.0


class Drawn(NamedTuple):
    """A batch with the draws of a step: noise of the embeddings, and positions at
    which not all layers are read."""

    batch: PackedBatch
    noise: Float[Array, "batch n dim"] | None
    # kept positions at which layers before the last are read, or None for all
    chosen: Int[Array, "batch part"] | None = None
    # by which a sum over these estimates that over all
    weights: Float[Array, "batch part"] | None = None
    keys: UInt32[Array, "batch 2"] | None = None  # of dropout


class Answered(NamedTuple):
    """The answer to one prompt as a model sees it."""

    answer: str  # the answer
    # of its tokens, the end among them, by the last layer, in nats
    log_probabilities: np.ndarray
    losses: np.ndarray  # means over these tokens of every layer that is read
    accuracies: np.ndarray  # the share of these tokens that each layer predicts
    layers: tuple[int, ...]  # numbers of these layers


class Inner(NamedTuple):
    """What `generate` and exports need: ``variance`` is of the noise of a strength,
    ``to_transformers`` returns tensors, the changes merged, and other files of a
    folder of that library."""

    model: LanguageModel
    data: LanguageInputs
    variance: Any
    to_transformers: Any


def open_task(options: LanguageConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    return logged(options, make(options, load_inputs(options, log)), log)


def rebuild(options: LanguageConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without its texts, to predict."""
    return make(options, from_json(spec))


def make(options: LanguageConfig, data: LanguageInputs) -> Task:
    """Returns the task: f_l is the mean cross entropy of the tokens of answers at the
    l-th layer that is read, by the norm and the head of the model. Layer 0 is the
    embeddings, noise included.

    In training a sample is a row of texts. In a reading it is a text. The loss of a
    text is the sum over the tokens of its answer, divided by the mean number of tokens:
    means over texts are means over tokens.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 6 and Appendix B.7.
    """
    options = with_reference(options, BYTES, token_share(data))
    config, packed = data.source.config, data.packed
    model = build_model(options, config)
    size, share = options.batch_size, options.descent.positions
    dtype = jnp.dtype(options.model.dtype)
    draw = functools.partial(draw_noise, options, data.embedding_std)
    watched = not (options.enforces or options.supervises)

    def corrupt(batch: PackedBatch, trial: Trial, key: jax.Array) -> Drawn:
        of_noise, of_places = jax.random.split(key)
        noise = draw(of_noise, (*batch.tokens.shape, config.dim), trial.gamma)
        keys = dropout_keys(options, trial, key, len(batch.tokens))
        if share == 1:
            return Drawn(batch, noise, keys=keys)
        chosen, weights = choose(of_places, batch.weights, share)
        return Drawn(batch, noise, chosen, weights, keys)

    def losses(params: Params, batch: Drawn, trial: Trial) -> Any:
        """Returns sums over the tokens of every row. Layers before the last are
        constants for plain risk, which only watches them."""
        rows, chosen = batch.batch, batch.chosen
        keys = as_keys(batch.keys)
        states, head = model.read(params, rows, batch.noise, keys)
        labels, weights = jnp.asarray(rows.labels), rows.weights
        if chosen is None and not watched:
            return row_sums(states, head, labels, weights), {}

        last = row_sums(states[-1:], head, labels, weights)
        before = states[:-1]
        if chosen is not None:
            before = jnp.take_along_axis(before, chosen[None, ..., None], axis=2)
            labels = jnp.take_along_axis(labels, chosen, axis=1)
            weights = batch.weights
        if watched:
            before, head = jax.lax.stop_gradient((before, head))
        columns = row_sums(before, head, labels, weights), last
        return jnp.concatenate(columns, axis=1), {}

    def row_sums(
        states: Array, head: Array, labels: Any, weights: Any
    ) -> Float[Array, "batch layers"]:
        """Reads all layers in one call, which makes the head's gradient once."""
        losses = chunked_cross_entropy(
            states.reshape(len(states), -1, states.shape[-1]),
            head,
            labels.reshape(-1),
            jnp.asarray(weights).reshape(-1),
            dtype=dtype,
        )
        return jnp.sum(losses.reshape(-1, *labels.shape), axis=-1).T

    def read(params: Params, batch: Drawn, trial: Trial) -> Any:
        """Returns losses at kept positions, (batch, kept, layers), whether the
        likeliest token is right, and whether the last layer agrees."""
        rows = batch.batch
        states, head = model.read(params, rows, batch.noise)

        def read_layer(states: Array) -> tuple[Array, Array]:
            logits = jnp.matmul(
                states.astype(dtype),
                head.astype(dtype).T,
                preferred_element_type=jnp.float32,
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, jnp.asarray(rows.labels)
            )
            return losses, jnp.argmax(logits, axis=-1)

        # one layer's logits at a time
        losses, words = jax.lax.map(read_layer, states)
        right = words == rows.labels
        return jax.tree.map(
            lambda part: jnp.moveaxis(part, 0, -1),
            {"losses": losses, "right": right, "agreed": words == words[-1]},
        )

    def join(parts: Any, split: str) -> Reading:
        whole = packed.whole(split)
        counted = whole.weights > 0.0
        losses, right, agreed = (
            np.concatenate([found[name] for found in parts])[: len(counted)][counted]
            for name in ("losses", "right", "agreed")
        )
        texts = np.zeros((packed.texts[split], len(model.layers)))
        np.add.at(texts, whole.owners[counted], losses)
        return {
            "losses": texts / (len(losses) / len(texts)),
            "right": right,
            "agreed": agreed,
        }

    def baselines(params: Params, readings: Any) -> Row:
        """Returns figures by layer that is read out, and floors. Acceptance is the
        share of tokens at which a layer agrees with the last. It is the share of
        one-token drafts that are accepted."""

        def by_gamma(of: Callable[[Reading], Any]) -> Row:
            trials = task.trials[SCORE].items()
            return {label: of(readings[one]).tolist() for label, one in trials}

        train, test = packed.whole("train"), packed.whole("test")
        tables = floors(train, test, config.vocabulary_size)
        accuracies = {name: table.accuracy for name, table in tables.items()}
        return {
            **noise_figures(options, readings, data.embedding_std, accuracies),
            "layers": list(model.layers),
            "num_tokens": int(test.weights.sum()),
            "layer_accuracies": by_gamma(lambda found: np.mean(found["right"], axis=0)),
            "acceptance": by_gamma(lambda found: np.mean(found["agreed"], axis=0)),
            "perplexity": by_gamma(lambda found: perplexities(found)[-1]),
            "layer_perplexities": perplexities(readings[task.trial]).tolist(),
            "floor_losses": {name: table.loss for name, table in tables.items()},
            "trained_parameters": num_parameters(params.get("changes", params)),
        }

    see = on_batches(
        lambda params, batch, gamma, key: read(
            params, corrupt(batch, Trial(gamma), key), Trial()
        )
    )

    def predict(
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
        prompts, given = paired(inputs, answers)
        whole = rows_of(prompts, given, data.answers, max_length=options.max_length)
        found = []
        for start in range(0, len(prompts), size):
            part = PackedBatch(*(rows[start : start + size] for rows in whole))
            key = jax.random.fold_in(jax.random.key(seed), start)
            found.append(see(params, filled(part, size), np.float32(gamma), key))
        losses, right = (
            np.concatenate([batch[name] for batch in found])
            for name in ("losses", "right")
        )
        answered = []
        for number, answer in enumerate(given):
            counted = whole.weights[number] > 0.0
            each = losses[number, counted]
            shares = right[number, counted].mean(axis=0)
            answered.append(
                Answered(answer, -each[:, -1], each.mean(axis=0), shares, model.layers)
            )
        return answered

    def to_transformers(params: Params) -> Any:
        decoder = jax.device_get(model.decoder(params))
        return data.source.to_transformers(decoder, data.answers.jinja)

    trial = Trial(float(options.train_gamma))
    task = Task(
        options=options,
        num_layers=len(model.layers) - 1,
        init=model.init,
        batches=train_batches(packed, size),
        examples=lambda split, trial: packed.examples(split, batch_size=size),
        losses=losses,
        make=lambda other: make(other, data),
        predict=predict,
        summary=summary,
        corrupt=corrupt,
        trial=trial,
        trials=noise_trials(SCORE, options.noise_levels, trial),
        score=accuracy,
        row=lambda params, reading: {
            **validation_row(params, reading),
            "perplexity": float(perplexities(reading)[-1]),
        },
        baselines=baselines,
        read=read,
        join=join,
        counts=lambda batch: jnp.sum(batch.batch.weights, axis=1),
        trained=model.trained,
        pretrained=data.source.read,
        with_pretrained=lambda params, given: {**params, "decoder": given},
        numbers=model.layers,
        num_examples=None if packed is None else packed.num_examples("train"),
        examples_are="rows of instructions",
        fingerprint=data.fingerprint,
        spec=data.to_json,
        inner=Inner(
            model,
            data,
            lambda gamma: noise_variance(options, gamma, data.embedding_std),
            to_transformers,
        ),
    )
    return task


def summary(evaluation: Row) -> str:
    """Returns accuracy and perplexity at the noise of training, the area under the
    former, and feasibility."""
    gamma = str(float(evaluation["train_gamma"]))
    return (
        f"token accuracy {evaluation[SCORE][gamma]:.1%}, perplexity"
        f" {evaluation['perplexity'][gamma]:.4g} {noise_words(evaluation)}"
    )


def choose(key: jax.Array, weights: Any, share: int) -> tuple[Array, Array]:
    """Chooses one in ``share`` of the positions that count in each row, and weights:
    weighted sums over them estimate sums over all. ``weights`` (batch, kept) are 1
    where a position counts. Both are (batch, kept / share), rounded up. A row with few
    of them has all chosen. Rows are functions of the key and their place in the batch.
    """
    weights = jnp.asarray(weights)
    most = -(-weights.shape[1] // share)
    order = jnp.where(weights > 0.0, jax.random.uniform(key, weights.shape), -1.0)
    largest, chosen = jax.lax.top_k(order, most)
    counted = (largest >= 0.0).astype(weights.dtype)
    totals = jnp.sum(weights, axis=1, keepdims=True)
    number = jnp.maximum(jnp.sum(counted, axis=1, keepdims=True), 1.0)
    return chosen, counted * totals / number


def perplexities(reading: Reading) -> np.ndarray:
    """Returns exponentials of the mean losses of tokens, by layer."""
    return np.exp(np.mean(reading["losses"], axis=0))


def paired(inputs: Any, answers: Any) -> tuple[list[str], list[str]]:
    """Returns prompts, and an answer to each."""
    inputs, answers = (
        [each] if isinstance(each, str) else list(each or ())
        for each in (inputs, answers)
    )
    if not inputs:
        raise UserError("predict needs prompts; give --text, or a --file of them")
    if len(inputs) != len(answers):
        raise UserError(
            f"predict needs one answer (--second) for each prompt, got {len(inputs)}"
            f" prompts and {len(answers)} answers; to have prompts answered, use"
            " generate"
        )
    for kind, texts in (("prompt", inputs), ("answer", answers)):
        for number, text in enumerate(texts, start=1):
            if not (isinstance(text, str) and text.strip() and is_whole(text)):
                raise UserError(
                    f"{kind} {number} must be a text of valid UTF-8, and not empty, got"
                    f" {text!r:.60}; leave it out"
                )
    return inputs, answers


def rows_of(
    prompts: Sequence[str],
    answers: Sequence[str],
    tokenizer: AnswerTokenizer,
    *,
    max_length: int,
) -> PackedBatch:
    """Returns prompts with their answers, a row each."""
    texts = tokenizer.encode(list(map(Conversation, prompts, answers)))
    for number, text in enumerate(texts, start=1):
        if len(text.tokens) > max_length:
            raise UserError(
                f"prompt {number} has {text.first} tokens, with its answer"
                f" {len(text.tokens)}, and training took at most {max_length}; give"
                " shorter ones"
            )
    rows = pack([len(text.tokens) for text in texts], 0)
    return arrays(texts, rows, max_length, kept_positions(texts, rows))


class Floor(NamedTuple):
    """The shares of held-out tokens that a table predicts, and the mean of its
    losses, in nats."""

    accuracy: float
    loss: float


def floors(
    train: PackedBatch, test: PackedBatch, vocabulary_size: int
) -> dict[str, Floor]:
    r"""Returns tables of the answers of a train split, tried on those of another:
    :math:`p(w) = (c(w) + 1) / (n + V)`; of pairs
    :math:`p(w | u) = (c(u, w) + p(w)) / (c(u) + 1)`, u the token before, perhaps the
    prompt's last; no noise.
    """
    (before, after), (given, wanted) = pairs(train), pairs(test)
    counts = np.bincount(after, minlength=vocabulary_size)
    single = (counts + 1.0) / (counts.sum() + vocabulary_size)

    table: Any = csr_array(
        (np.ones(len(after)), (before, after)), shape=(vocabulary_size,) * 2
    )
    table.sum_duplicates()
    first, second = table.nonzero()
    # the last word that is written for a first one has the highest count
    order = np.lexsort((-second, table.data + BACKED_OFF * single[second], first))
    likeliest = np.full(vocabulary_size, single.argmax())
    likeliest[first[order]] = second[order]

    totals = np.bincount(before, minlength=vocabulary_size)
    seen = np.asarray(table[given, wanted]).reshape(-1)
    paired = (seen + BACKED_OFF * single[wanted]) / (totals[given] + BACKED_OFF)

    def floor(named: Any, shares: np.ndarray) -> Floor:
        losses = -np.log(shares)
        return Floor(float(np.mean(wanted == named)), float(losses.mean()))

    return {
        "unigram": floor(counts.argmax(), single[wanted]),
        "bigram": floor(likeliest[given], paired),
    }


def pairs(split: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of answers, and the token before each."""
    counted = split.weights > 0.0
    before = np.take_along_axis(split.tokens, split.places, axis=1)
    return before[counted], split.labels[counted]
