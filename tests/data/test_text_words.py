"""The word tokenizer: pairs of texts, and the table of its words' vectors."""

import numpy as np
import pytest

from train.data.text import WordTokenizer, embedding_table, glove_embeddings, hashed_embeddings


@pytest.mark.parametrize(
    ("max_length", "expected", "truncated"),
    [
        (None, "a b c d e f | g h i", 0),
        (10, "a b c d e f | g h i", 0),
        (9, "a b c d e | g h i", 1),
        (8, "a b c d | g h i", 1),
        (7, "a b c | g h i", 1),
        (6, "a b c | g h", 1),
        (3, "a | g", 1),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_pairs_are_joined_and_the_longer_text_loses_its_end_first(max_length, expected, truncated, swapped):
    words = WordTokenizer("abcdefghi")
    pair, (first, second) = ("a b c d e f", "g h i"), expected.split(" | ")
    if swapped:
        pair = pair[::-1]
        if max_length == 6:
            first, second = "a b", "g h i"
        first, second = second, first
    found = words.encode([pair[0]], [pair[1]], max_length=max_length)
    joined = [*first.split(), "<separator>", *second.split()]
    assert [words.vocabulary[token] for token in found.tokens[0]] == joined
    assert found.token_types[0].tolist() == [0] * (len(first.split()) + 1) + [1] * len(second.split())
    assert found.truncated == truncated


def test_the_embedding_table_has_the_vector_of_every_word_and_none_for_padding(tmp_path):
    (tmp_path / "glove.txt").write_text("fine 1 2\ndull 3 4\n")
    words = WordTokenizer(["dull", "other"])
    table = embedding_table(words, glove_embeddings(tmp_path / "glove.txt", words.vocabulary))
    assert (table.shape, table.dtype) == ((5, 2), np.float32)
    np.testing.assert_array_equal(table[0], 0.0)
    np.testing.assert_array_equal(table[3], [3.0, 4.0])
    np.testing.assert_array_equal(embedding_table(words, hashed_embeddings(2))[4], hashed_embeddings(2)(["other"])[0])
