"""What every layer of a run says of texts at hand, and texts that cannot be classified."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from train.cli import main
from train.data.text import TextConfig
from train.errors import UserError
from train.runs import best_checkpoint, run_one
from train.text.models import build_model
from train.text.predict import predict, read_texts

TEXTS = ["the plot was dull .", "although the music seemed fresh , the plot was not clever .", "the cast felt tender ."]
PAIRS = [("a dog runs", "an animal moves", 0), ("a dog runs", "the dog sleeps", 1), ("two men talk", "men speak", 0)]


def quiet(line):
    pass


@pytest.fixture
def trained(small, tmp_path):
    """The folder of a run that was trained and not evaluated."""

    def train(experiment, **fields):
        run_one(small(experiment, **fields), tmp_path / "run", experiment=experiment, evaluated=False, log=quiet)
        return tmp_path / "run"

    return train


def test_predictions_are_the_networks_whatever_the_texts_beside_them(trained, experiment):
    folder, log = trained(experiment), []
    found = predict(folder, TEXTS, log=log.append)
    best = best_checkpoint(folder, log=quiet)
    tokenizer, module = best.data.tokens.tokenizer, build_model(best.config, best.data).module
    (alone,) = predict(folder, TEXTS[:1], log=quiet)
    np.testing.assert_allclose(found[0].probabilities, alone.probabilities, rtol=1e-4)
    for text, prediction, told in zip(TEXTS, found, log[-3:], strict=True):
        assert prediction.probabilities.shape == (3, 2)
        tokens = jnp.asarray(tokenizer.encode([text], max_length=8).tokens[0])[None]
        logits = module.apply(best.state.params, tokens, jnp.ones(tokens.shape, bool))
        np.testing.assert_allclose(prediction.probabilities, softmax(np.asarray(logits)[:, 0], axis=-1), rtol=1e-4)
        assert prediction.label == ("negative", "positive")[int(np.argmax(logits[-1, 0]))]
        assert prediction.label in told
        assert len(told.splitlines()) == 3 + 3 + 1  # a title, the head and its rule, a row for each layer, the note


def test_noise_changes_predictions_and_is_that_of_its_seed(trained):
    folder = trained("text-ut")
    clean, one, again, other = (
        predict(folder, TEXTS, gamma=gamma, seed=seed, log=quiet)[0].probabilities
        for gamma, seed in ((0.0, 0), (0.5, 0), (0.5, 0), (0.5, 1))
    )
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, clean)
    assert not np.allclose(one, other)
    shown = predict(folder, TEXTS[:1], gamma=0.5, seed=0, log=quiet)[0].probabilities
    np.testing.assert_allclose(shown, one, rtol=1e-5)  # nor does it depend on the texts beside
    first, second = (found.probabilities for found in predict(folder, [TEXTS[0]] * 2, gamma=0.5, log=quiet))
    assert not np.allclose(first, second), "every text has noise of its own"


def test_long_texts_are_truncated_and_counted(trained):
    log = []
    long = " ".join(["the plot was dull ."] * 10)
    predict(trained("text-ut"), [TEXTS[0], long], log=log.append)
    assert "1 of 2 texts are longer than 8 tokens; their ends are left out" in log


def test_pairs_take_their_second_text(trained, tmp_path):
    root = tmp_path / "pairs"
    root.mkdir()
    for name in ("train", "dev", "test"):
        rows = [f"{first}\t{second}\t{label}" for first, second, label in PAIRS]
        (root / f"{name}.tsv").write_text("\n".join(["text\tother\tlabel", *rows]) + "\n")
    data = TextConfig("table", str(root), str(tmp_path / "prepared"), second_column="other")
    sizes = {"train_examples": None, "validation_examples": None, "test_examples": None, "batch_size": 3}
    folder = trained("text-ut", data=data, **sizes)
    (found,) = predict(folder, ["a dog runs"], ["an animal moves"], log=quiet)
    assert found.label in ("0", "1")
    with pytest.raises(UserError, match="classifies pairs of texts; give the second with --second"):
        predict(folder, ["a dog runs"], log=quiet)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "predict needs texts; give --text, or a --file of lines"),
        (["fine", " "], {}, "1 texts without a word, number 2"),
        (["fine", "\udcff"], {}, "1 texts that are no valid UTF-8, number 2"),
        (["fine"], {"gamma": -1.0}, "--gamma must be finite and at least 0, got -1.0"),
        (["fine"], {"gamma": float("nan")}, "--gamma must be finite"),
        (["fine"], {"seconds": ["other"]}, "classifies single texts; leave out --second"),
        (["fine"], {"seconds": ["other", "third"]}, "--second must be as many as --text, 1, got 2"),
    ],
    ids=["none", "empty", "invalid", "gamma", "nan", "second", "seconds"],
)
def test_texts_that_cannot_be_classified_are_named(trained, texts, options, message):
    with pytest.raises(UserError, match=message):
        predict(trained("text-ut"), texts, options.pop("seconds", None), log=quiet, **options)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\ntwo\n", (["one", "two"], None)),
        ("caf\u00e9\n".encode(), (["caf\u00e9"], None)),
        (b"\xef\xbb\xbfone\r\ntwo\r\n", (["one", "two"], None)),
        (b"one\ta\ntwo\tb", (["one", "two"], ["a", "b"])),
        (b"one\n\ntwo\n", "has empty lines, the first is line 2"),
        (b"", "has empty lines, the first is line 1"),
        (b"one\ta\ntwo\n", "line 2 has 0 tabs"),
        (b"caf\xe9\n", r"lines.txt is not UTF-8: byte 0xe9 in line 1; convert the file to UTF-8"),
        (None, "cannot be read"),
    ],
    ids=["lines", "accents", "mark", "pairs", "empty line", "empty", "mixed", "latin", "missing"],
)
def test_files_are_read_a_text_a_line(tmp_path, content, expected):
    path = tmp_path / "lines.txt"
    if content is not None:
        path.write_bytes(content)
    if isinstance(expected, tuple):
        assert read_texts((), (), path) == expected
        return
    with pytest.raises(UserError, match=expected):
        read_texts((), (), path)


def test_the_command_line_predicts_a_file_of_lines(trained, tmp_path, capsys):
    folder = trained("text-ut")
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS))
    assert main(["predict", str(folder), "--file", str(tmp_path / "lines.txt"), "--gamma", "0.5"]) == 0
    out = capsys.readouterr().out
    assert [f"{number}. " in out for number in range(1, 5)] == [True, True, True, False]
    assert main(["predict", str(folder), "--text", "fine", "--file", "lines.txt"]) == 2
    assert "--file takes the place of --text" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "nowhere"), "--text", "fine"]) == 2
    assert "is no run folder" in capsys.readouterr().err
