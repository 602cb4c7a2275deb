"""`unroll-jax generate`: answers as AlpacaEval reads them, the same drafted;
one-line errors."""

import json

import pytest

from tests.errors import one_line
from tests.train.commands import refused
from unroll_jax.models import generate
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
def test_answers_are_written_as_alpaca_eval_reads_them_and_drafts_change_none(
    llama, prompts, tmp_path, capsys
):
    out = tmp_path / "new" / "answers.json"
    words = [
        "generate",
        str(llama),
        "--prompts",
        str(prompts),
        "--max-tokens",
        "6",
        "--batch",
        "2",
    ]
    assert main([*words, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [
        {key: row[key] for key in row if key not in ("output", "generator")}
        for row in rows
    ] == ROWS
    assert {row["generator"] for row in rows} == {"llama"}
    assert "3 answers of" in capsys.readouterr().out
    opened = reads(llama)
    for row, prompt in zip(rows, ROWS, strict=True):
        text = (
            f"{prompt['instruction']}\n\n{prompt['input']}"
            if "input" in prompt
            else prompt["instruction"]
        )
        chat = opened.tokenizer.chat([{"role": "user", "content": text}], answer=True)
        tokens = opened.tokenizer.encode([chat])
        generated = generate(
            opened.config,
            opened.params,
            tokens,
            max_tokens=6,
            stops=opened.tokenizer.stops,
        )
        kept = generated.tokens[0][
            : int(generated.lengths[0]) - bool(generated.stopped[0])
        ]
        assert row["output"] == opened.tokenizer.decode(kept, special=False).strip()
    line = refused(
        capsys, "generate", str(tmp_path / "none"), *words[2:], "--out", str(out)
    )
    assert line.endswith(
        "answers.json is there already; pass another file, or --overwrite, which"
        " replaces it\n"
    )
    assert json.loads(out.read_text()) == rows, "refused before the model is looked for"
    drafted = tmp_path / "drafted.json"
    assert (
        main(
            [*words, "--exit-layer", "1", "--draft-length", "2", "--out", str(drafted)]
        )
        == 0
    )
    assert "tokens a verification" in capsys.readouterr().out
    assert [row["output"] for row in json.loads(drafted.read_text())] == [
        row["output"] for row in rows
    ]


def test_a_model_without_a_template_answers_texts_as_they_are(llama, prompts, capsys):
    (llama / "tokenizer_config.json").write_text("{}")
    words = ["generate", str(llama), "--prompts", str(prompts)]
    assert "has no chat template" in refused(capsys, *words)
    assert main([*words, "--no-chat", "--max-tokens", "2", "--limit", "1"]) == 0
    assert "1 answers of" in capsys.readouterr().out
    with one_line("prompt 1 has 0 tokens"):
        answer(reads(llama), [Prompt("")], Settings(chat=False))
