"""Words: the tokenizer, pairs of texts, and the vectors of words."""

import hashlib
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from unroll_jax.train.data.words import Embeddings, WordTokenizer, embedding_table, glove_embeddings, tokenise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", ["do", "n't", "stop"]),
        ("you've he's it’s", ["you", "'ve", "he", "'s", "it", "'s"]),
        ("you 've ca n't", ["you", "'ve", "ca", "n't"]),
        ("end.The next", ["end", ".", "the", "next"]),
        ("U.S. 3.5 1,000", ["u.s.", "3.5", "1,000"]),
        ("one<br /><br/>two<BR>three", ["one", "two", "three"]),
        ("well-made (k-19)", ["well-made", "(", "k-19", ")"]),
        ("-LRB- director\\/writer -rrb-", ["-lrb-", "director", "/", "writer", "-rrb-"]),
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
    encoded = words.encode([pair[0]], [pair[1]], max_length=max_length)
    joined = [*first.split(), "<separator>", *second.split()]
    assert [words.vocabulary[token] for token in encoded.tokens[0]] == joined
    assert encoded.token_types[0].tolist() == [0] * (len(first.split()) + 1) + [1] * len(second.split())
    assert encoded.truncated == truncated


def test_the_embedding_table_has_the_vector_of_every_word_and_none_for_padding(tmp_path):
    (tmp_path / "glove.txt").write_text("fine 1 2\ndull 3 4\n")
    words = WordTokenizer(["dull", "other"])
    table = embedding_table(words, glove_embeddings(tmp_path / "glove.txt", words.vocabulary))
    assert (table.shape, table.dtype) == ((5, 2), np.float32)
    np.testing.assert_array_equal(table[0], 0.0)
    np.testing.assert_array_equal(table[3], [3.0, 4.0])
    hashed = Embeddings(2, {}, length=1.0)
    np.testing.assert_array_equal(embedding_table(words, hashed)[4], hashed(["other"])[0])


GLOVE = "the 0.1 -0.2 3e-1\n. 1 2 3\n. . . 4 5 6\ncrème 7 8 9\n"


@pytest.fixture
def glove(tmp_path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "glove.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_the_vectors_of_a_file_are_read(glove):
    embeddings = glove_embeddings(glove(GLOVE), {"the", ".", ". . .", "crème"})
    assert embeddings.dim == 3
    expected = np.array([[0.1, -0.2, 0.3], [4, 5, 6], [7, 8, 9], [1, 2, 3]], np.float32)
    np.testing.assert_array_equal(embeddings(["the", ". . .", "crème", "."]), expected)
    assert embeddings(["the"]).dtype == np.float32


def test_a_word_the_file_lacks_has_a_vector_of_the_length_of_the_others(glove):
    embeddings = glove_embeddings(glove("a 3 0 0 4\nb 0 5 0 0\n"), ["a", "b", "zebra"])
    assert embeddings.covers("a")
    assert not embeddings.covers("zebra")
    np.testing.assert_allclose(embeddings(["zebra"]), 5 * Embeddings(4, {}, length=1.0)(["zebra"]), rtol=1e-6)


def test_hashed_vectors_are_those_of_any_run_and_machine():
    vector = Embeddings(4, {}, length=1.0)(["film"])[0]
    np.testing.assert_allclose(vector, [0.4879, -0.1575398, -0.06851278, -0.08043907], rtol=1e-6)
    stream = hashlib.shake_256(b"film").digest(16)
    uniforms = [(int.from_bytes(stream[at : at + 4], "little") + 0.5) / 2**32 for at in range(0, 16, 4)]
    np.testing.assert_allclose(vector, [NormalDist().inv_cdf(u) / 2 for u in uniforms], rtol=1e-5)
    np.testing.assert_array_equal(vector, Embeddings(4, {}, length=1.0)(["a", "film"])[1])


@pytest.mark.data
def test_a_real_file_covers_most_of_a_sentence(real_data):
    words = tokenise("They don't like long, boring speeches of the president.")
    embeddings = glove_embeddings(real_data / "glove/glove.6B.50d.subset.txt", words)
    assert embeddings.dim == 50
    assert np.mean([embeddings.covers(word) for word in words]) > 0.6
    np.testing.assert_allclose(embeddings(["the"])[0, :2], [0.418, 0.24968])
