"""Vision transformers out of a folder: colours become grey, positions another grid; or all that is wrong is named."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.errors import assert_fails
from unroll_jax.models import ViT
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.vit import interpolated, load_vit, start_from

DIM, HIDDEN, LAYERS, SIDE, CHANNELS, GRID = 16, 12, 2, 4, 3, 3
CONFIG = {
    "model_type": "vit",
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": HIDDEN,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": GRID * SIDE,
    "patch_size": SIDE,
    "num_channels": CHANNELS,
    "encoder_stride": SIDE,
    "qkv_bias": True,
}


def vit_tensors(prefix="vit.", *, decoder=True):
    """Of a transformer with the decoder of masked images, under names written out here by hand."""
    shapes = {
        f"{prefix}embeddings.cls_token": (1, 1, DIM),
        f"{prefix}embeddings.mask_token": (1, 1, DIM),
        f"{prefix}embeddings.position_embeddings": (1, GRID**2 + 1, DIM),
        f"{prefix}embeddings.patch_embeddings.projection.weight": (DIM, CHANNELS, SIDE, SIDE),
        f"{prefix}embeddings.patch_embeddings.projection.bias": (DIM,),
        f"{prefix}layernorm.weight": (DIM,),
        f"{prefix}layernorm.bias": (DIM,),
    }
    if decoder:
        shapes |= {"decoder.0.weight": (CHANNELS * SIDE**2, DIM, 1, 1), "decoder.0.bias": (CHANNELS * SIDE**2,)}
    for layer in range(LAYERS):
        stem = f"{prefix}encoder.layer.{layer}"
        for name in ("attention.query", "attention.key", "attention.value", "output.dense"):
            shapes |= {f"{stem}.attention.{name}.weight": (DIM, DIM), f"{stem}.attention.{name}.bias": (DIM,)}
        shapes |= {f"{stem}.intermediate.dense.weight": (HIDDEN, DIM), f"{stem}.intermediate.dense.bias": (HIDDEN,)}
        shapes |= {f"{stem}.output.dense.weight": (DIM, HIDDEN), f"{stem}.output.dense.bias": (DIM,)}
        for name in ("layernorm_before", "layernorm_after"):
            shapes |= {f"{stem}.{name}.weight": (DIM,), f"{stem}.{name}.bias": (DIM,)}
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write_vit(tmp_path):
    """Writes a transformer with other numbers in config.json (None takes one away) or other tensors."""

    def write(*, config=None, tensors=None):
        folder = tmp_path / "vit"
        folder.mkdir()
        values = {name: value for name, value in (CONFIG | (config or {})).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(values))
        save_file(vit_tensors() if tensors is None else tensors, folder / "model.safetensors")
        return folder

    return write


def load(folder, **options):
    return load_vit(str(folder), **({"grid": (GRID, GRID), "side": SIDE, "log": lambda line: None} | options))


def test_the_tensors_of_a_file_become_the_parameters(write_vit):
    pretrained, tensors = load(write_vit(), reading="linear"), vit_tensors()
    config, params = pretrained.config, pretrained.params
    assert (config.num_patches, config.pixels, config.dim, config.class_token) == (9, 16, DIM, True)
    assert (config.num_layers, config.num_heads, config.hidden_dim, config.norm_epsilon) == (2, 2, HIDDEN, 1e-12)
    shapes = jax.eval_shape(ViT(config).init, jax.random.key(0), jnp.ones((9, 16)))["params"]
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes)
    embeddings = params["embeddings"]
    positions = tensors["vit.embeddings.position_embeddings"][0]
    np.testing.assert_allclose(embeddings["position"], positions, rtol=1e-6)  # the same grid
    np.testing.assert_array_equal(embeddings["class_token"], tensors["vit.embeddings.cls_token"][0, 0])
    # A grey patch in every colour, row by row: pixel 6 is that of row 1 and column 2.
    weight = tensors["vit.embeddings.patch_embeddings.projection.weight"]
    np.testing.assert_allclose(embeddings["patch"]["kernel"][6], weight[:, :, 1, 2].sum(axis=1), rtol=1e-5)
    weights = jax.tree.map(lambda leaf: leaf[1], params["layers"])
    stem = "vit.encoder.layer.1."
    value = weights["query_key_value"]["kernel"][:, -DIM:]
    np.testing.assert_array_equal(value, tensors[f"{stem}attention.attention.value.weight"].T)
    np.testing.assert_array_equal(weights["output"]["kernel"], tensors[f"{stem}output.dense.weight"].T)
    np.testing.assert_array_equal(weights["attention_norm"]["scale"], tensors[f"{stem}layernorm_before.weight"])
    np.testing.assert_array_equal(weights["output_norm"]["bias"], tensors[f"{stem}layernorm_after.bias"])
    readout = params["readout"]
    np.testing.assert_array_equal(readout["norm"]["bias"], tensors["vit.layernorm.bias"])
    decoder = tensors["decoder.0.weight"][:, :, 0, 0].reshape(3, 16, DIM)
    np.testing.assert_allclose(readout["pixels"]["kernel"][:, 6], decoder[:, 6].mean(axis=0), rtol=1e-5, atol=1e-6)
    bias = tensors["decoder.0.bias"].reshape(3, 16).mean(axis=0)
    np.testing.assert_allclose(readout["pixels"]["bias"], bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("reading", "parts"), [("state", None), ("linear", ["norm"])])
def test_a_bare_transformer_is_read_and_the_rest_is_drawn(write_vit, reading, parts):
    pretrained, tensors = load(write_vit(tensors=vit_tensors("", decoder=False)), reading=reading), vit_tensors()
    assert ("readout" in pretrained.params) == (parts is not None)
    model = ViT(pretrained.config)
    params = start_from(pretrained, model, jax.random.key(0))["params"]
    x = jnp.full((9, 16), 0.3)
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    np.testing.assert_array_equal(params["embeddings"]["class_token"], tensors["vit.embeddings.cls_token"][0, 0])
    if parts is not None:
        assert sorted(pretrained.params["readout"]) == parts
        np.testing.assert_array_equal(params["readout"]["norm"]["scale"], tensors["vit.layernorm.weight"])
        assert np.any(params["readout"]["pixels"]["kernel"])
    with pytest.raises(UserError, match=r"the transformer is ViTConfig.*the pretrained one ViTConfig"):
        start_from(pretrained, ViT(dataclasses.replace(pretrained.config, mean=0.0)), jax.random.key(0))


@pytest.mark.parametrize("grid", [(10, 10), (3, 5), (20, 14)])
def test_positions_are_interpolated_by_cubic_convolution(grid):
    """Point by point from the definition; linear slopes inside the grid are kept."""
    positions = np.random.default_rng(0).normal(size=(14, 14, 2))
    resized = interpolated(positions, grid)

    def kernel(t, a=-0.75):
        t = abs(t)
        if t <= 1.0:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2.0 else 0.0

    for place in ((0, 0), (1, grid[1] - 1), (grid[0] // 2, 1)):
        row, column = ((place[axis] + 0.5) * 14 / grid[axis] - 0.5 for axis in (0, 1))
        expected = np.zeros(2)
        for i in range(math.floor(row) - 1, math.floor(row) + 3):
            for j in range(math.floor(column) - 1, math.floor(column) + 3):
                nearest = positions[min(max(i, 0), 13), min(max(j, 0), 13)]
                expected += kernel(row - i) * kernel(column - j) * nearest
        np.testing.assert_allclose(resized[place], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(interpolated(positions, (14, 14)), positions, rtol=1e-6)


def test_all_tensors_that_do_not_fit_are_named_at_once(write_vit):
    tensors = vit_tensors()
    for gone in ("vit.embeddings.cls_token", "vit.encoder.layer.1.output.dense.weight"):
        del tensors[gone]
    tensors["vit.embeddings.position_embeddings"] = np.zeros((1, 9, DIM), np.float32)
    tensors["vit.encoder.layer.0.layernorm_before.bias"] = np.zeros(DIM, np.int8)
    tensors["vit.encoder.layer.7.output.dense.bias"] = np.zeros(DIM, np.float32)
    assert_fails(
        load,
        write_vit(tensors=tensors),
        "2 missing: vit.embeddings.cls_token, vit.encoder.layer.1.output.dense.weight",
        "1 of another shape: vit.embeddings.position_embeddings is (1, 9, 16), not (1, 10, 16)",
        "1 not of F16, BF16, F32, F64: vit.encoder.layer.0.layernorm_before.bias",
        "1 layer(s) beyond num_layers=2: vit.encoder.layer.7",
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, ["model_type='bert'; it must be one of vit"]),
        ({"hidden_size": None, "patch_size": None}, ["has no hidden_size, patch_size"]),
        ({"qkv_bias": False}, ["qkv_bias=False; only qkv_bias=True is supported"]),
        ({"patch_size": 8}, ["patch_size=8, but patches of frames are 4 pixels wide"]),
        ({"image_size": 2}, ["image_size=2 and num_channels=3"]),
        ({"num_hidden_layers": 10**9}, ["num_layers=1000000000, but", "tensors in all"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else ",".join(value),
)
def test_a_configuration_that_is_not_supported_is_named(write_vit, config, words):
    assert_fails(load, write_vit(config=config), *words)
