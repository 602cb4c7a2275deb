"""Folders of decoders for `transformers`, whose names are written out by hand, from
our parameters and tokenizers."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.decoders.conftest import llama_tensors
from tests.errors import one_line
from unroll_jax.models import Decoder
from unroll_jax.train.data.pretrained.chat import ChatTokenizer, byte_tokenizer
from unroll_jax.train.data.pretrained.decoders import (
    open_decoder_source,
)
from unroll_jax.train.tasks.language.answers import ALPACA, AnswerTokenizer

SMALL = {
    "dim": 8,
    "num_layers": 2,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 12,
}
BIASES = {
    "self_attn.q_proj.bias": 8,
    "self_attn.k_proj.bias": 4,
    "self_attn.v_proj.bias": 4,
}
NORMS = {"self_attn.q_norm.weight": 2, "self_attn.k_norm.weight": 2}
# Further tensors of a layer of a family, the leaf that the first becomes, and the class
# of transformers.
FAMILIES = {
    "llama": ({}, None, "LlamaForCausalLM"),
    "qwen2": (BIASES, ("query", "bias"), "Qwen2ForCausalLM"),
    "qwen3": (NORMS, ("query_norm", "scale"), "Qwen3ForCausalLM"),
}


def source_of(folder):
    return open_decoder_source(str(folder), log=lambda line: None)


def params_of(config, dtype=jnp.float32):
    shapes = jax.eval_shape(
        Decoder(config).init, jax.random.key(0), jnp.ones((1, 1), int)
    )["params"]
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype), shapes)


@pytest.mark.parametrize(
    ("kind", "tied"), [("llama", True), *((kind, False) for kind in FAMILIES)]
)
def test_a_family_is_read_and_written_with_its_biases(write_folder, kind, tied):
    more, leaf, architecture = FAMILIES[kind]
    draw, tensors = np.random.default_rng(1), llama_tensors()
    if tied:
        del tensors["lm_head.weight"]
    for layer in range(2):
        tensors |= {
            f"model.layers.{layer}.{name}": draw.normal(size=size).astype("f4")
            for name, size in more.items()
        }
    config = {
        "model_type": kind,
        "use_sliding_window": False,
        "tie_word_embeddings": tied,
    }
    source = source_of(write_folder(config=config, tensors=tensors))
    params = jax.device_get(source.read())
    if leaf is not None:
        first = tensors[f"model.layers.1.{next(iter(more))}"]
        assert_array_equal(params["layers"][leaf[0]][leaf[1]][1], first)
    written, files = source.to_transformers(params, "")
    chex.assert_trees_all_equal(written, tensors)
    values = json.loads(files["config.json"])
    assert (values["model_type"], values["architectures"]) == (kind, [architecture])


def test_a_folder_without_a_stop_gets_its_tokenizers(write_folder):
    source = source_of(write_folder(config={"eos_token_id": None}))
    _, files = source.to_transformers(params_of(source.config), "")
    assert json.loads(files["config.json"])["eos_token_id"] == [257]


def test_the_template_of_alpaca_is_for_one_question():
    given = byte_tokenizer().to_spec() | {
        "named": {"bos_token": "<|user|>", "eos_token": "<|end|>"}
    }
    answers = AnswerTokenizer(ChatTokenizer.from_spec(given), "alpaca")
    tokenizer = ChatTokenizer.from_spec(given | {"template": answers.jinja})
    question = {"role": "user", "content": "What is 'a'?\n\n{x}"}
    text = tokenizer.chat([question], answer=True)
    assert text == "<|user|>" + ALPACA.format(question["content"])
    replied = [question, {"role": "assistant", "content": "b"}]
    assert tokenizer.chat(replied) == f"{text}b<|end|>"
    for other in (
        [*replied, question],
        [{"role": "system", "content": "Be brief."}, question],
        replied[1:],
    ):
        with one_line("the template is of one question"):
            tokenizer.chat(other, answer=True)
