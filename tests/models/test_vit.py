"""The vision transformer: its outputs, its initial layers, and masked patches, which
change nothing."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64, nightly
from tests.models import decoder_reference, encoder_reference
from tests.models.drawing import drawn, float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.models import ViT, ViTConfig
from unroll_jax.models.vit_parts import READINGS

SMALL = ViTConfig(
    num_patches=5, pixels=4, dim=8, num_layers=3, num_heads=2, hidden_dim=12
)
CASES = {
    reading: dataclasses.replace(SMALL, reading=reading, mean=0.4, std=0.3)
    for reading in READINGS
}
CASES["state"] = dataclasses.replace(
    CASES["state"], class_token=True, activation="gelu_tanh", norm_epsilon=1e-12
)
X = jax.ShapeDtypeStruct((5, 4), jnp.float32)


def frames(*batch, seed=1, dtype=jnp.float32):
    return jax_array(0.5 + 0.2 * gaussian(*batch, 5, 4, seed=seed), dtype)


def random_params(model, seed=0):
    return drawn(model, X, scale=0.4, seed=seed)


def reference_outputs(params, x, config):
    """Reconstructions of layers 0..L of one frame, in float64 NumPy, from the
    equations of `ViTConfig`."""
    params = float64(params)["params"]
    state = encoder_reference.dense(
        (x - config.mean) / config.std, params["embeddings"]["patch"]
    )
    if config.class_token:
        state = np.concatenate([params["embeddings"]["class_token"][None], state])
    states = [state + params["embeddings"]["position"]]
    for place in range(config.num_layers):
        layer_params = decoder_reference.of_layer(params["layers"], place)
        states.append(
            encoder_reference.layer_norm_first(layer_params, states[-1], config)
        )
    states = np.stack(states)[:, int(config.class_token) :]
    if config.reading == "state":
        colours = np.split(states, config.dim // config.pixels, axis=-1)
        return config.mean + config.std * sum(colours) / len(colours)
    readout = params["readout"]
    normed = encoder_reference.layer_norm(states, readout["norm"], config.norm_epsilon)
    read = config.std * encoder_reference.dense(normed, readout["pixels"])
    return read + (x if config.reading == "residual" else config.mean)


@in_float64
# which is in test_every_model.py
@pytest.mark.parametrize("case", [case for case in CASES if case != "residual"])
def test_all_outputs_equal_the_reference(case):
    config = CASES[case]
    model = ViT(config, param_dtype=jnp.float64)
    x = frames(dtype=jnp.float64)
    params = random_params(model)
    actual = compiled(model.apply)(params, x)
    assert_allclose(
        actual, reference_outputs(params, np.asarray(x), config), rtol=1e-11, atol=1e-12
    )


@nightly
@pytest.mark.parametrize("reading", ["residual", "state"])
def test_layer_0_starts_as_the_noisy_input(
    reading,
):
    model = ViT(
        dataclasses.replace(SMALL, reading=reading, num_layers=2, class_token=True),
        unroll=1,
    )
    x = frames(2)
    outputs, params = compiled(lambda key: model.init_with_output(key, x))(
        jax.random.key(0)
    )
    kernels = params["params"]["layers"]["hidden"]["kernel"]
    assert_allclose(outputs[0], x, atol=1e-6)
    assert not np.any(kernels[0] == kernels[1])
    assert_allclose(np.std(kernels), 0.02, rtol=0.15)


@in_float64
def test_masked_patches_change_neither_outputs_nor_gradients_of_the_others():
    """Behind a class token, which is never masked."""
    model = ViT(CASES["state"], param_dtype=jnp.float64)
    x = np.asarray(frames(dtype=jnp.float64))
    params = random_params(model)
    mask = np.array([True, False, True, True, False])

    def loss(params, x):
        outputs = model.apply(params, x, jnp.asarray(mask))[:, mask]
        return jnp.sum(jnp.sin(outputs)), outputs

    run = compiled(jax.value_and_grad(loss, has_aux=True))
    (_, outputs), gradient = run(params, x)
    (_, others), other_gradient = run(params, np.where(mask[:, None], x, 7.0))
    assert_array_equal(others, outputs)
    # The embedding of a masked patch and its position reach nothing that is read.
    chex.assert_trees_all_close(other_gradient, gradient, rtol=1e-12, atol=1e-12)
    # The outputs equal a frame's without the masked patches, with the class token
    # there.
    tree = float64(params)
    tree["params"]["embeddings"]["position"] = tree["params"]["embeddings"]["position"][
        np.concatenate([[True], mask])
    ]
    assert_allclose(
        outputs, reference_outputs(tree, x[mask], model.config), rtol=1e-11, atol=1e-12
    )
