"""Texts as tokens: cut, counted and padded, by a tokenizer that fits the weights."""

import json

import numpy as np
import pytest

from tests.data.pretrained.conftest import WORDS, word_tokenizer
from tests.errors import assert_fails
from unroll_jax.models import EncoderConfig
from unroll_jax.train.data.pretrained.encoders import EncoderTokenizer, load_tokenizer
from unroll_jax.train.tasks.text.tokens import token_batch

CONFIG = EncoderConfig(20, 8, 2, 2, 12, max_positions=8)
ROBERTA = EncoderConfig(20, 8, 2, 2, 12, 8, position_offset=2, padding_token=1)


@pytest.fixture
def tokenizer():
    return EncoderTokenizer(word_tokenizer(WORDS), CONFIG)


@pytest.mark.parametrize(
    ("texts", "max_length", "expected", "truncated"),
    [
        (["a good film"], None, "[CLS] a good film [SEP]", 0),
        (
            ["a film that is long and never ends"],
            None,
            "[CLS] a film that is long and [SEP]",
            1,
        ),
        (["a good film"], 4, "[CLS] a good [SEP]", 1),
        (
            ["a film that is long and never ends", "good"],
            None,
            "[CLS] a film that is [SEP] good [SEP]",
            1,
        ),
    ],
)
def test_texts_and_pairs_become_tokens_that_fit(
    tokenizer, texts, max_length, expected, truncated
):
    firsts, seconds = [texts[0], "bad"], [*texts[1:], "bad"] if texts[1:] else None
    for _ in range(2):
        encoded = tokenizer.encode(firsts, seconds, max_length=max_length)
        assert [WORDS[token] for token in encoded.tokens[0]] == expected.split()
        assert (encoded.tokens[0].dtype, encoded.truncated) == (np.int32, truncated)
        assert len(encoded.tokens[1]) == (5 if seconds else 3)
        assert len(tokenizer.encode(["a good film"]).tokens[0]) == 5, (
            "a call leaves no limit for the next"
        )


@pytest.mark.parametrize("padding", [0, 1])
def test_batches_are_padded_with_the_encoders_token(padding):
    tokenizer = EncoderTokenizer(word_tokenizer(WORDS), ROBERTA if padding else CONFIG)
    batch, truncated = token_batch(tokenizer, ["a good film", "bad"], max_length=8)
    expected = [WORDS.index(word) for word in ("[CLS]", "bad", "[SEP]")]
    assert batch.tokens[1].tolist() == [*expected, *[padding] * 5]
    assert (batch.tokens[0, 5:].tolist(), batch.mask.sum(axis=1).tolist()) == (
        [padding] * 3,
        [5, 3],
    )
    assert (batch.labels.tolist(), truncated) == ([-1, -1], 0)


@pytest.mark.parametrize("name", ["<pad>", "<filler>"])
def test_the_padding_token_goes_by_its_names_or_its_own(tmp_path, name):
    tokenizer = word_tokenizer([name, *WORDS[1:]])
    tokenizer.no_padding()
    if name == "<filler>":
        tokenizer.enable_padding(pad_token=name)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path, CONFIG).padding_token == 0
    read = lambda folder: load_tokenizer(folder, ROBERTA)
    assert_fails(read, tmp_path, f"{name!r} has number 0, ")


# By the place of a value in tokenizer.json: a bad one, and words of its error. Of a number
# of a token, or a length of padding, the package would make 8 GiB of tables.
SPOILED = {
    "post_processor.special_tokens.[SEP].ids": (
        [99],
        ["'[SEP]' has number 99, config.json has a vocabulary of 20"],
    ),
    "model.vocab.never": (2**31, ["tokenizer.json", "2147483648"]),
    "padding.strategy": ({"Fixed": 2**31}, ["tokenizer.json", "2147483648"]),
    "model.unk_token": (
        "[NONE]",
        ["cannot be used as a tokenizer (WordLevel error: Missing [UNK] token"],
    ),
}


@pytest.mark.parametrize("place", SPOILED)
def test_a_tokenizer_that_fails_over_texts_is_refused(tmp_path, place):
    contents = part = json.loads(word_tokenizer(WORDS).to_str())
    value, words = SPOILED[place]
    *names, last = place.split(".")
    for name in names:
        part = part[name]
    part[last] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert_fails(lambda folder: load_tokenizer(folder, CONFIG), tmp_path, *words)
