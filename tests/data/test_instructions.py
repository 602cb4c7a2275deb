"""Instructions with answers out of files, as tokens, and packed into rows."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.errors import one_line
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.data.pretrained.chat import ChatTokenizer, byte_tokenizer
from unroll_jax.train.tasks.language.answers import (
    ALPACA,
    AnswerTokenizer,
    PackedBatch,
    Tokens,
    arrays,
    filled,
    kept_positions,
    pack,
)
from unroll_jax.train.tasks.language.instructions import (
    Conversation,
    Prompt,
    read_prompts,
)


def test_made_up_instructions_differ_and_have_the_right_answers(opened):
    data = opened("chores")
    prompts = [one.prompt for split in SPLITS for one in data.whole(split)]
    assert len(set(prompts)) == len(prompts) == 2400
    sums = 0
    for prompt, answer in data.whole("test"):
        if match := re.fullmatch(r"Add (\d+) and (\d+)\.", prompt):
            assert int(answer) == sum(map(int, match.groups()))
            sums += 1
    assert sums > 0


def test_entries_of_alpaca_without_an_answer_are_left_out(opened, tmp_path):
    log, inputs = [], [{}, {"input": "it"}, {"input": ""}, {"input": "it"}]
    entries = [
        {"instruction": f"Do {n}", **inputs[n % 4], "output": f"done {n}"}
        for n in range(20)
    ]
    (tmp_path / "a.json").write_text(
        json.dumps([*entries, {"instruction": "a", "input": "", "output": " "}])
    )
    data = opened("alpaca", tmp_path / "a.json", log.append, validation_share=0.25)
    assert any(
        "leaving out 1 instruction(s) with an empty answer" in line for line in log
    )
    assert [data.num_examples(split) for split in SPLITS] == [11, 4, 5]
    answers = {one.prompt: one.answer for split in SPLITS for one in data.whole(split)}
    assert answers == {
        f"Do {n}{chr(10) * 2 + 'it' if n % 2 else ''}": f"done {n}" for n in range(20)
    }


def test_files_of_both_suffixes_are_splits(opened, tmp_path):
    for name in ("train.json", "test.jsonl"):
        entries = [{"prompt": f"{name} {n}", "answer": "b"} for n in range(20)]
        lines = "\n".join(map(json.dumps, entries))
        text = lines if name.endswith("l") else json.dumps(entries)
        (tmp_path / name).write_text(text)
    (tmp_path / "more.json").write_text("[]")
    lines: list[str] = []
    data = opened("alpaca", tmp_path, lines.append)
    assert "  passing over 1 other file(s), as 'more.json'" in lines
    assert [data.num_examples(split) for split in SPLITS] == [18, 2, 20]
    assert {one.prompt[:10] for one in data.whole("test")} == {"test.jsonl"}


def test_a_template_tells_where_the_answer_starts():
    tokenizer = byte_tokenizer()
    (encoded,) = AnswerTokenizer(tokenizer, None).encode([Conversation("Hé?", "Hó")])
    parts = np.split(encoded.tokens, [encoded.first])
    expected = ["<|user|>Hé?<|end|><|assistant|>", "Hó<|end|>"]
    assert list(map(tokenizer.decode, parts)) == expected
    assert encoded.tokens[-1] == tokenizer.stops[0]
    alpaca = AnswerTokenizer(tokenizer, "alpaca")
    (encoded,) = alpaca.encode([Conversation("Hi", "Ho")])
    assert tokenizer.decode(encoded.tokens) == ALPACA.format("Hi") + "Ho<|end|>"
    for answer_tokenizer in (AnswerTokenizer(tokenizer, "chat"), alpaca):
        (question,) = answer_tokenizer.questions(["Hi"])
        (whole,) = answer_tokenizer.encode([Conversation("Hi", "Ho")])
        # training and questions have the same prompt
        assert_array_equal(question, whole.tokens[: whole.first])


def test_a_template_without_an_answer_behind_the_prompt_is_refused():
    template = "{{ messages[0]['content'] }}"
    made = ChatTokenizer(byte_tokenizer()._tokenizer, template, {}, [3], where="here")
    with one_line(
        "the chat template of here does not put the answer behind the prompt; pass"
    ):
        AnswerTokenizer(made, "chat").encode([Conversation("a", "b")])


def test_long_answers_lose_their_end():
    conversations = [Conversation("abc", "defgh"), Conversation("abcdefgh", "i")]
    tokenised = AnswerTokenizer(byte_tokenizer(), None).fitting(conversations, 9)
    (text,) = tokenised.texts
    assert (tokenised.cut, tokenised.left_out, len(text.tokens)) == (1, 1, 9)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_packing_puts_every_text_into_one_row_that_holds_it(lengths):
    rows = pack(lengths, 12)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    totals = [sum(lengths[number] for number in row) for row in rows]
    assert max(totals) <= 12
    assert sum(total <= 6 for total in totals) <= 1, "two half-empty rows would be one"
    assert pack(lengths, 0) == [[number] for number in range(len(lengths))]


def test_rows_say_where_answers_are_and_whose():
    texts = [Tokens(np.array([5, 6, 7, 8]), 2), Tokens(np.array([9, 3]), 1)]
    assert kept_positions(texts, [[0, 1]]) == 8
    batch = arrays(texts, [[0, 1]], 8, 4)
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9, 3, 0, 0]]
    assert batch.segments.tolist() == [[1, 1, 1, 1, 2, 2, 0, 0]]
    places = np.stack([batch.places, batch.labels, batch.weights, batch.owners], -1)
    expected = [[1, 7, 1, 0], [2, 8, 1, 0], [4, 3, 1, 1], [0, 0, 0, -1]]
    assert places.tolist() == [expected]
    more = filled(batch, 3)
    assert [part.shape[0] for part in more] == [3] * len(PackedBatch._fields)
    assert (more.weights[1:].sum(), more.owners[1:].max()) == (0.0, -1)


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
        (
            "p.jsonl",
            "\ufeff"
            + "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
            + "\n",
            PROMPTS,
        ),
        (
            "p.txt",
            "one\n\n  two \u2028 of it\r\n",
            [Prompt("one"), Prompt("  two \u2028 of it")],
        ),
    ],
)
def test_prompts_are_read_in_order(name, content, expected, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_prompts(path) == expected
    assert [prompt.text for prompt in PROMPTS] == ["Add.\n\n1 and 2", "Grüße", "a\nb"]
