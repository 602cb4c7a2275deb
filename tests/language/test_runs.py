"""Runs of language models from training to report, and what comes back of them without data."""

import json
import shutil

import jax
import numpy as np
import pytest

from tests.language.conftest import answer_losses
from unroll_jax.train import load
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.answers import Tokens, arrays
from unroll_jax.train.tasks.language_reading import floors

pytestmark = pytest.mark.xdist_group("language")


def quiet(line):
    pass


def test_a_report_says_accuracy_under_noise_at_every_layer_and_what_counting_reaches(finished):
    page = (finished.report / "index.html").read_text()
    words = (
        "plain against constrained training",
        "Token accuracy on the test split",
        "unigram",
        "Layers on the test split, constrained",
        "Acceptance (%): tokens that a layer names as the last",
    )
    assert [word for word in words if word not in page] == []
    summary = json.loads((finished.report / "summary.json").read_text())
    assert set(summary["methods"]) == {"plain", "constrained"}
    assert set(summary["methods"]["plain"]["accuracy"]) == {"0.0", "0.25", "1.0"}
    assert any("token accuracy" in line and "perplexity" in line and "unconstrained" in line for line in finished.log)
    for folder in finished.folders:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["kind"] == "train"]
        assert [len(row["layer_losses"]) for row in steps] == [4] * 4


def test_answers_are_judged_by_a_run_without_its_data_as_by_the_reference(finished, monkeypatch, wide):
    def refuse(*arguments, **options):
        raise AssertionError("data are read")

    monkeypatch.setattr("unroll_jax.train.data.instructions.load", refuse)
    model = load(finished.folders[1])
    prompts, answers = ["Say bado.", [{"role": "user", "content": "Add 1 and 2."}]], ["bado", "3"]
    predictions = model.predict(prompts, answers=answers)
    decoder, config = wide(jax.device_get(model.params["decoder"])), model.task.model.source.config
    texts = ("<|user|>Say bado.<|end|><|assistant|>bado<|end|>", "<|user|>Add 1 and 2.<|end|><|assistant|>3<|end|>")
    tokenizer = model.task.data.source.tokenizer
    for answer, text, one in zip(answers, texts, predictions, strict=True):
        (tokens,) = tokenizer.encode([text])
        losses = answer_losses(decoder, config, tokens, len(tokens) - len(answer) - 1)
        np.testing.assert_allclose(one.log_probabilities, -losses[-1], rtol=1e-4)
        np.testing.assert_allclose(one.losses, losses.mean(axis=1), rtol=1e-4)
        assert (one.answer, one.layers) == (answer, (0, 1, 2, 3))
    with pytest.raises(UserError, match="prompt 1 has 68 tokens, with its answer 70, and training took at most 64;"):
        model.predict("Say " + 60 * "a" + ".", answers="b")
    with pytest.raises(UserError, match="for each prompt, got 2 prompts and 1 answers"):
        model.predict(["a", "b"], answers=["c"])


def test_an_evaluation_takes_other_strengths_of_noise(finished, tmp_path):
    folder = shutil.copytree(finished.folders[0], tmp_path / "run")
    assert main(["evaluate", str(folder), "--test-gammas", "0", "2"]) == 0
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert list(evaluation["accuracy"]) == ["0.0", "0.25", "2.0"], "that of training among them"


def test_floors_are_tables_of_the_answers_that_are_trained_on():
    def split(*texts):
        tokens = [Tokens(np.array(text, np.int32), 1) for text in texts]
        return arrays(tokens, [[number] for number in range(len(tokens))], 4, 3)

    train, test = split([0, 1, 2, 1], [0, 2, 3], [3, 2]), split([0, 1, 2, 2], [3, 1])
    tables = floors(train, test, 5)
    single = (np.array([0, 2, 3, 1, 0]) + 1) / 11  # c = of answers alone: 1, 2, 1; 2, 3; 2
    wanted = [1, 2, 2, 1]
    assert tables["unigram"].accuracy == 0.5
    assert tables["unigram"].loss == pytest.approx(-np.log(single[wanted]).mean())
    # Pairs: 0-1, 1-2, 2-1; 0-2, 2-3; 3-2. Behind 0, 1 and 2 are as frequent, and 2 is the more frequent token.
    paired = [(1 + single[1]) / 3, (1 + single[2]) / 2, single[2] / 3, single[1] / 2]
    assert tables["bigram"].loss == pytest.approx(-np.log(paired).mean())
    assert tables["bigram"].accuracy == 0.25
