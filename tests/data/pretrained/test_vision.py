"""Pretrained vision transformers: parity with `transformers`, and errors of one
line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import save_file

from tests.data.conftest import drawn_tensors
from tests.errors import one_line
from tests.train.commands import quiet
from unroll_jax.models import ViT
from unroll_jax.train.data.pretrained.vision import load_vit

pytestmark = pytest.mark.xdist_group("torch")
SIDE, WIDTH = 4, 12  # of a patch and of an image
CONFIG = {
    "model_type": "vit",
    "hidden_size": 3 * SIDE**2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": WIDTH,
    "patch_size": SIDE,
}
PARTS = {
    "attention.attention.query": "ww",
    "attention.attention.key": "ww",
    "attention.attention.value": "ww",
    "attention.output.dense": "ww",
    "layernorm_before": "w",
    "layernorm_after": "w",
    "intermediate.dense": "hw",
    "output.dense": "wh",
}


def tensors(width=48, hidden=40, *, side=SIDE, positions=10, layers=2):
    shapes = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, positions, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, side, side),
        "embeddings.patch_embeddings.projection.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
    }
    sizes = {"w": width, "h": hidden}
    for layer in range(layers):
        for name, letters in PARTS.items():
            shape = tuple(sizes[letter] for letter in letters)
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
    return drawn_tensors(shapes, scale=0.02)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), tmp_path / "model.safetensors")
    return tmp_path


def patches_of(images):
    """(batch, channels, height, width) to patches, row by row, channels first."""
    batch, channels, height, width = images.shape
    split = images.reshape(
        batch, channels, height // SIDE, SIDE, width // SIDE, SIDE
    ).transpose(0, 2, 4, 1, 3, 5)
    return split.reshape(batch, -1, channels * SIDE**2)


def read(folder, **options):
    return load_vit(str(folder), jax.random.key(0), log=quiet, **options)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("case", ["states", "head", "grey", "linear"])
def test_states_of_all_layers_are_those_of_transformers(case, tmp_path, oracles):
    torch, transformers = oracles
    torch.manual_seed(0)
    width = 32 if case == "linear" else 48  # "state" has a width of pixels
    config = transformers.ViTConfig(
        **CONFIG | {"hidden_size": width}, layer_norm_eps=1e-3
    )
    with_head = case == "head"
    kind = "ViTForImageClassification" if with_head else "ViTModel"
    theirs = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path)
    channels = 1 if case == "grey" else 3
    images = np.random.default_rng(1).random((2, channels, WIDTH, WIDTH), np.float32)
    pixels = np.broadcast_to((images - 0.5) / 0.5, (2, 3, WIDTH, WIDTH)).copy()
    with torch.no_grad():
        outputs = (theirs.vit if with_head else theirs)(
            torch.tensor(pixels), output_hidden_states=True
        )
    reading = "linear" if case == "linear" else "state"
    pretrained = read(tmp_path, grey=case == "grey", reading=reading)
    model = ViT(pretrained.config)
    patches = jnp.asarray(patches_of(images))
    ours = jax.jit(model.apply)({"params": pretrained.params}, patches)
    ours = (np.asarray(ours) - 0.5) / 0.5
    if case == "linear":
        # the readout normalises the last layer's state as the whole model does
        kernel = np.asarray(pretrained.params["readout"]["pixels"]["kernel"])
        expected = outputs.last_hidden_state.numpy()[:, 1:] @ kernel
        assert_allclose(ours[-1], expected, rtol=0, atol=1e-5)
        return
    states = np.stack([state.numpy()[:, 1:] for state in outputs.hidden_states])
    # of three colours the mean is read
    states = states.reshape(*states.shape[:-1], -1, channels * SIDE**2).mean(-2)
    assert_allclose(ours, states, rtol=0, atol=1e-5)


def test_tensors_are_the_parameters_and_a_processor_has_levels(folder):
    levels = {"image_mean": [0.25] * 3, "image_std": [0.125] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(levels))
    config, params = read(folder, reading="linear")
    assert (config.mean, config.std, config.num_patches) == (0.25, 0.125, 9)
    stored = tensors()
    name = "encoder.layer.1.attention.attention.key.weight"
    kernel = params["layers"]["query_key_value"]["kernel"]
    assert_array_equal(kernel[1, :, 48:96], stored[name].T)
    assert_array_equal(params["readout"]["norm"]["bias"], stored["layernorm.bias"])
    weight = stored["embeddings.patch_embeddings.projection.weight"]
    kernel = params["embeddings"]["patch"]["kernel"]
    # pixel (1, 2) of channel 2
    assert_array_equal(kernel[2 * 16 + 1 * 4 + 2], weight[:, 2, 1, 2])


def change(folder, **values):
    (folder / "config.json").write_text(json.dumps(CONFIG | values))


def write_levels(folder):
    levels = {"image_mean": [0.485, 0.456, 0.406]}
    (folder / "preprocessor_config.json").write_text(json.dumps(levels))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: change(folder, qkv_bias=False), "qkv_bias=False"),
        (lambda folder: change(folder, image_size=16), "position_embeddings is"),
        (write_levels, "only equal numbers"),
    ],
)
def test_folders_that_do_not_fit_are_errors_of_one_line(folder, damage, message):
    damage(folder)
    with one_line(message):
        read(folder)
