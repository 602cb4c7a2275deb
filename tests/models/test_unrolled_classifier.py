"""The classifier of text over unrolled layers, against NumPy in float64; padding, noise, frozen embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models.drawing import drawn
from unroll_jax.models import UnrolledClassifier, UnrolledTransformer

DIM, LAYERS, CLASSES, WORDS = 4, 3, 3, 11
TOKENS = np.array([[3, 4, 5, 6, 2], [7, 8, 0, 0, 0]], np.int32)
MASK = TOKENS > 0
GIVEN = jnp.asarray(TOKENS), jnp.asarray(MASK)


def classifier(**options):
    return UnrolledClassifier(UnrolledTransformer(DIM, LAYERS, rank=2), WORDS, CLASSES, **options)


def reference_logits(variables, noise, *, positions):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    head, layers, logits = params["head"]["logits"], params["transformer"]["layers"], []
    for tokens, mask, shift in zip(TOKENS, MASK, noise, strict=True):
        y = params["embeddings"]["word"]["embedding"][tokens[mask]] + shift[mask]
        if positions:
            y = y + params["embeddings"]["position"]["embedding"][: mask.sum()]
        outputs = [y]
        for layer in range(LAYERS):
            outputs.append(reference.unrolled_layer(outputs[-1], *(leaf[layer] for leaf in layers)))
        logits.append([output.mean(axis=0) @ head["kernel"] + head["bias"] for output in outputs])
    return np.swapaxes(logits, 0, 1)


@pytest.mark.parametrize("positions", [None, 5])
def test_a_padded_batch_gives_the_logits_of_each_text_by_itself(positions):
    model, noise = classifier(max_positions=positions), np.random.default_rng(0).normal(size=(2, 5, DIM))
    variables = drawn(model, *GIVEN)
    actual = jax.jit(model.apply)(variables, *GIVEN, perturbation=jnp.asarray(noise, jnp.float32))
    expected = reference_logits(variables, noise, positions=positions is not None)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_frozen_embeddings_get_no_gradient_and_all_else_does_their_perturbation_too():
    models = {frozen: classifier(frozen=frozen, max_positions=5) for frozen in (False, True)}
    noise = np.zeros((*TOKENS.shape, DIM), np.float32)

    @jax.jit
    def run(variables, noise):
        def loss(variables, noise, model):
            return jnp.sum(jnp.sin(model.apply(variables, *GIVEN, perturbation=noise)))

        return {frozen: jax.grad(loss, (0, 1))(variables, noise, model) for frozen, model in models.items()}

    for frozen, (gradient, of_noise) in run(drawn(models[False], *GIVEN), noise).items():
        moved = {jax.tree_util.keystr(path): bool(np.any(leaf)) for path, leaf in jax.tree.leaves_with_path(gradient)}
        assert moved.pop("['params']['embeddings']['word']['embedding']") == (not frozen)
        assert all(moved.values()), frozen
        np.testing.assert_array_equal(np.any(of_noise, axis=-1), MASK)
