"""Prompts are read from a JSON list, JSONL or lines; what is wrong with a file is one line that names the place."""

import json

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.instructions import Prompt, read_prompts

ROWS = [
    {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    {"instruction": "Grüße", "input": "", "dataset": "koala"},
    {"instruction": "a\nb", "input": None},
]
PROMPTS = [Prompt("Add.", "1 and 2"), Prompt("Grüße", dataset="koala"), Prompt("a\nb")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.json", json.dumps(ROWS), PROMPTS),
        ("p.jsonl", "\ufeff" + "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n", PROMPTS),
        ("p.txt", "one\n\n  two \u2028 of it\r\n", [Prompt("one"), Prompt("  two \u2028 of it")]),
    ],
)
def test_prompts_are_read_in_order(name, content, expected, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_prompts(path) == expected


def test_answers_are_read_only_where_they_are_asked_for(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([*ROWS, {"instruction": "a", "output": ""}]))
    assert [prompt.answer for prompt in read_prompts(path, answers=True)] == ["3", None, None, ""]
    path.write_text('[{"instruction": "a", "output": {"text": 3}}, {"instruction": "b", "output": 0}]')
    assert read_prompts(path) == [Prompt("a"), Prompt("b")]
    with pytest.raises(UserError, match="entry 1 has fields that are not texts"):
        read_prompts(path, answers=True)


def test_the_input_stands_below_the_instruction():
    assert [prompt.text for prompt in PROMPTS] == ["Add.\n\n1 and 2", "Grüße", "a\nb"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.json", b'{"instruction": "a"}', ["is not a list"]),
        ("p.json", b"[]", ["has no prompt"]),
        ("p.json", b'[{"instruction": "a"}, 3]', ["entry 2 is not an object with an instruction"]),
        ("p.json", b'[{"input": "a"}]', ["entry 1 has no instruction"]),
        ("p.json", b'[{"instruction": ["a"]}]', ["entry 1 has fields that are not texts"]),
        ("p.json", b'[{"instruction": "\\ud800"}]', ["entry 1 has fields that are not texts"]),
        ("p.json", b"[" * 100_000, ["is not valid JSON"]),
        ("p.jsonl", b'{"instruction": "a"}\n\n{"instruction"\n', ["line 3 is not valid JSON"]),
        ("p.txt", b"a\n\xff\n", ["is not UTF-8", "in line 2"]),
        ("p.txt", b" \n\n", ["has no prompt"]),
        ("p.txt", None, ["cannot be read (No such file or directory)"]),
    ],
)
def test_a_bad_file_is_told_in_one_line(name, content, words, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_prompts(path)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"--prompts {path}")
    assert all(word in message for word in words), message
