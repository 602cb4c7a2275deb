"""Parity of vision transformers with `transformers`, which the same folders are read by: every layer."""

import jax
import numpy as np
import pytest

from unroll_jax.models import ViT
from unroll_jax.train.data.pretrained.vit import load_vit, start_from
from unroll_jax.train.data.video import patch_sequences

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.slow]  # torch takes seconds to import

SIDE = 4
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
CASES = {
    "ViTModel": ({}, (5, 5)),
    "ViTModel-interpolated": ({"num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6}, (3, 4)),
    "ViTForImageClassification-interpolated": ({}, (7, 6)),
}


def written(name, options, folder, torch, transformers):
    """A random model of `transformers`, away from its initial values, written to a folder."""
    torch.manual_seed(0)
    sizes = {**SIZES, "image_size": 5 * SIDE, "patch_size": SIDE, "encoder_stride": SIDE}
    model = getattr(transformers, name)(transformers.ViTConfig(**sizes | options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


def grey_frames(grid, channels, torch):
    """Two frames: our patches, pixels in [0, 1], and the same as a normalised picture in every colour."""
    frames = np.random.default_rng(0).random((2, grid[0] * SIDE, grid[1] * SIDE), np.float32)
    pixels = torch.tensor((frames - 0.5) / 0.5)[:, None].expand(-1, channels, -1, -1)
    return patch_sequences(frames, side=SIDE).swapaxes(0, 1), pixels


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_are_those_of_transformers(case, tmp_path, oracles):
    """States as wide as patches are read as they are; the class token's reach the others' through attention."""
    torch, (options, grid) = oracles[0], CASES[case]
    theirs = written(case.split("-")[0], options, tmp_path, *oracles)
    x, pixels = grey_frames(grid, theirs.config.num_channels, torch)
    with torch.no_grad():
        expected = theirs(pixels, output_hidden_states=True, interpolate_pos_encoding=grid != (5, 5))
    states = np.stack([state.numpy() for state in expected.hidden_states])
    pretrained = load_vit(str(tmp_path), grid=grid, side=SIDE, log=lambda line: None)
    model = ViT(pretrained.config)
    outputs = jax.jit(model.apply)(start_from(pretrained, model, jax.random.key(0)), x)
    # The reading puts states on the scale of pixels.
    ours = (np.asarray(outputs) - 0.5) / 0.5
    assert ours.shape == (4, 2, grid[0] * grid[1], 16)
    if isinstance(theirs, oracles[1].ViTModel):  # whose last hidden state is not normalised, unlike its output
        assert len(states) == 4
    np.testing.assert_allclose(ours, states[:, :, 1:], rtol=0, atol=1e-5)


@pytest.mark.oracle("torch", "transformers")
def test_reconstructions_of_masked_image_models_are_those_of_transformers(tmp_path, oracles):
    """Of grey pictures, averaged over the colours."""
    torch, transformers = oracles
    theirs = written("ViTForMaskedImageModeling", {"hidden_size": 24}, tmp_path, torch, transformers)
    x, pixels = grey_frames((4, 4), 3, torch)
    with torch.no_grad():
        expected = theirs(pixels, interpolate_pos_encoding=True).reconstruction.mean(dim=1).numpy()
    pretrained = load_vit(str(tmp_path), grid=(4, 4), side=SIDE, reading="linear", log=lambda line: None)
    model = ViT(pretrained.config)
    outputs = jax.jit(model.apply)(start_from(pretrained, model, jax.random.key(0)), x)
    expected = patch_sequences(0.5 + 0.5 * expected, side=SIDE).swapaxes(0, 1)
    np.testing.assert_allclose(np.asarray(outputs)[-1], expected, rtol=0, atol=1e-5)
