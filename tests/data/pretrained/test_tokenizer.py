"""Texts as tokens: cut, counted and padded, by a tokenizer that fits the weights."""

import json

import numpy as np
import pytest

from tests.data.pretrained.conftest import WORDS, word_tokenizer
from tests.errors import assert_fails
from unroll_jax.models import EncoderConfig
from unroll_jax.train.data.pretrained.encoders import EncoderTokenizer, load_tokenizer
from unroll_jax.train.data.tokens import token_batch

CONFIG = EncoderConfig(20, 8, 2, 2, 12, max_positions=8)
CLS, SEP = 2, 3


@pytest.fixture
def tokenizer():
    return EncoderTokenizer(word_tokenizer(WORDS), CONFIG)


def numbers(text):
    return [WORDS.index(word) for word in text.split()]


def test_texts_become_tokens_as_long_as_they_are(tokenizer):
    encoded = tokenizer.encode(["a good film", "bad"])
    assert [each.tolist() for each in encoded.tokens] == [
        [CLS, *numbers("a good film"), SEP],
        [CLS, *numbers("bad"), SEP],
    ]
    assert encoded.tokens[0].dtype == np.int32
    assert encoded.truncated == 0


def test_pairs_have_two_kinds_of_token_where_the_encoder_knows_them(tokenizer):
    encoded = tokenizer.encode(["a film"], ["good"])
    assert encoded.tokens[0].tolist() == [CLS, *numbers("a film"), SEP, *numbers("good"), SEP]
    assert encoded.token_types[0].tolist() == [0, 0, 0, 0, 1, 1]
    single = EncoderTokenizer(word_tokenizer(WORDS), EncoderConfig(20, 8, 2, 2, 12, 8, token_types=0))
    assert single.encode(["a film"], ["good"]).token_types[0].tolist() == [0] * 6


def test_texts_that_are_too_long_lose_their_end_and_are_counted(tokenizer):
    encoded = tokenizer.encode(["a film that is long and never ends", "bad", "a good film that never ends"])
    assert encoded.tokens[0].tolist() == [CLS, *numbers("a film that is long and"), SEP]
    assert [len(each) for each in encoded.tokens] == [8, 3, 8]
    assert encoded.truncated == 1
    assert [len(each) for each in tokenizer.encode(["a good film", "bad"], max_length=4).tokens] == [4, 3]
    # What one call allows is not left over for the next.
    assert len(tokenizer.encode(["a good film"]).tokens[0]) == 5


def test_of_pairs_that_are_too_long_the_longer_text_loses_its_end(tokenizer):
    encoded = tokenizer.encode(["a film that is long and never ends"], ["good"])
    assert encoded.tokens[0].tolist() == [CLS, *numbers("a film that is"), SEP, *numbers("good"), SEP]
    assert encoded.truncated == 1


def test_batches_are_padded_with_the_encoders_own_token(tokenizer):
    batch, truncated = token_batch(tokenizer, ["a good film", "bad"], max_length=8)
    rest = [0] * 3
    assert batch.tokens.tolist() == [
        [CLS, *numbers("a good film"), SEP, *rest],
        [CLS, *numbers("bad"), SEP, 0, 0, *rest],
    ]
    assert batch.mask.sum(axis=1).tolist() == [5, 3]
    assert truncated == 0
    roberta = EncoderTokenizer(
        word_tokenizer(WORDS), EncoderConfig(20, 8, 2, 2, 12, 8, position_offset=2, padding_token=1)
    )
    assert token_batch(roberta, ["bad"], max_length=8)[0].tokens[0, 3:].tolist() == [1] * 5


@pytest.mark.parametrize(
    ("seconds", "max_length", "message"),
    [
        (None, 2, r"in \[3, 8\], as 2 tokens are added to each text .*got 2"),
        (None, 9, r"in \[3, 8\].*got 9"),
        (["good"], 4, r"in \[5, 8\], as 3 tokens are added to each pair .*got 4"),
    ],
)
def test_a_length_that_cannot_be_is_refused(tokenizer, seconds, max_length, message):
    with pytest.raises(ValueError, match=f"max_length must be {message}"):
        tokenizer.encode(["bad"], seconds, max_length=max_length)


ROBERTA = EncoderConfig(20, 8, 2, 2, 12, 8, position_offset=2, padding_token=1)


@pytest.mark.parametrize("name", ["[PAD]", "<pad>", "<filler>"])
def test_the_padding_token_goes_by_its_usual_names_or_its_own(tmp_path, name):
    tokenizer = word_tokenizer([name, *WORDS[1:]])
    tokenizer.enable_padding(pad_token=name) if name == "<filler>" else tokenizer.no_padding()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path, CONFIG).padding_token == 0
    assert_fails(lambda folder: load_tokenizer(folder, ROBERTA), tmp_path, f"its padding token {name!r} has number 0")


def test_a_tokenizer_without_a_padding_token_is_given_the_encoders(tmp_path):
    tokenizer = word_tokenizer(["zero", *WORDS[1:]])
    tokenizer.enable_padding(pad_token="[PAD]")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path, ROBERTA).padding_token == 1


def no_special(contents):
    contents["post_processor"]["special_tokens"] = {}


def special_beyond(contents):
    contents["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [99]


def no_unknown(contents):
    contents["model"]["unk_token"] = "[NONE]"


def filling_memory(place):
    """A number of a token, or a length of padding, for which the package would make 8 GiB of tables."""

    def spoil(contents):
        if place == "vocabulary":
            contents["model"]["vocab"]["never"] = 2**31
        elif place == "added":
            contents["added_tokens"] = [{"id": 2**31, "content": "[MORE]", "special": True}]
        else:
            contents["padding"]["strategy"] = {"Fixed": 2**31}

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        *((filling_memory(place), ["tokenizer.json", "2147483648"]) for place in ("vocabulary", "added", "padding")),
        (special_beyond, ["1 tokens, as '[SEP]' with number 99, have no row in the embedding table of 20"]),
        (no_unknown, ["cannot be used as a tokenizer (WordLevel error: Missing [UNK] token"]),
        (no_special, ["cannot be used as a tokenizer (no entry found for key); copy it again"]),
    ],
)
def test_a_tokenizer_that_fails_over_some_text_is_refused_when_it_is_read(tmp_path, spoil, words):
    contents = json.loads(word_tokenizer(WORDS).to_str())
    spoil(contents)
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert_fails(lambda folder: load_tokenizer(folder, CONFIG), tmp_path, *words)
