"""Predictions of every layer of a run for given texts, and texts that cannot be
classified."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from tests.errors import one_line
from tests.train.commands import quiet, refused
from unroll_jax.train import Model, load
from unroll_jax.train.__main__ import main
from unroll_jax.train.predict import read_texts
from unroll_jax.train.tasks.text.model import build_module, from_json

TEXTS = [
    "the plot was dull .",
    "although the music seemed fresh , the plot was not clever .",
    "the cast felt tender .",
]
pytestmark = [pytest.mark.xdist_group("text-runs"), pytest.mark.slow]


@pytest.fixture(scope="module")
def run(finished):
    return finished("text-ut").runs["constrained"]


@pytest.fixture(scope="module")
def model(run):
    return load(run, log=quiet)


def test_predictions_are_the_networks_whatever_the_texts_beside_them(model):
    log = []
    predictions, (alone,) = (
        model.predict(TEXTS, log=log.append),
        model.predict(TEXTS[:1]),
    )
    assert log == ["1 of 3 texts are longer than 8 tokens; their ends are left out"]
    np.testing.assert_allclose(
        predictions[0].probabilities, alone.probabilities, rtol=1e-4
    )
    one, again, other = (
        model.predict(TEXTS, gamma=0.5, seed=seed, log=quiet)[0].probabilities
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, predictions[0].probabilities)
    assert not np.allclose(one, other)
    # a batch of 32 texts, 8 tokens of width 8
    draw = jax.jit(
        lambda: jax.random.normal(jax.random.fold_in(jax.random.key(0), 0), (32, 8, 8))
    )
    data = from_json(model.task.spec())
    strong = 0.5 * data.embedding_std * np.asarray(draw())
    tokens = data.spec.tokenizer.encode(TEXTS[:1], None, max_length=8).tokens[0][None]
    inputs = jnp.asarray(tokens), jnp.ones(tokens.shape, bool)
    noise = jnp.asarray(strong[:1, : tokens.shape[1]])
    logits = jax.jit(build_module(model.config, data).apply)(
        model.params, *inputs, perturbation=noise
    )
    np.testing.assert_allclose(one, softmax(logits[:, 0], axis=-1), rtol=1e-4)
    # 32 are one batch
    noisy = [each.probabilities for each in model.predict([TEXTS[0]] * 34, gamma=0.5)]
    # nor does it depend on the other texts
    np.testing.assert_allclose(noisy[0], one, rtol=1e-5)
    for place in (1, 32, 33):
        assert not np.allclose(noisy[place], noisy[0]), (
            "every text has noise of its own"
        )


def test_bad_texts_are_one_line(model):
    with one_line("number 41 of the texts has no word"):
        model.predict(["fine"] * 40 + [" "])
    with one_line("second must be as many as --text, 1, got 2"):
        model.predict(["fine"], seconds=["other", "third"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", (["one", "two"], None)),
        (b"one\ta\ntwo\tb", (["one", "two"], ["a", "b"])),
        (b"one\n\ntwo\n", "has empty lines, the first is line 2"),
        (b"one\ta\ntwo\n", "line 2 has 0 tabs"),
        (b"caf\xe9\n", "is not UTF-8 text .* 0xe9"),
    ],
)
def test_files_have_a_text_a_line(tmp_path, content, expected):
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    with one_line(expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert read_texts((), (), path) == expected


def test_the_command_predicts_a_file_of_lines(
    run, model, tmp_path, capsys, monkeypatch
):
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS))
    command, out = (
        ["predict", str(run), "--gamma", "0.5"],
        tmp_path / "new" / "out.jsonl",
    )
    lines = ["--file", str(tmp_path / "lines.txt"), "--out", str(out)]
    assert main([*command, *lines]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert all(
        row["label"] == row["classes"][int(np.argmax(row["probabilities"][-1]))]
        for row in rows
    )
    capsys.readouterr()
    for words, message in (
        (lines, "out.jsonl is there already; pass another file, or --overwrite"),
        (
            ["--file", "texts.csv"],
            "--file texts.csv is a table with a header; give a file with a text a line",
        ),
        (
            [*lines[:3], str(tmp_path / "lines.txt"), "--overwrite"],
            "lines.txt would replace",
        ),
        (
            [*lines[:3], f"{command[1]}/config.json", "--overwrite"],
            "config.json would replace",
        ),
    ):
        assert message in refused(capsys, *command, *words)
    nan = [*command[:2], *lines[:2], "--out", str(tmp_path / "nan.jsonl")]
    broken = Model(
        model.task, jax.tree.map(lambda leaf: leaf * np.nan, model.params), model.card
    )
    monkeypatch.setattr("unroll_jax.train.predict.load", lambda folder: broken)
    assert "not finite for text 1 at --gamma 0.5; pass a lower one" in refused(
        capsys, *nan, "--gamma", "0.5"
    )
    assert (tmp_path / "lines.txt").read_text() == "\n".join(TEXTS)
    assert not (tmp_path / "nan.jsonl").exists()
