"""The unrolled transformer as a Flax module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models.drawing import drawn, normal
from unroll_jax.models import UnrolledTransformer

DIM, TOKENS, LAYERS = 4, 5, 3


def random_model(**options):
    """A model of rank 2 with drawn parameters: initially V is orthogonal and W, U are multiples of the identity."""
    return UnrolledTransformer(DIM, LAYERS, rank=2, **options)


def reference_outputs(params, x):
    layers = [np.asarray(leaf, dtype=np.float64) for leaf in params["params"]["layers"]]
    outputs = [np.asarray(x, dtype=np.float64)]
    for index in range(LAYERS):
        outputs.append(reference.unrolled_layer(outputs[-1], *(leaf[index] for leaf in layers)))
    return np.stack(outputs)


@pytest.mark.usefixtures("x64")
def test_without_self_loops_tokens_attend_to_the_others_only_or_to_nothing():
    """Nobody attends to a masked token. A token with no other is mixed with nothing."""
    model, x = random_model(param_dtype=jnp.float64, self_loops=False), normal(TOKENS, DIM)
    params = drawn(model, x)
    masks = [np.ones(TOKENS, bool), np.array([True, True, False, True, True]), np.arange(TOKENS) == 2]
    run = jax.jit(lambda x, masks: [model.apply(params, x, mask) for mask in (None, *masks)])
    V, W, U = (np.asarray(leaf[0]) for leaf in params["params"]["layers"])
    rows = np.asarray(x)
    for mask, outputs in zip((masks[0], *masks), run(x, masks), strict=True):
        for token in np.flatnonzero(mask):
            others = [j for j in np.flatnonzero(mask) if j != token]
            weights = np.exp(rows[others] @ V.T @ V @ rows[token])
            mixed = weights / weights.sum() @ rows[others] if others else np.zeros(DIM)
            expected = np.maximum(mixed @ (W + W.T) / 2 + rows[token] @ U, 0.0)
            np.testing.assert_allclose(outputs[1, token], expected, rtol=1e-10, atol=1e-12)
    single = jax.jit(model.apply)(params, x[:1])[1]
    np.testing.assert_allclose(single, np.maximum(rows[:1] @ U, 0.0), rtol=1e-10, atol=1e-12)
