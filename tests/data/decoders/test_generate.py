"""`unroll-jax generate`: answers as AlpacaEval reads them, the same drafted;
one-line errors."""

import json

import pytest

from tests.errors import one_line
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.generation import Settings, answer
from unroll_jax.train.loading import open_decoder
from unroll_jax.train.tasks.language.instructions import Prompt

ROWS = [
    {"instruction": "ab"},
    {"instruction": "Abc", "input": "d", "dataset": "koala"},
    {"instruction": "e"},
]


def reads(folder):
    return open_decoder(str(folder), log=lambda line: None)


@pytest.fixture
def llama(write_folder):
    return write_folder(config={"max_position_embeddings": 400})


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(ROWS))
    return path


@pytest.mark.slow
def test_answers_are_as_alpaca_eval_reads_them_also_by_drafts(
    llama, prompts, tmp_path, capsys
):
    out = tmp_path / "new" / "answers.json"
    words = f"generate {llama} --prompts {prompts} --max-tokens 6 --batch 2".split()
    assert main([*words, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    answers = [row.pop("output") for row in rows]
    assert rows == [row | {"generator": "llama"} for row in ROWS]
    before = out.read_bytes()
    assert "answers.json is there already" in refused(capsys, *words, "--out", str(out))
    assert out.read_bytes() == before
    drafted = tmp_path / "drafted.json"
    more = ["--exit-layer", "1", "--draft-length", "2", "--out", str(drafted)]
    assert main([*words, *more]) == 0
    assert [row["output"] for row in json.loads(drafted.read_text())] == answers


def test_a_model_without_a_template_answers_texts_as_they_are(llama, prompts, capsys):
    (llama / "tokenizer_config.json").write_text("{}")
    words = ["generate", str(llama), "--prompts", str(prompts)]
    assert "has no chat template" in refused(capsys, *words)
    assert main([*words, "--no-chat", "--max-tokens", "2", "--limit", "1"]) == 0
    assert "1 answers of" in capsys.readouterr().out
    with one_line("prompt 1 has 0 tokens"):
        answer(reads(llama), [Prompt("")], Settings(chat=False))
