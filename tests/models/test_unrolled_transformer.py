"""The unrolled transformer as a Flax module."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import UnrolledLayerParams, unrolled_layer
from unroll_jax.models import UnrolledTransformer

DIM, TOKENS, LAYERS = 4, 5, 3
NORMAL = nn.initializers.normal(0.5)


def random_model(**options):
    """Away from its initial values, where V is orthogonal and W, U are multiples of the identity."""
    settings = {"rank": 2, "V_init": NORMAL, "W_init": NORMAL, "U_init": NORMAL, **options}
    return UnrolledTransformer(DIM, LAYERS, **settings)


def reference_outputs(params, x):
    layers = [np.asarray(leaf, dtype=np.float64) for leaf in params["params"]["layers"]]
    outputs = [np.asarray(x, dtype=np.float64)]
    for index in range(LAYERS):
        outputs.append(reference.unrolled_layer(outputs[-1], *(leaf[index] for leaf in layers)))
    return np.stack(outputs)


@pytest.mark.usefixtures("x64")
def test_all_outputs_equal_the_reference(getkey):
    model, x = random_model(param_dtype=jnp.float64), jax.random.normal(getkey(), (TOKENS, DIM), jnp.float64)
    params = model.init(getkey(), x)
    np.testing.assert_allclose(model.apply(params, x), reference_outputs(params, x), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference(getkey):
    model, x = random_model(param_dtype=jnp.float64), jax.random.uniform(getkey(), (TOKENS, DIM), jnp.float64)
    params, direction = (model.init(getkey(), x) for _ in range(2))
    weight = np.random.default_rng(0).normal(size=(LAYERS + 1, TOKENS, DIM))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, x))))(params)
    along = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: np.asarray(leaf) + distance * np.asarray(d), params, direction)
        return np.sum(weight * reference_outputs(moved, x))

    expected = reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5)
    np.testing.assert_allclose(along, expected, rtol=1e-8)


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_leading_axes_are_batches(getkey, batch):
    model, x = random_model(), jax.random.normal(getkey(), (*batch, TOKENS, DIM))
    params = model.init(getkey(), x)
    outputs = model.apply(params, x)
    assert outputs.shape == (LAYERS + 1, *batch, TOKENS, DIM)
    for place in np.ndindex(*batch):
        found, expected = outputs[(slice(None), *place)], reference_outputs(params, x[place])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_parameters_are_stacked_by_layer_and_layer_0_is_the_input(getkey):
    model, x = random_model(), jax.random.normal(getkey(), (TOKENS, DIM))
    params = model.init(getkey(), x)
    shapes = UnrolledLayerParams(V=(LAYERS, 2, DIM), W=(LAYERS, DIM, DIM), U=(LAYERS, DIM, DIM))
    assert jax.tree.map(jnp.shape, params["params"]["layers"]) == shapes
    chex.assert_trees_all_equal(model.apply(params, x)[0], x)


def test_the_model_is_its_layers_unrolled(getkey):
    model, x = random_model(), jax.random.normal(getkey(), (TOKENS, DIM))
    params = model.init(getkey(), x)
    layers = params["params"]["layers"]
    step = lambda layer, y, _: unrolled_layer(layer, y)  # noqa: E731
    last, _ = uj.unroll(step, layers, x, num_layers=LAYERS, tied=False, record=None)
    chex.assert_trees_all_close(model.apply(params, x)[-1], last, rtol=1e-6)


def test_record_is_evaluated_at_every_layer_in_the_place_of_its_output(getkey):
    model, x = random_model(), jax.random.normal(getkey(), (2, TOKENS, DIM))
    params, target = model.init(getkey(), x), jax.random.normal(getkey(), (2, TOKENS, DIM))
    loss = lambda y: 0.5 * jnp.mean(jnp.sum((target - y) ** 2, axis=-1))  # noqa: E731
    recorded = model.apply(params, x, record=lambda y: {"loss": loss(y), "largest": jnp.max(y)})
    outputs = model.apply(params, x)
    chex.assert_trees_all_close(recorded["loss"], jnp.stack([loss(y) for y in outputs]), rtol=1e-5)
    chex.assert_trees_all_close(recorded["largest"], jnp.max(outputs, axis=(1, 2, 3)), rtol=1e-6)


def test_bfloat16_layers_keep_float32_parameters_outputs_and_records(getkey):
    x = jax.random.uniform(getkey(), (2, TOKENS, DIM))
    narrow, wide = UnrolledTransformer(DIM, LAYERS, dtype=jnp.bfloat16), UnrolledTransformer(DIM, LAYERS)
    params, seen = narrow.init(getkey(), x), []
    chex.assert_tree_all_finite(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    outputs = narrow.apply(params, x)
    assert outputs.dtype == jnp.float32
    chex.assert_trees_all_close(outputs, wide.apply(params, x), atol=0.03)
    assert jnp.any(outputs[1:] != wide.apply(params, x)[1:])  # it did compute in bfloat16
    narrow.apply(params, x, record=lambda y: seen.append(y.dtype))
    assert set(seen) == {jnp.dtype("float32")}
    gradient = jax.grad(lambda params: jnp.sum(narrow.apply(params, x)))(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_bfloat16_inputs_compute_in_bfloat16_and_read_out_in_float32(getkey):
    model, x = UnrolledTransformer(DIM, LAYERS), jax.random.uniform(getkey(), (TOKENS, DIM), jnp.bfloat16)
    assert model.apply(model.init(getkey(), x), x).dtype == jnp.float32


def test_remat_keeps_the_gradients_and_saves_memory(getkey):
    x, gradients, memory = jax.random.uniform(getkey(), (8, 32, 16)), [], []
    for remat in (False, True):
        model = UnrolledTransformer(16, 24, remat=remat)
        params = model.init(jax.random.key(0), x)
        loss = lambda params: jnp.sum(model.apply(params, x, record=lambda y: jnp.sum(y**2)))  # noqa: E731, B023
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients.append(compiled(params))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    chex.assert_trees_all_close(*gradients, rtol=1e-4, atol=1e-5)
    assert memory[1] < 0.6 * memory[0]


def test_the_program_does_not_grow_with_depth(getkey):
    x, sizes = jax.random.uniform(getkey(), (TOKENS, DIM)), []
    for depth in (2, 12):
        model = UnrolledTransformer(DIM, depth)
        params = jax.eval_shape(model.init, getkey(), x)
        loss = lambda params: jnp.sum(model.apply(params, x))  # noqa: E731, B023
        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_output_and_no_gradient_of_real_tokens(getkey, side):
    model, x = random_model(), jax.random.normal(getkey(), (2, TOKENS, DIM))
    padding = jnp.full((2, 3, DIM), 1e3)  # large, so that any leak is seen
    padded = jnp.concatenate([padding, x] if side == "left" else [x, padding], axis=1)
    mask = jnp.any(padded != 1e3, axis=-1)
    params, real = model.init(getkey(), x), slice(3, None) if side == "left" else slice(TOKENS)

    @jax.jit
    def both(params):
        short = lambda params: jnp.sum(jnp.sin(model.apply(params, x)))  # noqa: E731
        long = lambda params: jnp.sum(jnp.sin(model.apply(params, padded, mask)[:, :, real]))  # noqa: E731
        return (
            model.apply(params, x),
            model.apply(params, padded, mask)[:, :, real],
            jax.grad(short)(params),
            jax.grad(long)(params),
        )

    plain, found, plain_gradient, found_gradient = both(params)
    chex.assert_trees_all_close(found, plain, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(found_gradient, plain_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (jnp.ones((TOKENS,), jnp.int32), TypeError, "mask must be boolean, got int32"),
        (jnp.ones((TOKENS + 1,), bool), ValueError, r"mask must have shape \(5,\), as x says, got \(6,\)"),
    ],
    ids=["dtype", "shape"],
)
def test_a_mask_that_does_not_fit_is_refused(mask, error, message):
    with pytest.raises(error, match=message):
        UnrolledTransformer(DIM, 1).init(jax.random.key(0), jnp.ones((TOKENS, DIM)), mask)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (UnrolledTransformer(DIM, 0), jnp.ones((TOKENS, DIM)), ValueError, "num_layers must be at least 1, got 0"),
        (UnrolledTransformer(DIM, 1, rank=0), jnp.ones((TOKENS, DIM)), ValueError, "rank must be at least 1, got 0"),
        (UnrolledTransformer(DIM, 1, rank=9), jnp.ones((TOKENS, DIM)), ValueError, r"dct .* got shape \(1, 9, 4\)"),
        (UnrolledTransformer(DIM, 1), jnp.ones((TOKENS, 3)), ValueError, r"n, dim=4\), got shape \(5, 3\)"),
        (UnrolledTransformer(DIM, 1), jnp.ones(DIM), ValueError, r"n, dim=4\), got shape \(4,\)"),
        (UnrolledTransformer(DIM, 1), jnp.ones((TOKENS, DIM), jnp.uint8), TypeError, "floating dtype, got uint8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_argument_is_named(model, x, error, message):
    with pytest.raises(error, match=message):
        model.init(jax.random.key(0), x)
