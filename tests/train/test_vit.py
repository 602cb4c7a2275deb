"""The vision transformer of a configuration: drawn, from pretrained weights, and built again without them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np

from tests.data.pretrained.test_vit import GRID, SIDE, write_vit
from unroll_jax.models import ViTConfig
from unroll_jax.train.config.video import VideoViTConfig, ViTOptions
from unroll_jax.train.data.pretrained.vit import PretrainedViT
from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.tasks.video_models import build_video_model, load_pretrained_vit

__all__ = ["write_vit"]  # a fixture

SPEC = VideoSpec(1.0, num_tokens=1, token_dim=SIDE**2, frame_side=GRID * SIDE)


def model_of(options, spec=SPEC, vit=None, **fields):
    return build_video_model(VideoViTConfig(model=options, **fields), spec, vit, jnp.float32)


def test_the_default_is_a_small_transformer_of_whole_frames_whose_states_are_patches():
    model = model_of(ViTOptions(), VideoSpec(1.0), remat="dots")
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    assert (model.num_layers, model.module.config.reading, model.module.config.class_token) == (3, "state", False)
    assert shapes["embeddings"]["patch"]["kernel"].shape == (256, 256)
    assert shapes["layers"]["hidden"]["kernel"].shape == (3, 256, 512)
    assert shapes["readout"] == {}


def test_pretrained_weights_give_the_sizes_and_are_what_is_started_from(write_vit):
    options = ViTOptions(pretrained=str(write_vit()), mean=0.4)
    given = load_pretrained_vit(options, SPEC, lambda line: None)
    model = model_of(options, vit=given)
    assert (model.num_layers, model.module.config.dim, model.module.config.mean) == (2, 16, 0.4)
    params = model.init(jax.random.key(0))["params"]
    np.testing.assert_array_equal(params["embeddings"]["position"], given.params["embeddings"]["position"])

    shape = dataclasses.asdict(given.config)
    again = model_of(options, vit=PretrainedViT(ViTConfig(**json.loads(json.dumps(shape))), {}))
    assert again.module == model.module
    shapes = jax.eval_shape(again.init, jax.random.key(0))["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
