"""Tokens: batches grouped by length, so that few shapes are compiled; noise on
embeddings, accuracy, and the area under it."""

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Array

from unroll_jax.models import EncoderConfig

from ...config.errors import UserError, option_text
from ...core.task import Params, Reading, Row, Trial
from ...data.files import Log
from ...data.prepared import by_step, read_ahead
from ...data.pretrained.encoders import EncoderTokenizer
from ...data.words import SPECIAL, Encoded, Tokenizer, WordTokenizer, tokenise
from ..common import feasibility_words, gaussian
from .data import TextData
from .options import TokensConfig

SHORTEST_BUCKET = 8  # a quarter of the phrases of SST-2 have at most so many
ENCODED_TOGETHER = 1024  # texts. Tokenizers of parts of words share them among threads
UNLABELLED = -1
SCORE = "accuracy"


class TokenBatch(NamedTuple):
    """Tokens of one length: numbers, which are of the text, types (or 0), all
    (batch, length), padded; and labels."""

    tokens: np.ndarray
    mask: np.ndarray
    token_types: np.ndarray
    labels: np.ndarray


class TextSpec(NamedTuple):
    """Properties of texts that a model needs."""

    class_names: tuple[str, ...]  # in the order of the labels
    pairs: bool  # whether every record has a second text
    tokenizer: Any  # a `WordTokenizer` or an `EncoderTokenizer`

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, the tokenizer as its words, or as JSON
        of the package ``tokenizers``."""
        values = {"class_names": list(self.class_names), "pairs": self.pairs}
        if isinstance(self.tokenizer, WordTokenizer):
            words = list(self.tokenizer.vocabulary[len(SPECIAL) :])
            return values | {"words": words, "tokenizer": None, "encoder": None}
        return values | {
            "words": None,
            "tokenizer": self.tokenizer.to_json(),
            "encoder": dataclasses.asdict(self.tokenizer.config),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        if values["words"] is not None:
            tokenizer: Any = WordTokenizer(values["words"])
        else:
            config = EncoderConfig(**values["encoder"])
            tokenizer = EncoderTokenizer.from_json(values["tokenizer"], config)
        return cls(tuple(values["class_names"]), values["pairs"], tokenizer)


class TokenData:
    """Texts as batches of tokens. Texts longer than ``max_length`` lose their end, and
    the log has their number. A split is tokenised once, when it is first used. One that
    `TextData.keep` cuts must be cut before. Every batch has one of `bucket_lengths`, so
    a compiled function of a batch is compiled once for each of them.
    """

    def __init__(
        self, data: TextData, tokenizer: Tokenizer, *, max_length: int, log: Log = print
    ) -> None:
        self.class_names = data.class_names
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.checksums = data.checksums
        self.spec = TextSpec(data.class_names, data.pairs, tokenizer)
        self._buckets = np.array(bucket_lengths(max_length))
        self._data = data
        self._log = log
        self._split = functools.lru_cache(maxsize=None)(self._encoded)

    def num_examples(self, split: str) -> int:
        """Returns how many examples a split has."""
        return self._data.num_examples(split)

    def steps_an_epoch(self, split: str, *, batch_size: int) -> int:
        """Returns how many batches `batches` cuts an epoch into."""
        return max(self.num_examples(split) // batch_size, 1)

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0
    ) -> Iterator[TokenBatch]:
        """Iterates over shuffled batches without end, from any step on, reading ahead
        in a thread. Batch ``step`` depends on (seed, step) only. Each epoch is a new
        permutation, cut into batches of about equal length, which come in random order.
        It shows each example once, but for a rest that is smaller than a batch. With
        fewer examples than a batch has, every batch shows each as often as others, or
        once more.
        """
        lengths = self._lengths(split)
        count = self.steps_an_epoch(split, batch_size=batch_size)

        # reading ahead crosses from one epoch to the next
        @functools.lru_cache(maxsize=2)
        def epoch(number: int) -> list[np.ndarray]:
            generator = np.random.default_rng((seed, number))
            order = generator.permutation(len(lengths))
            # Which examples are left over must not depend on their lengths: they go
            # before lengths are looked at.
            batches = group(lengths, np.resize(order, count * batch_size), batch_size)
            return [batches[place] for place in generator.permutation(count)]

        def batch(step: int) -> TokenBatch:
            return self._read(split, epoch(step // count)[step % count])

        return read_ahead(by_step(batch), start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[TokenBatch]:
        """Iterates over a whole split once, short texts first, the same way every
        time. The last batch may be short."""
        numbers = self.order(split, batch_size=batch_size)
        return read_ahead(
            by_step(lambda step: self._read(split, numbers[step]), len(numbers))
        )

    def order(self, split: str, *, batch_size: int) -> list[np.ndarray]:
        """Returns the numbers of the examples, as the split has them, in each batch
        of `examples`."""
        lengths = self._lengths(split)
        return group(lengths, np.arange(len(lengths)), batch_size)

    def _lengths(self, split: str) -> np.ndarray:
        """The bucket that holds each example."""
        lengths = [len(tokens) for tokens in self._split(split)[0].tokens]
        return self._buckets[np.searchsorted(self._buckets, lengths)]

    def _read(self, split: str, numbers: np.ndarray) -> TokenBatch:
        encoded, labels = self._split(split)
        tokens = [encoded.tokens[number] for number in numbers]
        types = [encoded.token_types[number] for number in numbers]
        return pad_tokens(
            Encoded(tokens, types, 0),
            labels[numbers],
            self._buckets,
            padding_token=self.tokenizer.padding_token,
        )

    def _encoded(self, split: str) -> tuple[Encoded, np.ndarray]:
        whole = Encoded([], [], 0)
        labels: list[np.ndarray] = []
        for batch in self._data.examples(split, batch_size=ENCODED_TOGETHER):
            part = self.tokenizer.encode(
                batch.texts, batch.seconds, max_length=self.max_length
            )
            whole = Encoded(*map(operator.add, whole, part))
            labels.append(batch.labels)
        if whole.truncated:
            self._log(
                f"  {split}: {whole.truncated} of {len(whole.tokens)} texts have more"
                f" than {self.max_length} tokens and lose their end"
            )
        return whole, np.concatenate(labels)


def bucket_lengths(max_length: int) -> tuple[int, ...]:
    """The lengths that batches have: 8, 12, 16, 24, 32, 48, ... and ``max_length``.
    Powers of two and one and a half times each: fewer positions are padding than with
    powers only.
    """
    lengths = []
    length = SHORTEST_BUCKET
    while length < max_length:
        lengths += [length, length * 3 // 2]
        length *= 2
    return (*(each for each in lengths if each < max_length), max_length)


def group(lengths: np.ndarray, order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Cuts examples into batches of one length each, as far as that goes, short ones
    first, else in the given order. The rest of one length goes into the first batch of
    the next: all batches but the last are full.
    """
    in_order = order[np.argsort(lengths[order], kind="stable")]
    return [
        in_order[start : start + batch_size]
        for start in range(0, len(in_order), batch_size)
    ]


def pad_tokens(
    encoded: Encoded,
    labels: np.ndarray,
    buckets: Sequence[int] | np.ndarray,
    *,
    padding_token: int,
) -> TokenBatch:
    """Pads texts on the right to the least bucket that holds all of them."""
    lengths = np.array([len(tokens) for tokens in encoded.tokens])
    length = int(buckets[np.searchsorted(buckets, lengths.max())])
    mask = np.arange(length) < lengths[:, None]
    tokens = np.full(mask.shape, padding_token, np.int32)
    types = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(encoded.tokens)
    types[mask] = np.concatenate(encoded.token_types)
    return TokenBatch(tokens, mask, types, np.asarray(labels))


def token_batch(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    seconds: Sequence[str] | None = None,
    *,
    max_length: int,
) -> tuple[TokenBatch, int]:
    """One batch of the given texts, to predict their classes, with -1 for labels;
    and how many texts were truncated."""
    encoded = tokenizer.encode(texts, seconds, max_length=max_length)
    batch = pad_tokens(
        encoded,
        np.full(len(texts), UNLABELLED, np.int32),
        bucket_lengths(max_length),
        padding_token=tokenizer.padding_token,
    )
    return batch, encoded.truncated


def token_deviation(
    counts: np.ndarray, means: np.ndarray, squares: np.ndarray
) -> float:
    """Standard deviation of an entry of the embeddings of tokens: the unit of the noise
    on them. Of each token, ``counts`` has the number, ``means`` and ``squares`` the
    mean of its embedding's entries and of their squares.
    """
    shares = counts / counts.sum()
    variance = float(shares @ squares) - float(shares @ means) ** 2
    if not variance > 0.0:
        raise UserError(
            "all given embeddings of train tokens are one number, so noise would be 0;"
            " give others"
        )
    return math.sqrt(variance)


def learn_words(data: TextData, *, at_least: int = 1) -> WordTokenizer:
    """A tokenizer of the words that occur ``at_least`` so often in the train split,
    the most frequent first."""
    counts: Counter[str] = Counter()
    for batch in data.examples("train", batch_size=256):
        for text in (*batch.texts, *(batch.seconds or ())):
            counts.update(tokenise(text))
    words = [word for word, count in counts.items() if count >= at_least]
    if not words:
        raise UserError(
            f"{option_text('min_count', at_least)} leaves no word; the most frequent"
            f" occurs {max(counts.values())} times"
        )
    return WordTokenizer(sorted(words, key=lambda word: (-counts[word], word)))


def noise_variance(options: TokensConfig, gamma: Any, embedding_std: float) -> Any:
    """Returns the variance of the noise of a strength. The standard deviation of clean
    embeddings is its unit."""
    size = gamma * embedding_std
    return size**2 if options.noise == "deviation" else size


def dropout_keys(options: Any, trial: Trial, key: jax.Array, rows: int) -> Any:
    """Returns a raw key of dropout for each row of a step of training, or None for a
    reading, or without dropout."""
    if not trial.augment or getattr(options, "dropout", 0.0) == 0.0:
        return None
    return jax.random.key_data(jax.random.split(jax.random.fold_in(key, 2), rows))


def as_keys(raw: Any) -> Any:
    """Returns keys of dropout for a model, or None for None."""
    return None if raw is None else jax.random.wrap_key_data(raw)


def draw_noise(
    options: TokensConfig,
    embedding_std: float,
    key: jax.Array,
    shape: tuple[int, ...],
    gamma: Any,
) -> Array | None:
    """Draws noise on embeddings, (batch, n, dim), or None where its strength is known
    to be 0."""
    if isinstance(gamma, float) and gamma == 0.0:
        return None
    return gaussian(key, shape, noise_variance(options, gamma, embedding_std))


def accuracy(reading: Reading, split: str = "") -> float:
    """Returns the share of ``right`` ones, (samples, L + 1), of the last layer."""
    return float(np.mean(reading["right"][:, -1]))


def error_rates(reading: Reading) -> list[float]:
    """Returns the error rate of each layer."""
    return (1.0 - np.mean(reading["right"], axis=0)).tolist()


def validation_row(params: Params, reading: Reading) -> Row:
    """Returns accuracy, and error rates of layers."""
    return {SCORE: accuracy(reading), "error_rates": error_rates(reading)}


def noise_figures(
    options: TokensConfig,
    readings: Mapping[Trial, Reading],
    embedding_std: float,
    floors: Mapping[str, float],
) -> Row:
    """Returns the area under the accuracy over ``test_gammas`` only, to compare runs,
    error rates at the noise of training, and accuracies of floors without noise."""
    areas = {
        float(gamma): accuracy(readings[Trial(float(gamma))])
        for gamma in options.test_gammas
    }
    labels = [str(gamma) for gamma in options.noise_levels]
    return {
        "area": area_under(areas),
        "error_rates": error_rates(readings[Trial(float(options.train_gamma))]),
        "embedding_std": embedding_std,
        "noise": options.noise,
        "floors": {name: dict.fromkeys(labels, floors[name]) for name in floors},
        "floor_shares": dict.fromkeys(floors, 1.0),
    }


def area_under(accuracies: Mapping[float, float]) -> float | None:
    """Returns the area under accuracies by gamma, by trapezoids: over [0, 2] at most
    2, or None for one gamma."""
    if len(accuracies) < 2:
        return None
    gammas = sorted(accuracies)
    return float(np.trapezoid([accuracies[gamma] for gamma in gammas], gammas))


def noise_words(evaluation: Row) -> str:
    """Describes the noise of training, the area under the accuracy, and feasibility."""
    area = ""
    if evaluation["area"] is not None:
        low, *_, high = evaluation["test_gammas"]
        area = f"area {evaluation['area']:.3f} over gamma {low:g} to {high:g}, "
    gamma = evaluation["train_gamma"]
    return f"at gamma {gamma}, {area}{feasibility_words(evaluation)}"
