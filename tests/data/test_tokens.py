"""Texts as words and as batches of tokens: pairs, truncation, buckets, and batches
by number."""

import itertools

import chex
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.train.commands import quiet
from unroll_jax.train.data.words import WordTokenizer, tokenise
from unroll_jax.train.tasks.text.data import load
from unroll_jax.train.tasks.text.options import TextConfig
from unroll_jax.train.tasks.text.tokens import TokenBatch, TokenData, learn_words

LENGTHS = [3, 5, 8, 9, 14, 20, 30, 40, 70] * 9
SHAPES = {8, 12, 16, 24, 32, 48, 50}  # of texts of at most 50 tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", ["do", "n't", "stop"]),
        ("you've he's it’s", ["you", "'ve", "he", "'s", "it", "'s"]),
        ("U.S. 3.5 1,000", ["u.s.", "3.5", "1,000"]),
        ("one<br /><br/>two<BR>three", ["one", "two", "three"]),
        (
            "-LRB- director\\/writer -rrb-",
            ["-lrb-", "director", "/", "writer", "-rrb-"],
        ),
        ("Crème brûlée...", ["crème", "brûlée", "..."]),
        (" \t\n", []),
    ],
)
def test_texts_are_split_into_the_words_of_the_treebank(text, words):
    assert tokenise(text) == words


@pytest.mark.parametrize(
    ("max_length", "expected", "truncated"),
    [
        (None, "a b c d e f | g h i", 0),
        (9, "a b c d e | g h i", 1),
        (6, "a b c | g h", 1),
        (3, "a | g", 1),
    ],
)
def test_the_longer_text_of_a_pair_loses_its_end(max_length, expected, truncated):
    words = WordTokenizer("abcdefghi")
    texts = ["a b c d e f", "g h i"]
    parts = [part.split() for part in expected.split(" | ")]
    for order in (1, -1):  # the longer text is the first, then the second
        given, wanted = texts[::order], parts[::order]
        encoded = words.encode(given[:1], given[1:], max_length=max_length)
        joined = [*wanted[0], "<separator>", *wanted[1]]
        found = [words.vocabulary[token] for token in encoded.tokens[0]]
        assert found == joined, order
        second = np.arange(len(joined)) > len(wanted[0])
        assert_array_equal(encoded.token_types[0], second, err_msg=f"order {order}")
        assert encoded.truncated == truncated, order


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    lines = [
        " ".join([f"w{number}", *["and"] * (length - 1)])
        for number, length in enumerate(LENGTHS)
    ]
    for name, rows in (("train", lines), ("dev", lines[:12]), ("test", lines[:20])):
        rows = [f"{line}\t{number % 3}" for number, line in enumerate(rows)]
        (root / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return load(TextConfig("table", str(root), str(root / "prepared")), log=quiet)


@pytest.fixture(scope="module")
def data(texts):
    return TokenData(texts, learn_words(texts), max_length=50, log=quiet)


def numbers_of(batch: TokenBatch, data) -> list[int]:
    return [
        int(data.tokenizer.vocabulary[token].removeprefix("w"))
        for token in batch.tokens[:, 0]
    ]


def test_batches_hold_the_texts_as_they_are_and_nothing_else(data, texts):
    for batch in itertools.islice(data.batches("train", batch_size=8, seed=1), 20):
        parts = (batch.tokens, batch.token_types, batch.labels)
        assert {part.dtype for part in parts} == {np.dtype(np.int32)}
        for row, number in enumerate(numbers_of(batch, data)):
            (text,), (label,), _ = texts.read("train", [number])
            words = text.split()[:50]
            expected = np.zeros(batch.tokens.shape[1])
            expected[: len(words)] = list(map(data.tokenizer.vocabulary.index, words))
            assert_array_equal(batch.tokens[row], expected)
            assert_array_equal(batch.mask[row], np.arange(len(expected)) < len(words))
            assert batch.labels[row] == label == number % 3
        assert not batch.token_types.any()


def test_every_epoch_shows_each_text_once_but_a_rest(data):
    batches = data.batches("train", batch_size=8, seed=0)
    assert data.steps_an_epoch("train", batch_size=8) == 10
    epochs = [
        [
            one
            for batch in itertools.islice(batches, 10)
            for one in numbers_of(batch, data)
        ]
        for _ in range(12)
    ]
    assert all(len(set(epoch)) == len(epoch) == 80 for epoch in epochs)
    left = [next(iter({*range(81)} - {*epoch})) for epoch in epochs]
    assert len({LENGTHS[number] for number in left}) > 3, (
        "what is left over does not depend on its length"
    )
    assert len({tuple(epoch) for epoch in epochs}) == 12


def test_batches_have_few_shapes_and_little_padding(data):
    batches = list(itertools.islice(data.batches("train", batch_size=8, seed=0), 10))
    assert {batch.tokens.shape for batch in batches} == {
        (8, length) for length in SHAPES
    }
    tokens = sum(batch.mask.sum() for batch in batches)
    filled = tokens / sum(batch.mask.size for batch in batches)
    assert filled > 0.7 > 0.5 > tokens / (80 * 50), "of one length"
    lengths = [batch.tokens.shape[1] for batch in batches]
    assert lengths != sorted(lengths), "lengths come in random order"


@pytest.mark.parametrize("start", [0, 9])
def test_batches_depend_on_seed_and_step_alone(data, texts, start):
    again = TokenData(texts, data.tokenizer, max_length=50, log=quiet)
    resumed = itertools.islice(
        again.batches("train", batch_size=8, seed=3, start_step=start), 12
    )
    for step, batch in enumerate(resumed, start=start):
        wanted = next(data.batches("train", batch_size=8, seed=3, start_step=step))
        chex.assert_trees_all_equal(batch, wanted)
    first, other = (
        next(data.batches("train", batch_size=8, seed=seed)) for seed in (3, 4)
    )
    assert numbers_of(first, data) != numbers_of(other, data)


def test_a_batch_larger_than_its_split_repeats_texts_evenly(data):
    assert data.steps_an_epoch("validation", batch_size=30) == 1
    batches = data.batches("validation", batch_size=30, seed=0, start_step=5)
    for batch in itertools.islice(batches, 2):
        counts = np.bincount(numbers_of(batch, data), minlength=12)
        assert sorted(counts.tolist()) == [2] * 6 + [3] * 6


def test_examples_are_each_text_once_in_the_order_told(data):
    batches, order = (
        list(data.examples("test", batch_size=8)),
        data.order("test", batch_size=8),
    )
    assert [len(batch.labels) for batch in batches] == [8, 8, 4]
    assert [numbers_of(batch, data) for batch in batches] == [
        numbers.tolist() for numbers in order
    ]
    assert sorted(np.concatenate(order)) == list(range(20))
    lengths = [batch.tokens.shape[1] for batch in batches]
    assert lengths == sorted(lengths)
