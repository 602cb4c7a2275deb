"""The unrolled transformer as a Flax module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models.drawing import drawn, normal
from unroll_jax.models import UnrolledTransformer

DIM, TOKENS, LAYERS = 4, 5, 3
X = jax.ShapeDtypeStruct((TOKENS, DIM), jnp.float32)


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
@pytest.mark.parametrize("masked", [False, True])
def test_without_self_loops_tokens_attend_to_the_others_alone(masked):
    model, x = random_model(param_dtype=jnp.float64, self_loops=False), normal(TOKENS, DIM)
    params, mask = drawn(model, x), np.array([True, True, False, True, True])
    outputs = jax.jit(model.apply)(params, x, mask if masked else None)
    V, W, U = (np.asarray(leaf[0]) for leaf in params["params"]["layers"])
    x = np.asarray(x)
    for token in np.flatnonzero(mask) if masked else range(TOKENS):  # masked ones stay
        others = [j for j in range(TOKENS) if j != token and (mask[j] or not masked)]
        weights = np.exp(x[others] @ V.T @ V @ x[token])
        mixed = weights / weights.sum() @ x[others]
        expected = np.maximum(mixed @ (W + W.T) / 2 + x[token] @ U, 0.0)
        np.testing.assert_allclose(outputs[1, token], expected, rtol=1e-10, atol=1e-12)


def test_a_token_with_no_other_to_attend_to_is_mixed_with_nothing():
    model, x = random_model(self_loops=False), normal(1, DIM, dtype=jnp.float32)
    params = drawn(model, X)
    _, _, U = (leaf[0] for leaf in params["params"]["layers"])
    run = jax.jit(lambda x, mask: model.apply(params, x, mask)[1, :1])
    for tokens, mask in ((x, None), (np.concatenate([x, x + 1.0]), np.array([True, False]))):
        np.testing.assert_allclose(run(tokens, mask), np.maximum(np.asarray(x) @ U, 0.0), rtol=1e-5)


def test_bfloat16_inputs_compute_in_bfloat16_and_read_out_in_float32():
    model, x = UnrolledTransformer(DIM, LAYERS), normal(TOKENS, DIM, dtype=jnp.bfloat16)
    outputs = jax.jit(model.apply)(drawn(model, x), x)
    assert outputs.dtype == jnp.float32
    np.testing.assert_array_equal(outputs, np.asarray(outputs, jnp.bfloat16))  # no digits beyond bfloat16's
