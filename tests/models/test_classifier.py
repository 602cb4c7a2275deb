"""One head for every layer of an encoder or of unrolled layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.marks import in_float64, nightly
from tests.models.drawing import drawn, float64
from tests.models.test_encoder import SMALL, random_params, random_tokens
from tests.reference import compiled, jax_array
from unroll_jax.models import (
    Classifier,
    Encoder,
    UnrolledClassifier,
    UnrolledTransformer,
)

MASK = np.array([[True] * 6, [True] * 4 + [False] * 2, [False] * 2 + [True] * 4])


@nightly
@in_float64
@pytest.mark.parametrize(("pooling", "hidden"), [("first", "tanh"), ("mean", None)])
def test_logits_are_those_of_the_head_at_every_output(pooling, hidden):
    encoder = Encoder(SMALL, param_dtype=jnp.float64, unroll=1)
    mask = jax_array(MASK)
    tokens = random_tokens(3, 6)
    model = Classifier(encoder, 3, pooling, hidden)
    params = random_params(model)
    inside = {"params": params["params"]["encoder"]}

    @compiled
    def run(params, inside):
        return (
            model.apply(params, tokens, mask),
            encoder.apply(inside, tokens, mask),
        )

    logits, outputs = run(params, inside)
    head = float64(params)["params"]["head"]
    places = np.argmax(MASK, axis=1)
    shares = MASK / MASK.sum(axis=1, keepdims=True)
    shares = np.eye(6)[places] if pooling == "first" else shares
    pooled = np.einsum("lbnd,bn->lbd", outputs, shares)
    if hidden is not None:
        pooled = np.tanh(pooled @ head["hidden"]["kernel"] + head["hidden"]["bias"])
    expected = pooled @ head["logits"]["kernel"] + head["logits"]["bias"]
    assert logits.shape == (4, 3, 3)
    assert_allclose(logits, expected, atol=1e-11)


MODELS = {
    "encoder": Classifier(Encoder(SMALL, dtype=jnp.bfloat16, unroll=1), 3),
    "unrolled layers": UnrolledClassifier(
        UnrolledTransformer(8, 3, rank=2), SMALL.vocabulary_size, 3
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_record_sees_logits_of_each_layer_with_gradients(
    model,
):
    tokens = random_tokens(2, 5)
    given = (tokens, jax_array(np.ones((2, 5), bool)))

    @compiled
    def run(params):
        logits, pull = jax.vjp(lambda params: model.apply(params, *given), params)
        best = model.apply(params, *given, record=lambda y: jnp.max(y, axis=-1))

        def of_layer(layer):
            return pull(jnp.zeros_like(logits).at[layer].set(1.0))[0]["params"]["head"]

        return logits, best, jax.vmap(of_layer)(jnp.arange(len(logits)))

    logits, best, gradients = run(drawn(model, *given))
    assert logits.dtype == jnp.float32
    assert_allclose(best, np.max(logits, axis=-1), rtol=1e-2)
    assert np.all(np.abs(gradients["logits"]["kernel"]).max(axis=(1, 2)) > 0.1)


def test_outputs_of_all_layers_never_live_at_once():
    tokens = random_tokens(2, 5)
    for model, held in ((Classifier(Encoder(SMALL), 3), False), (Encoder(SMALL), True)):
        program = str(
            jax.make_jaxpr(model.apply)(
                jax.eval_shape(model.init, jax.random.key(0), tokens), tokens
            )
        )
        assert (
            any(shape in program for shape in ("f32[3,2,5,8]", "f32[4,2,5,8]")) == held
        )
