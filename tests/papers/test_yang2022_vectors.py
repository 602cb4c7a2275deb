"""Vectors of words, read from a file in the format of GloVe or drawn from a hash."""

import hashlib
from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from papers.yang2022.vectors import Embeddings, glove_embeddings
from tests.errors import one_line


@pytest.fixture
def glove(tmp_path):
    def read(content, words):
        path = tmp_path / "glove.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return glove_embeddings(path, words)

    return read


def test_the_vectors_of_a_file_are_read(glove):
    words = ["the", ". . .", "crème", "."]
    embeddings = glove("the 0.1 -0.2 3e-1\n. 1 2 3\n. . . 4 5 6\ncrème 7 8 9\n", words)
    assert embeddings.dim == 3
    expected = np.array([[0.1, -0.2, 0.3], [4, 5, 6], [7, 8, 9], [1, 2, 3]], np.float32)
    assert_array_equal(embeddings(words), expected)
    assert embeddings(words).dtype == np.float32


def test_hashed_vectors_are_those_of_any_run_and_machine():
    vector = Embeddings(4, {}, length=1.0)(["film"])[0]
    stream = hashlib.shake_256(b"film").digest(16)
    uniforms = (np.frombuffer(stream, "<u4") + 0.5) / 2**32
    expected = [NormalDist().inv_cdf(u) / 2 for u in uniforms]
    assert_allclose(vector, expected, rtol=1e-5)
    assert_allclose(vector[:2], [0.4879, -0.1575398], rtol=1e-6)


BAD = [
    ("a 1 2\nb 1\n", "line 2 has 1 numbers"),
    ("a 1 nan\n", "line 1"),
    (b"a 1 2\n\xff 1 2\n", "line 2 is not UTF-8"),
    ("zebra 1 2\n", "has no vector"),
]


@pytest.mark.parametrize(("content", "words"), BAD)
def test_a_damaged_file_is_one_line(glove, content, words):
    with one_line("glove.txt", words):
        glove(content, ["a"])
