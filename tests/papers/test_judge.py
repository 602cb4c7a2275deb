"""A judge of answers against the decoder of the papers in NumPy, and on itself."""

import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from papers.judge import Judge, main, verdict
from tests.data.decoders.conftest import write_llama
from tests.models import decoder_reference as reference
from tests.train.commands import quiet
from unroll_jax.train.loading import open_decoder
from unroll_jax.train.tasks.language.answers import AnswerTokenizer
from unroll_jax.train.tasks.language.instructions import Conversation, Prompt

ROWS = [
    Prompt("ab?", answer="abba"),
    Prompt("aab?", "with b", answer="b"),
    Prompt("b?", answer="aa"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = {"max_position_embeddings": 512}
    return write_llama(tmp_path_factory.mktemp("judge"), config=config)


@pytest.fixture(scope="module")
def opened(folder):
    return open_decoder(str(folder), log=quiet)


def written(path, rows, **more):
    values = [
        {"instruction": row.instruction, "input": row.input, "output": row.answer}
        | more
        for row in rows
    ]
    path.write_text(json.dumps(values))
    return str(path)


def test_the_likelihood_of_answers_is_that_of_their_tokens(opened):
    judge = Judge(opened)
    found = judge.likelihoods(ROWS)
    chats = [Conversation(row.text, row.answer) for row in ROWS]
    tokens = AnswerTokenizer(opened.tokenizer, "chat").encode(chats)
    for value, (numbers, first) in zip(found, tokens, strict=True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), opened.params)
        states = reference.outputs(params, numbers, opened.config)
        logits = reference.logits(params, states, opened.config)[-1]
        logs = log_softmax(logits, axis=-1)[first - 1 : -1]
        expected = np.take_along_axis(logs, numbers[first:, None], axis=-1)
        assert value == pytest.approx(np.mean(expected), rel=1e-4)


def test_wins_are_means_over_both_orders_with_their_standard_error():
    preferences = np.array([[0.9, 0.8], [0.9, 0.3], [0.5, 0.5], [0.1, 0.2]])
    wins, error, agreement = verdict(preferences)
    assert (wins, agreement) == ((1 + 1 + 0.5 + 0) / 4, 3 / 4)
    assert error == pytest.approx(np.std([1, 1, 0.5, 0], ddof=1) / 2)


def test_files_of_generate_are_judged_by_commands(folder, tmp_path, capsys):
    first = written(tmp_path / "first.json", ROWS, generator="one")
    others = [row._replace(answer="bb") for row in ROWS]
    second = written(tmp_path / "second.json", others, generator="two")
    assert main([str(folder), first, "--limit", "2"]) == 0
    assert "log-likelihood of 2 answers: -" in capsys.readouterr().out
    assert main([str(folder), first, "--against", second]) == 0
    assert "standard error" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([str(folder), str(tmp_path / "none.json")])
    assert "error: ANSWERS" in capsys.readouterr().err
