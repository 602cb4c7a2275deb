"""Texts as tokens: cut, counted and padded, by a tokenizer that fits the weights."""

import numpy as np
import pytest

from tests.errors import assert_fails
from tests.pretrained.conftest import WORDS, word_tokenizer
from train.data.text import token_batch
from train.errors import UserError
from train.pretrained import Tokenizer, load_tokenizer
from unroll_jax.models import EncoderConfig

CONFIG = EncoderConfig(20, 8, 2, 2, 12, max_positions=8)
CLS, SEP = 2, 3


@pytest.fixture
def tokenizer():
    return Tokenizer(word_tokenizer(WORDS), CONFIG)


def numbers(text):
    return [WORDS.index(word) for word in text.split()]


def test_texts_become_tokens_as_long_as_they_are(tokenizer):
    found = tokenizer.encode(["a good film", "bad"])
    assert [each.tolist() for each in found.tokens] == [
        [CLS, *numbers("a good film"), SEP],
        [CLS, *numbers("bad"), SEP],
    ]
    assert found.tokens[0].dtype == np.int32
    assert found.truncated == 0


def test_pairs_have_two_kinds_of_token_where_the_encoder_knows_them(tokenizer):
    found = tokenizer.encode(["a film"], ["good"])
    assert found.tokens[0].tolist() == [CLS, *numbers("a film"), SEP, *numbers("good"), SEP]
    assert found.token_types[0].tolist() == [0, 0, 0, 0, 1, 1]
    single = Tokenizer(word_tokenizer(WORDS), EncoderConfig(20, 8, 2, 2, 12, 8, token_types=0))
    assert single.encode(["a film"], ["good"]).token_types[0].tolist() == [0] * 6


def test_texts_that_are_too_long_lose_their_end_and_are_counted(tokenizer):
    found = tokenizer.encode(["a film that is long and never ends", "bad", "a good film that never ends"])
    assert found.tokens[0].tolist() == [CLS, *numbers("a film that is long and"), SEP]
    assert [len(each) for each in found.tokens] == [8, 3, 8]
    assert found.truncated == 1
    assert [len(each) for each in tokenizer.encode(["a good film", "bad"], max_length=4).tokens] == [4, 3]
    # What one call allows is not left over for the next.
    assert len(tokenizer.encode(["a good film"]).tokens[0]) == 5


def test_of_pairs_that_are_too_long_the_longer_text_loses_its_end(tokenizer):
    found = tokenizer.encode(["a film that is long and never ends"], ["good"])
    assert found.tokens[0].tolist() == [CLS, *numbers("a film that is"), SEP, *numbers("good"), SEP]
    assert found.truncated == 1


def test_batches_are_padded_with_the_encoders_own_token(tokenizer):
    batch, truncated = token_batch(tokenizer, ["a good film", "bad"], max_length=8)
    rest = [0] * 3
    assert batch.tokens.tolist() == [
        [CLS, *numbers("a good film"), SEP, *rest],
        [CLS, *numbers("bad"), SEP, 0, 0, *rest],
    ]
    assert batch.mask.sum(axis=1).tolist() == [5, 3]
    assert truncated == 0
    roberta = Tokenizer(word_tokenizer(WORDS), EncoderConfig(20, 8, 2, 2, 12, 8, position_offset=2, padding_token=1))
    assert token_batch(roberta, ["bad"], max_length=8)[0].tokens[0, 3:].tolist() == [1] * 5


def test_empty_texts_are_counted_and_numbered(tokenizer):
    with pytest.raises(UserError, match=r"2 of 3 texts are empty, number 2, 3; give each at least a word"):
        tokenizer.encode(["bad", "", " \n"])
    with pytest.raises(UserError, match="1 of 1 texts are empty"):
        tokenizer.encode(["bad"], [""])


@pytest.mark.parametrize("max_length", [2, 9])
def test_a_length_that_cannot_be_is_refused(tokenizer, max_length):
    with pytest.raises(ValueError, match=rf"max_length must be in \(2, 8\].*got {max_length}"):
        tokenizer.encode(["bad"], max_length=max_length)


def test_pairs_of_different_number_are_refused(tokenizer):
    with pytest.raises(ValueError, match="seconds must be as many as texts, 2, got 1"):
        tokenizer.encode(["bad", "good"], ["film"])


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tmp_path):
    words = [*WORDS, *(f"more{number}" for number in range(9))]
    word_tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    number = len(words) - 1
    problem = f"{number - 19} of its tokens, as 'more8' with number {number}, have no row in the embedding table of 20"
    assert_fails(lambda folder: load_tokenizer(folder, CONFIG), tmp_path, "does not fit the vocabulary", problem)


def test_added_tokens_count_as_tokens(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.add_special_tokens([f"[extra{number}]" for number in range(20)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert_fails(lambda folder: load_tokenizer(folder, CONFIG), tmp_path, "'[extra19]'")
