"""A real language model on real prompts: answers of `transformers`, and the same ones drafted."""

import os
from pathlib import Path

import numpy as np
import pytest

from unroll_jax.train.data.instructions import read_prompts
from unroll_jax.train.generation import Settings, answer
from unroll_jax.train.loading import open_decoder

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.xdist_group("torch")]
COUNT, TOKENS = 16, 8  # with 50 prompts and 32 tokens it takes 15 minutes, and holds too


@pytest.fixture(scope="module")
def opened(smollm2):
    return open_decoder(str(smollm2), log=lambda line: None)


@pytest.fixture(scope="module")
def prompts():
    if "UNROLL_DATA" not in os.environ:
        pytest.skip("UNROLL_DATA does not name the folder of real data")
    file = Path(os.environ["UNROLL_DATA"]) / "alpaca" / "alpaca_5000.json"
    return read_prompts(file)[:COUNT]


@pytest.fixture(scope="module")
def plain(opened, prompts):
    return answer(opened, prompts, Settings(max_tokens=TOKENS, batch=COUNT), log=lambda line: None)


@pytest.mark.oracle("torch", "transformers")
def test_answers_are_those_of_transformers(opened, prompts, plain, oracles, smollm2):
    torch, transformers = oracles
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name).eval()
    for one in plain[:6]:
        chat = opened.tokenizer.chat([{"role": "user", "content": one.prompt.text}], answer=True)
        (tokens,) = opened.tokenizer.encode([chat])
        with torch.no_grad():
            whole = theirs.generate(torch.tensor(tokens[None]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=2)
        assert one.tokens == whole[0, len(tokens) :].tolist()


@pytest.mark.parametrize(("exit_layer", "draft_length"), [(8, 2), (28, 4)])
def test_drafted_answers_are_the_plain_ones(exit_layer, draft_length, opened, prompts, plain):
    draft = {"exit_layer": exit_layer, "draft_length": draft_length}
    lines = []
    answers = answer(opened, prompts, Settings(max_tokens=TOKENS, batch=COUNT, **draft), log=lines.append)
    assert [one.tokens for one in answers] == [one.tokens for one in plain]
    assert "tokens a verification" in lines[-1]
    assert np.mean([len(one.tokens) for one in answers]) > TOKENS / 2
