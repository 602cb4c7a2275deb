"""Words, vectors, texts and encoders of text runs: changes are noticed."""

import numpy as np
import pytest

from tests.data.pretrained.conftest import WORDS, bert_tensors
from tests.train.commands import quiet
from unroll_jax.train.config.options import differences
from unroll_jax.train.tasks.text.model import load_inputs
from unroll_jax.train.tasks.text.options import EncoderOptions

# "fine" comes before "dull" by number, as it is more frequent by one.
ROWS = [("a fine film", "good"), ("a dull film", "bad")] * 12 + [
    ("fine fine", "good"),
    ("dull plot", "bad"),
]


@pytest.fixture
def on_table(small, write_table):
    return lambda experiment="text-ut", **fields: small(
        experiment, **write_table(ROWS), **fields
    )


def fingerprint(config):
    return load_inputs(config, quiet).fingerprint()


def changed(actual, expected):
    return {line.split()[0] for line in differences(expected, actual)}


def test_figures_tell_edited_texts_and_labels(on_table, write_table):
    config = on_table()
    before = fingerprint(config)
    assert fingerprint(config) == before
    write_table([("a fine film", "bad"), ("a dull film", "good"), *ROWS[2:]], ROWS[:4])
    assert changed(fingerprint(config), before) == {"texts_checksums.train"}
    write_table(ROWS, [("film a fine", "good"), *ROWS[1:4]])
    expected = {"texts_checksums.validation", "texts_checksums.test"}
    assert changed(fingerprint(config), before) == expected


LAYER = "bert.encoder.layer.1.output.dense.bias"
OTHER = {
    "a layer": (
        {"tensors": bert_tensors() | {LAYER: np.zeros(8, np.float32)}},
        "weights_checksum",
    ),
    "the tokenizer": (
        {"words": [*WORDS[:4], *reversed(WORDS[4:])]},
        "tokenizer_checksum",
    ),
}


@pytest.mark.parametrize(("other", "name"), OTHER.values(), ids=OTHER)
def test_figures_tell_another_encoder(on_table, write_folder, other, name):
    folder = write_folder()
    config = on_table("text-encoder", model=EncoderOptions(pretrained=str(folder)))
    before = fingerprint(config)
    folder.rename(folder.with_name("before"))
    write_folder(**other)
    assert changed(fingerprint(config), before) == {name}


def test_rare_words_are_unknown(on_table):
    for count, words in ((1, "a fine film dull plot"), (2, "a fine film dull")):
        tokens = load_inputs(on_table(min_count=count), quiet).tokens
        assert set(tokens.tokenizer.vocabulary[3:]) == set(words.split())
