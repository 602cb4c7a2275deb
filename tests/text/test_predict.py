"""Predictions of every layer of a run for given texts, and texts that cannot be
classified."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from tests.errors import one_line
from tests.train.commands import quiet, refused
from unroll_jax.train import Model
from unroll_jax.train.__main__ import main
from unroll_jax.train.predict import read_texts
from unroll_jax.train.tasks.text.model import build_module, from_json

TEXTS = [
    "the plot was dull .",
    "although the music seemed fresh , the plot was not clever .",
    "the cast felt tender .",
]
pytestmark = pytest.mark.xdist_group("text-runs")


@pytest.fixture
def model(built):
    """A model as it is drawn."""
    return Model(*built("text-ut"), {})


@pytest.mark.slow
def test_predictions_are_the_networks_whatever_is_beside(model):
    log = []
    predictions = model.predict(TEXTS, log=log.append)
    assert log == ["1 of 3 texts are longer than 8 tokens; their ends are left out"]
    (alone,) = model.predict(TEXTS[:1])
    clean = predictions[0].probabilities
    assert_allclose(clean, alone.probabilities, rtol=1e-4)
    # a batch of 32 texts, 8 tokens of width 8
    key = jax.random.fold_in(jax.random.key(0), 0)
    data = from_json(model.task.spec())
    noise = 0.5 * data.embedding_std * jax.random.normal(key, (32, 8, 8))
    tokens = data.spec.tokenizer.encode(TEXTS[:1], None, max_length=8).tokens[0][None]
    logits = jax.jit(build_module(model.config, data).apply)(
        model.params,
        jnp.asarray(tokens),
        jnp.ones(tokens.shape, bool),
        perturbation=noise[:1, : tokens.shape[1]],
    )
    # 32 are one batch, and every text has other noise
    noisy = [each.probabilities for each in model.predict([TEXTS[0]] * 34, gamma=0.5)]
    expected = softmax(logits[:, 0], axis=-1)
    assert_allclose(noisy[0], expected, rtol=1e-4)
    for place in (1, 32, 33):
        assert not np.allclose(noisy[place], noisy[0])
    other = model.predict(TEXTS, gamma=0.5, seed=1, log=quiet)[0].probabilities
    assert not np.allclose(noisy[0], other)


def test_bad_texts_are_one_line(model):
    with one_line("number 41 of the texts has no word"):
        model.predict(["fine"] * 40 + [" "])
    for seconds, words in (
        (["other", "third"], "second must be as many as --text, 1, got 2"),
        (["other"], "classifies single texts; leave out --second"),
    ):
        with one_line(words):
            model.predict(["fine"], seconds=seconds)
    with one_line("predict needs texts; give --text"):
        model.predict([])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", (["one", "two"], None)),
        (b"one\ta\ntwo\tb", (["one", "two"], ["a", "b"])),
        (b"one\ta\ntwo\n", "line 2 has 0 tabs where others have 1"),
        (b"one\n\ntwo\n", "has empty lines, the first is line 2"),
        (b"caf\xe9\n", "is not UTF-8 text .* 0xe9"),
    ],
)
def test_files_have_a_text_a_line(tmp_path, content, expected):
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    with one_line(expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert read_texts((), (), path) == expected


def test_tables_have_texts_in_the_column_of_the_run(tmp_path):
    contents = {
        "a.csv": 'label,review\n1,"one, two"\n0,three\n',
        "a.tsv": "label\treview\n1\tone, two\n0\tthree\n",
        "a.jsonl": '{"review": "one, two"}\n{"review": "three"}\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        texts = read_texts((), (), tmp_path / name, column="review")
        assert texts == (["one, two", "three"], None), name


@pytest.fixture
def run(model, tmp_path, monkeypatch):
    """The folder of a run, of which the drawn model is."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("unroll_jax.train.predict.load", lambda folder: model)
    options = model.task.options
    monkeypatch.setattr("unroll_jax.train.predict._config_of", lambda folder: options)
    return folder


def test_the_command_predicts_a_file_of_lines(
    run, model, tmp_path, capsys, monkeypatch
):
    file, out = tmp_path / "lines.txt", tmp_path / "new" / "out.jsonl"
    file.write_text("\n".join(TEXTS))
    message = refused(capsys, "predict", str(run), "--file", str(file), str(file))
    assert "--file of a run on texts is one file, got 2" in message
    command = ["predict", str(run), "--file", str(file), "--gamma", "0.5", "--out"]
    assert main([*command, str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    for row in rows:
        assert row["label"] == row["classes"][np.argmax(row["probabilities"][-1])]
    assert "out.jsonl is there already" in refused(capsys, *command, str(out))
    for place in (file, run / "config.json"):
        message = refused(capsys, *command, str(place), "--overwrite")
        assert f"{place.name} would replace" in message
    assert file.read_text() == "\n".join(TEXTS)
    params = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), model.params)
    broken = Model(model.task, params, model.card)
    monkeypatch.setattr("unroll_jax.train.predict.load", lambda folder: broken)
    message = refused(capsys, *command, str(tmp_path / "nan.jsonl"))
    assert "not finite for input 1 at --gamma 0.5; pass a lower one" in message
    assert not (tmp_path / "nan.jsonl").exists()
