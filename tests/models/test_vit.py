"""The vision transformer: what it computes, what its layers start as, and that masked patches are nothing to it."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models import encoder_reference
from tests.models.drawing import drawn, float64, normal
from unroll_jax.models import ViT, ViTConfig
from unroll_jax.models.vit_parts import READINGS
from unroll_jax.perturbations import in_turn, layer_noise, lost_layer

SMALL = ViTConfig(num_patches=5, pixels=4, dim=8, num_layers=3, num_heads=2, hidden_dim=12)
CASES = {reading: dataclasses.replace(SMALL, reading=reading, mean=0.4, std=0.3) for reading in READINGS}
CASES["state"] = dataclasses.replace(CASES["state"], class_token=True, activation="gelu_tanh", norm_epsilon=1e-12)
X = jax.ShapeDtypeStruct((5, 4), jnp.float32)


def frames(*batch, seed=1, dtype=jnp.float32):
    return 0.5 + 0.2 * normal(*batch, 5, 4, seed=seed, dtype=dtype)


def random_params(model, seed=0):
    return drawn(model, X, scale=0.4, seed=seed)


def reference_outputs(params, x, config):
    """Reconstructions of layers 0..L of one frame, in float64 NumPy, from the equations of `ViTConfig`."""
    params = float64(params)["params"]
    shifted = (x - config.mean) / config.std
    state = encoder_reference.dense(shifted, params["embeddings"]["patch"])
    if config.class_token:
        state = np.concatenate([params["embeddings"]["class_token"][None], state])
    states = [state + params["embeddings"]["position"]]
    for place in range(config.num_layers):
        layer_params = encoder_reference.of_layer(params["layers"], place)
        states.append(encoder_reference.layer_norm_first(layer_params, states[-1], config))
    states = np.stack(states)[:, int(config.class_token) :]
    if config.reading == "state":
        colours = np.split(states, config.dim // config.pixels, axis=-1)
        return config.mean + config.std * sum(colours) / len(colours)
    readout = params["readout"]
    normed = encoder_reference.layer_norm(states, readout["norm"], config.norm_epsilon)
    read = config.std * encoder_reference.dense(normed, readout["pixels"])
    return read + (x if config.reading == "residual" else config.mean)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES)
def test_all_outputs_equal_the_reference(case):
    config = CASES[case]
    model, x = ViT(config, param_dtype=jnp.float64), frames(dtype=jnp.float64)
    params = random_params(model)
    actual = jax.jit(model.apply)(params, x)
    np.testing.assert_allclose(actual, reference_outputs(params, np.asarray(x), config), rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    config = CASES["residual"]
    model = ViT(config, param_dtype=jnp.float64, remat=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    x = frames(dtype=jnp.float64)
    params, direction = (random_params(model, seed) for seed in (0, 1))
    weight = np.random.default_rng(0).normal(size=(4, 5, 4))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, x))))(params)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: leaf + distance * d, float64(params), float64(direction))
        return np.sum(weight * reference_outputs(moved, np.asarray(x), config))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("reading", "colours"), [("residual", 2), ("state", 2)])
def test_layer_0_starts_as_the_noisy_input(reading, colours):
    config = dataclasses.replace(SMALL, reading=reading, dim=4 * colours, num_layers=1, class_token=True)
    model, x = ViT(config), frames(2)
    outputs = jax.jit(lambda key: model.apply(model.init(key, x), x))(jax.random.key(0))
    np.testing.assert_allclose(outputs[0], x, atol=1e-6)
    if reading == "residual":  # so do all layers
        np.testing.assert_array_equal(outputs[1], x)


@pytest.mark.slow
def test_leading_axes_are_batches_and_record_sees_every_reconstruction():
    model, x, clean = ViT(CASES["state"]), frames(2, 3), frames(2, 3, seed=2)
    params, seen = random_params(model), []

    @jax.jit
    def run(params):
        record = lambda y: seen.append(y.dtype) or jnp.sum((y - clean) ** 2, axis=(-2, -1))  # noqa: E731
        return model.apply(params, x), model.apply(params, x, record=record)

    outputs, recorded = run(params)
    assert outputs.shape == (4, 2, 3, 5, 4)
    assert set(seen) == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(recorded, np.sum((np.asarray(outputs) - clean) ** 2, axis=(-2, -1)), rtol=1e-5)
    for place in np.ndindex(2, 3):
        expected = reference_outputs(params, np.asarray(x, np.float64)[place], model.config)
        np.testing.assert_allclose(np.asarray(outputs)[(slice(None), *place)], expected, rtol=1e-4, atol=1e-4)


def test_parameters_are_stacked_by_layer_and_drawn_for_each():
    config = dataclasses.replace(SMALL, reading="residual", class_token=True)
    params = jax.jit(ViT(config).init)(jax.random.key(0), frames())["params"]
    assert jax.tree.map(jnp.shape, params["embeddings"]) == {
        "patch": {"kernel": (4, 8), "bias": (8,)},
        "class_token": (8,),
        "position": (6, 8),
    }
    assert params["layers"]["query_key_value"]["kernel"].shape == (3, 8, 24)
    assert params["readout"]["pixels"]["kernel"].shape == (8, 4)
    kernels = np.asarray(params["layers"]["hidden"]["kernel"])
    assert not np.any(kernels[0] == kernels[1])
    np.testing.assert_allclose(np.std(kernels), 0.02, rtol=0.15)


@pytest.mark.usefixtures("x64")
def test_masked_patches_change_neither_outputs_nor_gradients_of_the_others():
    """Behind a class token, which is never masked."""
    model, x = ViT(CASES["state"], param_dtype=jnp.float64), np.asarray(frames(dtype=jnp.float64))
    params, mask = random_params(model), np.array([True, False, True, True, False])

    def loss(params, x):
        outputs = model.apply(params, x, jnp.asarray(mask))[:, mask]
        return jnp.sum(jnp.sin(outputs)), outputs

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, outputs), gradient = run(params, x)
    (_, others), other_gradient = run(params, np.where(mask[:, None], x, 7.0))
    np.testing.assert_array_equal(others, outputs)
    # The embedding of a masked patch and its position reach nothing that is read.
    chex.assert_trees_all_close(other_gradient, gradient, rtol=1e-12, atol=1e-12)
    # They are those of a frame that lacks the masked patches, with the class token there.
    tree = float64(params)
    tree["params"]["embeddings"]["position"] = tree["params"]["embeddings"]["position"][np.concatenate([[True], mask])]
    np.testing.assert_allclose(outputs, reference_outputs(tree, x[mask], model.config), rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_layers_are_perturbed_before_they_are_read():
    model, x = ViT(CASES["linear"]), frames(2)
    params = random_params(model)
    perturb = in_turn(lost_layer(2), layer_noise(jax.random.key(3), 0.0))
    outputs = np.asarray(jax.jit(lambda params: model.apply(params, x, perturb=perturb))(params))
    np.testing.assert_array_equal(outputs[2], outputs[1])
    without = jax.tree.map(lambda leaf: leaf[jnp.array([0, 2])], params["params"]["layers"])
    shallow = ViT(dataclasses.replace(CASES["linear"], num_layers=2))
    expected = jax.jit(shallow.apply)({"params": params["params"] | {"layers": without}}, x)
    np.testing.assert_allclose(outputs[[0, 1, 3]], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_layers_keep_float32_parameters_and_outputs():
    narrow, wide, x = ViT(SMALL, dtype=jnp.bfloat16), ViT(SMALL), frames(2)
    params = drawn(narrow, X, scale=0.2)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    outputs, expected = jax.jit(lambda params: (narrow.apply(params, x), wide.apply(params, x)))(params)
    assert outputs.dtype == jnp.float32
    np.testing.assert_allclose(outputs, expected, atol=0.05)
    assert np.any(np.asarray(outputs) != np.asarray(expected))  # it did compute in bfloat16


@pytest.mark.slow
def test_remat_saves_memory():
    config = ViTConfig(num_patches=32, pixels=16, dim=16, num_layers=12, num_heads=2, hidden_dim=32)
    x, memory = jnp.ones((8, 32, 16)), []
    params = drawn(ViT(config), x, scale=0.2)
    for remat in (False, True):
        model = ViT(config, remat=remat, unroll=1)
        loss = lambda params: jnp.sum(model.apply(params, x, record=lambda y: jnp.sum(jnp.sin(y))))  # noqa: B023, E731
        memory.append(jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes)
    assert memory[1] < 0.6 * memory[0]


def test_the_program_does_not_grow_with_depth():
    sizes = []
    for depth in (2, 12):
        model = ViT(dataclasses.replace(SMALL, num_layers=depth))
        params = jax.eval_shape(model.init, jax.random.key(0), X)
        sizes.append(str(jax.make_jaxpr(jax.grad(lambda p: jnp.sum(model.apply(p, frames()))))(params)).count(" = "))  # noqa: B023
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_patches": 0}, "num_patches must be at least 1, got 0"),
        ({"num_heads": 3}, "num_heads must divide dim=8, got 3"),
        ({"activation": "mish"}, "activation must be one of .*got 'mish'"),
        ({"reading": "decoder"}, "reading must be one of .*'linear'.*, got 'decoder'"),
        ({"reading": "state", "dim": 6}, "dim must be a multiple of pixels=4 with .*, got 6; or take"),
        ({"std": 0.0}, "std must be positive and finite, got 0.0"),
        ({"mean": float("nan")}, "mean must be finite, got nan"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_configuration_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"x": np.ones((2, 6, 4), np.float32)}, ValueError, r"\(\*batch, 5, 4\), got shape \(2, 6, 4\)"),
        ({"x": np.ones((4,), np.float32)}, ValueError, r"got shape \(4,\)"),
        ({"x": np.ones((5, 4), np.uint8)}, TypeError, "x must have a floating dtype, got uint8; cast it first"),
        ({"mask": np.ones(5, np.int32)}, TypeError, "mask must be boolean, got int32; cast it first"),
        ({"mask": np.ones(6, bool)}, ValueError, r"mask must have shape \(5,\), as x has, got \(6,\)"),
    ],
    ids=["number", "rank", "integers", "mask dtype", "mask shape"],
)
def test_a_bad_argument_is_named(inputs, error, message):
    call = {"x": np.ones((5, 4), np.float32)} | inputs
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda call: ViT(SMALL).init(jax.random.key(0), **call), call)
