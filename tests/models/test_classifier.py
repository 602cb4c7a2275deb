"""One head for every layer of an encoder."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_encoder import SMALL, numpy_params, random_params, random_tokens
from unroll_jax.models import POOLINGS, Classifier, Encoder, EncoderEmbeddings, EncoderLayer, Head

MASK = np.array([[True] * 6, [True] * 4 + [False] * 2, [False] * 2 + [True] * 4])


def pooled_by_hand(outputs, pooling):
    rows = []
    for row, mask in zip(np.moveaxis(outputs, 1, 0), MASK, strict=True):
        real = row[:, mask]
        rows.append(real[:, 0] if pooling == "first" else real.mean(1))
    return np.stack(rows, axis=1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("pooling", "hidden"), [("first", "tanh"), ("mean", "relu"), ("mean", None)])
def test_logits_are_those_of_the_head_at_every_output(pooling, hidden, getkey):
    encoder = Encoder(SMALL, param_dtype=jnp.float64)
    model = Classifier(encoder, 3, pooling, hidden)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (3, 6))
    logits = jax.jit(model.apply)(params, tokens, jnp.asarray(MASK))
    outputs = jax.jit(encoder.apply)({"params": params["params"]["encoder"]}, tokens, jnp.asarray(MASK))
    pooled, head = pooled_by_hand(np.asarray(outputs), pooling), numpy_params(params)["head"]
    if hidden is not None:
        before = pooled @ head["hidden"]["kernel"] + head["hidden"]["bias"]
        pooled = np.tanh(before) if hidden == "tanh" else np.maximum(before, 0.0)
    assert logits.shape == (4, 3, 3)
    np.testing.assert_allclose(logits, pooled @ head["logits"]["kernel"] + head["logits"]["bias"], atol=1e-11)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_padded_batch_has_the_logits_of_its_texts_alone(pooling, getkey):
    model = Classifier(Encoder(SMALL), 3, pooling, "tanh")
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (3, 6))
    run = jax.jit(model.apply)
    together = run(params, tokens, jnp.asarray(MASK))
    for row, mask in enumerate(MASK):
        alone = run(params, jnp.asarray(np.asarray(tokens)[row : row + 1, mask]))
        np.testing.assert_allclose(together[:, row], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_gradients_reach_the_head_from_every_layer(getkey):
    model = Classifier(Encoder(SMALL), 3)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (2, 5))

    @jax.jit
    def gradient(weights):
        return jax.grad(lambda params: jnp.sum(weights[:, None, None] * model.apply(params, tokens)))(params)

    each = [gradient(weights)["params"]["head"]["logits"]["kernel"] for weights in jnp.eye(4)]
    assert all(jnp.abs(part).max() > 0.1 for part in each)
    whole = gradient(jnp.ones(4))["params"]["head"]["logits"]["kernel"]
    np.testing.assert_allclose(whole, sum(each), rtol=1e-4, atol=1e-4)


def test_record_is_given_the_logits_of_each_layer(getkey):
    model = Classifier(Encoder(SMALL, dtype=jnp.bfloat16), 3)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (2, 5))
    logits = jax.jit(model.apply)(params, tokens)
    best = jax.jit(lambda params: model.apply(params, tokens, record=lambda y: jnp.max(y, axis=-1)))(params)
    assert logits.dtype == jnp.float32
    chex.assert_trees_all_close(best, jnp.max(logits, axis=-1), rtol=1e-2)


def test_outputs_of_all_layers_never_live_at_once(getkey):
    tokens = random_tokens(getkey(), (2, 5))
    for model, held in ((Classifier(Encoder(SMALL), 3), False), (Encoder(SMALL), True)):
        params = jax.eval_shape(model.init, getkey(), tokens)
        program = str(jax.make_jaxpr(model.apply)(params, tokens))
        assert any(shape in program for shape in ("f32[3,2,5,8]", "f32[4,2,5,8]")) == held


def test_the_parts_one_by_one_are_the_classifier(getkey):
    """What an early exit does: embeddings, then layer after layer, each with the head."""
    model = Classifier(Encoder(SMALL), 3, "mean")
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (3, 6))
    encoder, mask = params["params"]["encoder"], jnp.asarray(MASK)
    embed, advance = jax.jit(EncoderEmbeddings(SMALL).apply), jax.jit(EncoderLayer(SMALL).apply)
    read = jax.jit(Head(3, "mean").apply)
    y = embed({"params": encoder["embeddings"]}, tokens, mask, jnp.zeros_like(tokens))
    for place, expected in enumerate(jax.jit(model.apply)(params, tokens, mask)):
        logits = read({"params": params["params"]["head"]}, y, mask)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        own = jax.tree.map(lambda leaf: leaf[min(place, 2)], encoder["layers"])  # noqa: B023
        y = advance({"params": own}, y, mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"num_classes": 2, "pooling": "last"}, r"pooling must be one of \['first', 'mean'\], got 'last'"),
        ({"num_classes": 2, "hidden": "gelu"}, r"hidden must be one of \['tanh', 'relu'\] or None, got 'gelu'"),
    ],
)
def test_a_bad_argument_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(Classifier(Encoder(SMALL), **options).init, jax.random.key(0), jnp.ones((1, 2), jnp.int32))
