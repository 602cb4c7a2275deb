"""Words, vectors, texts and encoders of text runs: changes are noticed, and options
about them are checked."""

import numpy as np
import pytest

from tests.data.pretrained.conftest import WORDS, bert_tensors
from tests.errors import one_line
from tests.train.commands import quiet
from unroll_jax.train import load
from unroll_jax.train.config.options import differences
from unroll_jax.train.core.evaluate import best_checkpoint
from unroll_jax.train.core.loop import train_run
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.loading import open_run
from unroll_jax.train.tasks.text.model import load_inputs
from unroll_jax.train.tasks.text.options import EncoderOptions
from unroll_jax.train.tasks.text.task import make

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


@pytest.mark.slow
def test_a_run_is_not_read_with_words_that_changed_places(
    on_table, write_table, tmp_path
):
    folder, config = tmp_path / "run", on_table(steps=2, method="plain")
    before = load_inputs(config, quiet)
    task = make(config, before)
    train_run(task, make_plan(task), folder, experiment="text-ut", log=quiet)
    (prediction,) = load(folder, log=quiet).predict(["dull"])
    write_table([*ROWS[:-2], ("dull dull", "good"), ("dull plot", "bad")], ROWS[:4])
    after = load_inputs(config, quiet)
    assert after.vocabulary_size == before.vocabulary_size

    def number_of(material, word):
        return material.tokens.tokenizer.encode([word], max_length=8).tokens[0]

    assert number_of(after, "dull") == number_of(before, "fine")
    experiment, edited, plan = open_run(folder, log=quiet)
    with one_line(
        r"was trained with another configuration: .*found\.tokenizer_checksum was"
    ):
        best_checkpoint(edited, plan, folder, experiment=experiment, log=quiet)
    (again,) = load(folder, log=quiet).predict(["dull"])  # knows words as they were
    np.testing.assert_array_equal(again.probabilities, prediction.probabilities)


def changed(actual, expected):
    return {line.split()[0] for line in differences(expected, actual)}


def test_figures_tell_edited_texts_and_labels_of_the_same_count_and_words(
    on_table, write_table
):
    config = on_table()
    fingerprint = load_inputs(config, quiet).fingerprint()
    assert load_inputs(config, quiet).fingerprint() == fingerprint
    write_table([("a fine film", "bad"), ("a dull film", "good"), *ROWS[2:]], ROWS[:4])
    assert changed(load_inputs(config, quiet).fingerprint(), fingerprint) == {
        "texts_checksums.train"
    }
    write_table(ROWS, [("film a fine", "good"), *ROWS[1:4]])
    expected = {"texts_checksums.validation", "texts_checksums.test"}
    assert changed(load_inputs(config, quiet).fingerprint(), fingerprint) == expected


LAYER = "bert.encoder.layer.1.output.dense.bias"
OTHER = {
    "a layer": (
        {"tensors": bert_tensors() | {LAYER: np.zeros(8, np.float32)}},
        "weights_checksum",
    ),
    "the head": (
        {
            "tensors": bert_tensors()
            | {"bert.pooler.dense.bias": np.zeros(8, np.float32)}
        },
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
    fingerprint = load_inputs(config, quiet).fingerprint()
    folder.rename(folder.with_name("before"))
    write_folder(**other)
    assert changed(load_inputs(config, quiet).fingerprint(), fingerprint) == {name}


def test_rare_words_are_unknown(on_table):
    for count, words in (
        (1, {"a", "fine", "film", "dull", "plot"}),
        (2, {"a", "fine", "film", "dull"}),
    ):
        assert (
            set(
                load_inputs(
                    on_table(min_count=count), quiet
                ).tokens.tokenizer.vocabulary[3:]
            )
            == words
        )


def test_options_that_an_encoder_lacks_are_one_line(task_of, write_folder):
    with one_line("model.num_layers=2 has no"):
        task_of("text-encoder", model=EncoderOptions(pretrained="x", num_layers=2))
    with one_line("min_count=5 has no effect"):
        task_of("text-encoder", model=EncoderOptions(pretrained="x"), min_count=5)
    with one_line(
        r"max_length=64 does not fit the tokenizer: max_length must be in \[3, 16\]"
    ):
        task_of(
            "text-encoder",
            model=EncoderOptions(pretrained=str(write_folder())),
            max_length=64,
        )
