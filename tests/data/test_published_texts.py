"""The published texts themselves: how many there are, and the batches they make."""

import itertools

import numpy as np
import pytest

from tests.data.test_text import everything
from unroll_jax.train.config.data import TextConfig
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.text import load
from unroll_jax.train.data.tokens import TokenData
from unroll_jax.train.data.words import learn_words


@pytest.mark.data
def test_the_published_files_have_their_known_counts(real_data, tmp_path):
    lines: list[str] = []
    counts = {}
    places = {"imdb": "imdb/aclImdb_labelled.tar.gz", "sst2": "glue/SST-2", "mnli": "mnli"}
    for name, place in places.items():
        data = load(TextConfig(name, str(real_data / place), str(tmp_path)), log=lines.append)
        for split in SPLITS:
            counts[name, split] = np.bincount(everything(data, split).labels).tolist()
    assert counts == {
        ("imdb", "train"): [11_250, 11_250],
        ("imdb", "validation"): [1_250, 1_250],
        ("imdb", "test"): [12_500, 12_500],
        ("sst2", "train"): [29_780, 37_569],
        ("sst2", "validation"): [428, 444],
        ("sst2", "test"): [912, 909],
        ("mnli", "train"): [895, 896, 909],
        ("mnli", "validation"): [100, 99, 101],
        ("mnli", "test"): [2_681, 2_353, 2_435],
    }
    assert "  1 text(s) occur in both train and test; they are kept, as in the original" in lines


@pytest.mark.data
def test_real_pairs_become_batches_of_few_shapes(real_data, tmp_path):
    read = load(TextConfig("mnli", str(real_data / "mnli"), str(tmp_path)), log=lambda line: None)
    words = learn_words(read, at_least=2)
    data = TokenData(read, words, max_length=64, log=lambda line: None)
    batches = list(itertools.islice(data.batches("train", batch_size=32, seed=0), 84))
    assert {batch.tokens.shape[1] for batch in batches} <= {8, 12, 16, 24, 32, 48, 64}
    assert sum(batch.mask.sum() for batch in batches) > 0.6 * sum(batch.mask.size for batch in batches)
    for batch in batches:
        separators = (batch.tokens == 2).sum(axis=1)
        np.testing.assert_array_equal(separators, 1)
        assert (batch.token_types.sum(axis=1) >= 1).all()
