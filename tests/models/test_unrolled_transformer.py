"""The unrolled transformer as a Flax module."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models.drawing import drawn, normal
from unroll_jax.energies import UnrolledLayerParams
from unroll_jax.models import UnrolledTransformer

DIM, TOKENS, LAYERS = 4, 5, 3


X = jax.ShapeDtypeStruct((TOKENS, DIM), jnp.float32)


def random_model(**options):
    """Of rank 2; its parameters are drawn, as initially V is orthogonal and W, U are multiples of the identity."""
    return UnrolledTransformer(DIM, LAYERS, rank=2, **options)


def reference_outputs(params, x):
    layers = [np.asarray(leaf, dtype=np.float64) for leaf in params["params"]["layers"]]
    outputs = [np.asarray(x, dtype=np.float64)]
    for index in range(LAYERS):
        outputs.append(reference.unrolled_layer(outputs[-1], *(leaf[index] for leaf in layers)))
    return np.stack(outputs)


@pytest.mark.usefixtures("x64")
def test_all_outputs_equal_the_reference():
    model, x = random_model(param_dtype=jnp.float64), normal(TOKENS, DIM)
    params = drawn(model, x)
    actual = jax.jit(model.apply)(params, x)
    np.testing.assert_allclose(actual, reference_outputs(params, x), rtol=1e-12, atol=1e-13)


def test_parameters_are_stacked_by_layer_and_layer_0_is_the_input():
    model, x = random_model(), normal(TOKENS, DIM, dtype=jnp.float32)
    params = drawn(model, X)
    shapes = UnrolledLayerParams(V=(LAYERS, 2, DIM), W=(LAYERS, DIM, DIM), U=(LAYERS, DIM, DIM))
    assert jax.tree.map(jnp.shape, params["params"]["layers"]) == shapes
    np.testing.assert_array_equal(np.asarray(jax.jit(model.apply)(params, x))[0], x)


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
    np.testing.assert_allclose(model.apply(params, x)[1], jax.nn.relu(x @ U), rtol=1e-5)
    alone = jnp.concatenate([x, x + 1.0])
    outputs = model.apply(params, alone, jnp.array([True, False]))
    np.testing.assert_allclose(outputs[1, :1], jax.nn.relu(x @ U), rtol=1e-5)


def test_bfloat16_inputs_compute_in_bfloat16_and_read_out_in_float32():
    model, x = UnrolledTransformer(DIM, LAYERS), normal(TOKENS, DIM, dtype=jnp.bfloat16)
    outputs = jax.jit(model.apply)(drawn(model, x), x)
    assert outputs.dtype == jnp.float32
    np.testing.assert_array_equal(outputs, np.asarray(outputs, jnp.bfloat16))  # no digits beyond bfloat16's


def test_padding_changes_no_output_and_no_gradient_of_real_tokens():
    model, x = random_model(), normal(2, TOKENS, DIM, dtype=jnp.float32)
    padding = np.full((2, 3, DIM), 1e3, np.float32)  # large, so that any leak is seen
    cases = {}
    for side, parts in (("left", [padding, x]), ("right", [x, padding])):
        padded = np.concatenate(parts, axis=1)
        real = slice(3, None) if side == "left" else slice(TOKENS)
        cases[side] = jnp.asarray(padded), jnp.asarray(np.any(padded != 1e3, axis=-1)), real

    def outputs_and_gradient(params, x, mask, real):
        def loss(params):
            outputs = model.apply(params, x, mask)[:, :, real]
            return jnp.sum(jnp.sin(outputs)), outputs

        gradient, outputs = jax.grad(loss, has_aux=True)(params)
        return outputs, gradient

    @jax.jit
    def run(params):
        plain = outputs_and_gradient(params, x, None, slice(None))
        return plain, {side: outputs_and_gradient(params, *case) for side, case in cases.items()}

    (plain, plain_gradient), padded = run(drawn(model, X))
    for actual, actual_gradient in padded.values():
        chex.assert_trees_all_close(actual, plain, rtol=1e-5, atol=1e-5)
        chex.assert_trees_all_close(actual_gradient, plain_gradient, rtol=1e-4, atol=1e-4)
