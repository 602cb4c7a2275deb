"""The unrolled transformer as a Flax module."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from tests.models.drawing import drawn, normal
from unroll_jax.energies import UnrolledLayerParams, unrolled_layer
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


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    model, x = random_model(param_dtype=jnp.float64), normal(TOKENS, DIM)
    params, direction = (drawn(model, x, seed=seed) for seed in (0, 1))
    weight = np.random.default_rng(0).normal(size=(LAYERS + 1, TOKENS, DIM))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, x))))(params)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: np.asarray(leaf) + distance * np.asarray(d), params, direction)
        return np.sum(weight * reference_outputs(moved, x))

    expected = reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5)
    np.testing.assert_allclose(along, expected, rtol=1e-8)


def test_leading_axes_are_batches():
    model, x = random_model(), normal(2, 3, TOKENS, DIM, dtype=jnp.float32)
    params = drawn(model, X)
    outputs = jax.jit(model.apply)(params, x)
    assert outputs.shape == (LAYERS + 1, 2, 3, TOKENS, DIM)
    for place in np.ndindex(2, 3):
        actual, expected = np.asarray(outputs)[(slice(None), *place)], reference_outputs(params, np.asarray(x)[place])
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


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
    for token in range(TOKENS):
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


def test_the_model_is_its_layers_unrolled():
    model, x = random_model(), normal(TOKENS, DIM, dtype=jnp.float32)
    step = lambda layer, y, _: unrolled_layer(layer, y)  # noqa: E731

    @jax.jit
    def both(params):
        last, _ = uj.unroll(step, params["params"]["layers"], x, num_layers=LAYERS, tied=False, record=None)
        return model.apply(params, x)[-1], last

    chex.assert_trees_all_close(*both(drawn(model, X)), rtol=1e-6)


def test_record_is_evaluated_at_every_layer_in_the_place_of_its_output():
    model, x, target = random_model(), *(normal(2, TOKENS, DIM, seed=seed, dtype=jnp.float32) for seed in (1, 2))
    loss = lambda y: 0.5 * jnp.mean(jnp.sum((target - y) ** 2, axis=-1))  # noqa: E731
    record = lambda y: {"loss": loss(y), "largest": jnp.max(y)}  # noqa: E731
    run = jax.jit(lambda params: (model.apply(params, x, record=record), model.apply(params, x)))
    recorded, outputs = jax.tree.map(np.asarray, run(drawn(model, X)))
    losses = [0.5 * np.mean(np.sum((np.asarray(target) - y) ** 2, axis=-1)) for y in outputs]
    np.testing.assert_allclose(recorded["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(recorded["largest"], np.max(outputs, axis=(1, 2, 3)), rtol=1e-6)


def test_bfloat16_layers_keep_float32_parameters_outputs_and_records():
    x, seen = jnp.asarray(np.random.default_rng(0).random((2, TOKENS, DIM)), jnp.float32), []
    narrow, wide = UnrolledTransformer(DIM, LAYERS, dtype=jnp.bfloat16), UnrolledTransformer(DIM, LAYERS)
    params = jax.jit(narrow.init)(jax.random.key(0), x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    @jax.jit
    def run(params):
        gradient = jax.grad(lambda params: jnp.sum(narrow.apply(params, x)))(params)
        narrow.apply(params, x, record=lambda y: seen.append(y.dtype))
        return narrow.apply(params, x), wide.apply(params, x), gradient

    outputs, expected, gradient = run(params)
    assert outputs.dtype == jnp.float32
    chex.assert_trees_all_close(outputs, expected, atol=0.03)
    assert np.any(np.asarray(outputs)[1:] != np.asarray(expected)[1:])  # it did compute in bfloat16
    assert set(seen) == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_bfloat16_inputs_compute_in_bfloat16_and_read_out_in_float32():
    model, x = UnrolledTransformer(DIM, LAYERS), normal(TOKENS, DIM, dtype=jnp.bfloat16)
    outputs = jax.jit(model.apply)(drawn(model, x), x)
    assert outputs.dtype == jnp.float32
    np.testing.assert_array_equal(outputs, np.asarray(outputs, jnp.bfloat16))  # no digits beyond bfloat16's


def test_remat_keeps_the_gradients_and_saves_memory():
    x, gradients, memory = jnp.asarray(np.random.default_rng(0).random((8, 32, 16)), jnp.float32), [], []
    params = jax.jit(UnrolledTransformer(16, 24).init)(jax.random.key(0), x)
    for remat in (False, True):
        model = UnrolledTransformer(16, 24, remat=remat)
        loss = lambda params: jnp.sum(model.apply(params, x, record=lambda y: jnp.sum(y**2)))  # noqa: E731, B023
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients.append(compiled(params))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    chex.assert_trees_all_close(*gradients, rtol=1e-4, atol=1e-5)
    assert memory[1] < 0.6 * memory[0]


def test_the_program_does_not_grow_with_depth():
    x, sizes = jnp.asarray(np.ones((TOKENS, DIM), np.float32)), []
    for depth in (2, 12):
        model = UnrolledTransformer(DIM, depth)
        params = jax.eval_shape(model.init, jax.random.key(0), x)
        loss = lambda params: jnp.sum(model.apply(params, x))  # noqa: E731, B023
        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    assert sizes[0] == sizes[1]


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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.ones((TOKENS,), np.int32), TypeError, "mask must be boolean, got int32"),
        (np.ones((TOKENS + 1,), bool), ValueError, r"mask must have shape \(5,\), as x has, got \(6,\)"),
    ],
    ids=["dtype", "shape"],
)
def test_a_mask_that_does_not_fit_is_refused(mask, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(UnrolledTransformer(DIM, 1).init, jax.random.key(0), X, mask)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (UnrolledTransformer(DIM, 0), X, ValueError, "num_layers must be at least 1, got 0"),
        (UnrolledTransformer(DIM, 1, rank=0), X, ValueError, "rank must be at least 1, got 0"),
        (UnrolledTransformer(DIM, 1, rank=9), X, ValueError, r"dct .* got shape \(1, 9, 4\)"),
        (UnrolledTransformer(DIM, 1), np.ones((TOKENS, 3), np.float32), ValueError, r"n, dim=4\), got shape \(5, 3\)"),
        (UnrolledTransformer(DIM, 1), np.ones(DIM, np.float32), ValueError, r"n, dim=4\), got shape \(4,\)"),
        (UnrolledTransformer(DIM, 1), np.ones((TOKENS, DIM), np.uint8), TypeError, "floating dtype, got uint8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_argument_is_named(model, x, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(model.init, jax.random.key(0), x)
