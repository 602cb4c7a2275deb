"""`unroll-jax predict` of language runs: losses of answers, and one-line errors."""

import json

import numpy as np
import pytest

from tests.train.commands import refused
from unroll_jax.train.__main__ import main

pytestmark = pytest.mark.xdist_group("language")
ROWS = [
    {"instruction": "Say bado.", "input": "", "output": "bado"},
    {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    {"instruction": "Say mi.", "output": "mi", "generator": "other"},
]


@pytest.fixture
def run(finished):
    return str(finished.folders[1])


def test_answers_get_losses_and_accuracies_of_every_layer(run, layers_of, tmp_path, capsys):
    file, out = tmp_path / "prompts.json", tmp_path / "new" / "out.jsonl"
    file.write_text(json.dumps(ROWS))
    assert main(["predict", run, "--file", str(file), "--out", str(out)]) == 0
    assert f"{out}: predictions for 3 texts" in capsys.readouterr().out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["Say bado.", "Add.\n\n1 and 2", "Say mi."]
    for row, given in zip(rows, ROWS, strict=True):
        logs, tokens, _ = layers_of(row["prompt"], given["output"])
        assert (row["answer"], row["tokens"], row["layers"]) == (given["output"], len(tokens), [0, 1, 2, 3])
        np.testing.assert_allclose(row["losses"], (-logs[:, np.arange(len(tokens)), tokens]).mean(axis=1), rtol=1e-4)
        np.testing.assert_allclose(row["accuracies"], (logs.argmax(axis=-1) == tokens).mean(axis=1))


def test_what_a_language_run_cannot_read_is_refused_in_one_line(run, tmp_path, capsys, monkeypatch):
    there, lines, odd = (tmp_path / name for name in ("there.jsonl", "lines.jsonl", "odd.json"))
    odd.write_text('[{"instruction": "a", "output": 0}]')
    there.write_text("old")
    lines.write_text('{"input": "a"}\n')
    long = ["--text", 60 * "a", "--second", "b"]
    assert "prompt 1 has 63 tokens, with its answer 65, and training took at most 64;" in refused(
        capsys, "predict", run, *long
    )
    monkeypatch.setattr("unroll_jax.train.predict.load", None)  # before the model is read
    cases = (
        ([], "predict needs prompts; give --text, or a --file of them"),
        (
            ["--text", "a", "b", "--second", "c"],
            "predict needs one answer (--second) for each prompt, got 2 prompts and 1",
        ),
        (["--text", "a"], "got 1 prompts and 0 answers; to have prompts answered, use generate"),
        (["--text", " ", "--second", "a"], "prompt 1 is empty; leave it out"),
        (["--text", "a", "--second", ""], "answer 1 is empty; leave it out"),
        (["--text", "a", "--second", "\udcff"], "answer 1 is no valid UTF-8; leave it out"),
        (["--file", str(odd)], "odd.json entry 1 has fields that are not texts"),
        (["--text", "a\udcff", "--second", "a"], "prompt 1 is no valid UTF-8; leave it out"),
        (["--file", str(lines)], "lines.jsonl line 1 has no instruction"),
        (["--text", "a", "--out", str(there)], "there.jsonl is there already; pass another file, or --overwrite"),
        (["--text", "a", "--out", str(tmp_path)], "is a folder; name a file in it"),
    )
    for words, message in cases:
        assert message in refused(capsys, "predict", run, *words)
    assert there.read_text() == "old"
    with_noise = ["--prompts", str(odd), "--gamma", "1e30"]
    for command in (["predict", run, "--text", "a", "--gamma", "1e30"], ["generate", run, *with_noise]):
        assert "--gamma must be finite, from 0 to 1e+09, got 1e+30" in refused(capsys, *command)
