"""`unroll-jax predict` of language runs: losses of answers, and one-line errors."""

import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.language.conftest import answer_logs, wide
from tests.tasks import without_data
from unroll_jax.train.__main__ import main

pytestmark = pytest.mark.xdist_group("language")
ROWS = [
    {"instruction": "Say bado.", "input": "", "output": "bado"},
    {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    {"instruction": "Say mi.", "output": "mi", "generator": "other"},
]


def reference_of(model, prompt, answer):
    """Log-probabilities at the answer's tokens by layer, and these tokens."""
    decoder, source = (
        wide(jax.device_get(model.params["decoder"])),
        model.task.inner.data.source,
    )
    start = f"<|user|>{prompt}<|end|><|assistant|>"
    first, tokens = (
        source.tokenizer.encode([text])[0]
        for text in (start, f"{start}{answer}<|end|>")
    )
    return answer_logs(decoder, source.config, tokens, len(first)), tokens[len(first) :]


def test_answers_are_judged_as_by_the_reference(finished, tmp_path):
    """By a run and by its export, without data."""
    run, file = finished, tmp_path / "prompts.json"
    out = tmp_path / "new" / "out.jsonl"
    file.write_text(json.dumps(ROWS))
    prompts = ["Say bado.", "Add.\n\n1 and 2", "Say mi."]
    answers = [row["output"] for row in ROWS]
    load = "unroll_jax.train.tasks.language.instructions.load"
    with without_data(run, tmp_path / "model", load) as models:
        readings = [model.predict(prompts, answers=answers) for model in models]
        assert main(["predict", str(run), "--file", str(file), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for prompt, answer, row, *each in zip(
        prompts, answers, rows, *readings, strict=True
    ):
        logs, tokens = reference_of(models[0], prompt, answer)
        losses = -logs[:, np.arange(len(tokens)), tokens]
        right = logs.argmax(axis=-1) == tokens
        assert (row["prompt"], row["answer"]) == (prompt, answer)
        assert (row["tokens"], row["layers"]) == (len(tokens), [0, 1, 2, 3])
        assert_allclose(row["losses"], losses.mean(axis=1), rtol=1e-4)
        assert_allclose(row["accuracies"], right.mean(axis=1))
        for one in each:
            assert_allclose(one.log_probabilities, -losses[-1], rtol=1e-4)
            assert_allclose(one.losses, row["losses"], rtol=1e-4)
