"""Runs exported for `transformers`: our reader and `transformers` see the decoder
that `generate` uses."""

import json
import re

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

from tests.train.commands import quiet
from unroll_jax.models import Decoder, decoder_logits
from unroll_jax.train import load
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.exporting import export
from unroll_jax.train.generation import Settings, answer
from unroll_jax.train.loading import open_decoder
from unroll_jax.train.tasks.language.answers import AnswerTokenizer
from unroll_jax.train.tasks.language.instructions import Prompt

pytestmark = pytest.mark.xdist_group("language")
PROMPTS = [Prompt("7?"), Prompt("Say bado.")]
KINDS = ("changes merged", "tied, Alpaca")


def tokens_of(opened):
    return [
        reply.tokens
        for reply in answer(opened, PROMPTS, Settings(max_tokens=8), log=quiet)
    ]


def assert_same_decoder(run, out):
    ours, read = open_decoder(str(run), log=quiet), open_decoder(str(out), log=quiet)
    assert (read.config, read.tokenizer.stops) == (ours.config, ours.tokenizer.stops)
    chex.assert_trees_all_equal(ours.params, read.params)
    texts = [prompt.text for prompt in PROMPTS]
    both = (
        AnswerTokenizer(each.tokenizer, each.template).questions(texts)
        for each in (ours, read)
    )
    assert all(map(np.array_equal, *both))


def test_a_drawn_decoder_of_bytes_is_exported_with_its_tokenizer(finished, tmp_path):
    run = finished
    out = export(run, format="transformers", log=quiet)
    assert out == run / "transformers"
    assert_same_decoder(run, out)
    exported = export(run, tmp_path / "model", log=quiet)
    assert_same_decoder(run, exported)
    for opened in (open_decoder(str(place), log=quiet) for place in (run, exported)):
        assert opened.deviation(1.5) == 1.5, (
            "noise is that of training: drawn embeddings start with a deviation of 1"
        )
        assert opened.layers == (0, 1, 2, 3)
    # of another model's export
    (out / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert export(run, format="transformers", log=quiet) == out, (
        "over an earlier export"
    )
    assert not (out / "generation_config.json").exists()
    with pytest.raises(UserError, match="export the run again without --format"):
        load(out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_given_decoder_is_exported_as_it_was_trained(run_of, kind, tmp_path):
    run, folder = run_of(kind)
    out = export(run, tmp_path / "out", format="transformers", log=quiet)
    assert_same_decoder(run, out)
    start, written = (load_file(place / "model.safetensors") for place in (folder, out))
    assert start.keys() == written.keys(), "low-rank changes are no tensors"
    changed = {
        name
        for name, tensor in start.items()
        if np.abs(tensor - written[name]).max() > 1e-3
    }
    everything = kind == "tied, Alpaca"
    assert changed == {
        name for name in start if everything or name.endswith("proj.weight")
    }
    given, values = (
        json.loads((place / "config.json").read_text()) for place in (folder, out)
    )
    assert given.items() <= values.items()


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drawn", *KINDS])
def test_transformers_answers_by_the_python_of_the_model_card(
    finished, run_of, kind, tmp_path
):
    import torch

    run = finished if kind == "drawn" else run_of(kind)[0]
    out = export(run, tmp_path / "out", format="transformers", log=quiet)
    (code,) = re.findall(
        r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL
    )
    code = code.replace('"FOLDER"', repr(str(out))).replace(
        "max_new_tokens=256", "max_new_tokens=8"
    )
    opened, names = open_decoder(str(run), log=quiet), {}
    for prompt, tokens in zip(PROMPTS, tokens_of(opened), strict=True):
        exec(code.replace('"..."', repr(prompt.text)), names)
        assert names["answer"].tolist() == tokens
        inputs = names["prompt"]["input_ids"]
        with torch.no_grad():
            logits = names["model"](input_ids=inputs).logits.numpy()
        states = Decoder(opened.config).apply(
            {"params": opened.params}, jnp.asarray(inputs.numpy())
        )
        expected = decoder_logits(opened.config, opened.params, states[-1])
        assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
