"""The unrolled transformer as a Flax module, and the classifier of text over it:
padding, noise, frozen embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests import reference
from tests.marks import in_float64
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.models import UnrolledClassifier, UnrolledTransformer

DIM, LENGTH, LAYERS = 4, 5, 3


def reference_outputs(params, x):
    layers = [np.asarray(leaf, dtype=np.float64) for leaf in params["params"]["layers"]]
    outputs = [np.asarray(x, dtype=np.float64)]
    for index in range(LAYERS):
        outputs.append(
            reference.unrolled_layer(outputs[-1], *(leaf[index] for leaf in layers))
        )
    return np.stack(outputs)


@in_float64
def test_without_self_loops_tokens_attend_to_others_or_nothing():
    """Nobody attends to a masked token. A token with no other is mixed with nothing."""
    model = UnrolledTransformer(
        DIM, LAYERS, rank=2, param_dtype=jnp.float64, self_loops=False
    )
    x = normal(LENGTH, DIM)
    params = drawn(model, x)
    masks = np.ones((3, LENGTH), bool)
    masks[1, 2] = False
    masks[2] = np.arange(LENGTH) == 2

    @compiled
    def run(params, masks):
        def apply(mask):
            return model.apply(params, x, mask)[1]

        single = model.apply(params, x[:1])[1]
        return apply(None), jax.lax.map(apply, masks), single

    plain, masked, single = run(params, masks)
    V, W, U = (np.asarray(leaf)[0] for leaf in params["params"]["layers"])
    rows = np.asarray(x)
    for mask, outputs in zip((masks[0], *masks), (plain, *masked), strict=True):
        weights = np.exp(rows @ V.T @ V @ rows.T) * mask * (1.0 - np.eye(LENGTH))
        total = weights.sum(axis=1, keepdims=True)
        mixed = weights @ rows / np.where(total > 0.0, total, 1.0)
        expected = np.maximum(mixed @ (W + W.T) / 2 + rows @ U, 0.0)
        assert_allclose(outputs[mask], expected[mask], rtol=1e-10, atol=1e-12)
    assert_allclose(single, np.maximum(rows[:1] @ U, 0.0), rtol=1e-10, atol=1e-12)


TOKENS = np.array([[3, 4, 5, 6, 2], [7, 8, 0, 0, 0]], np.int32)
MASK = TOKENS > 0
GIVEN = jax_array(TOKENS), jax_array(MASK)


def classifier(**options):
    return UnrolledClassifier(
        UnrolledTransformer(DIM, LAYERS, rank=2, unroll=1),
        vocabulary_size=11,
        num_classes=3,
        **options,
    )


def reference_logits(variables, noise, *, positions):
    params = float64(variables["params"])
    logits = []
    embeddings = params["embeddings"]
    head = params["head"]["logits"]
    for tokens, mask, shift in zip(TOKENS, MASK, noise, strict=True):
        y = embeddings["word"]["embedding"][tokens[mask]] + shift[mask]
        if positions:
            y = y + embeddings["position"]["embedding"][: mask.sum()]
        outputs = reference_outputs({"params": params["transformer"]}, y)
        logits.append(outputs.mean(axis=1) @ head["kernel"] + head["bias"])
    return np.swapaxes(logits, 0, 1)


@pytest.mark.parametrize("positions", [None, 5])
def test_a_padded_batch_gives_the_logits_of_each_text(positions):
    model = classifier(max_positions=positions)
    noise = gaussian(2, 5, DIM)
    variables = drawn(model, *GIVEN)
    actual = compiled(model.apply)(variables, *GIVEN, perturbation=np.float32(noise))
    expected = reference_logits(variables, noise, positions=positions is not None)
    assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_only_frozen_embeddings_get_no_gradient():
    models = {
        frozen: classifier(frozen=frozen, max_positions=5) for frozen in (False, True)
    }
    noise = np.zeros((*TOKENS.shape, DIM), np.float32)

    @compiled
    def run(variables, noise):
        def loss(variables, noise, model):
            return jnp.sum(jnp.sin(model.apply(variables, *GIVEN, perturbation=noise)))

        return {
            frozen: jax.grad(loss, (0, 1))(variables, noise, model)
            for frozen, model in models.items()
        }

    for frozen, (gradient, of_noise) in run(
        drawn(models[False], *GIVEN), noise
    ).items():
        moved = {
            jax.tree_util.keystr(path): bool(np.any(leaf))
            for path, leaf in jax.tree.leaves_with_path(gradient)
        }
        assert moved.pop("['params']['embeddings']['word']['embedding']") == (
            not frozen
        )
        assert all(moved.values()), frozen
        assert_array_equal(np.any(of_noise, axis=-1), MASK)
