"""The vision transformer of a configuration: drawn, from pretrained weights, and built again without them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np

from tests.data.pretrained.test_vit import GRID, SIDE, write_vit
from unroll_jax.train.config.video import ViTOptions
from unroll_jax.train.tasks.video_models import (
    Computing,
    Patches,
    build_video_model,
    load_pretrained_vit,
    vit_from_spec,
)

__all__ = ["write_vit"]  # a fixture

SIZES, COMPUTING = Patches(1, GRID**2, SIDE**2), Computing(jnp.float32, "none", None)


def test_the_default_is_a_small_transformer_of_whole_frames_whose_states_are_patches():
    model = build_video_model(ViTOptions(), Patches(1, 100, 256), COMPUTING._replace(remat="dots"), None)
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    assert (model.num_layers, model.module.config.reading, model.module.config.class_token) == (3, "state", False)
    assert shapes["embeddings"]["patch"]["kernel"].shape == (256, 256)
    assert shapes["layers"]["hidden"]["kernel"].shape == (3, 256, 512)
    assert shapes["readout"] == {}


def test_pretrained_weights_give_the_sizes_and_are_what_is_started_from(write_vit):
    options = ViTOptions(pretrained=str(write_vit()), mean=0.4)
    given = load_pretrained_vit(options, grid=(GRID, GRID), side=SIDE, log=lambda line: None)
    model = build_video_model(options, SIZES, COMPUTING, given)
    assert (model.num_layers, model.module.config.dim, model.module.config.mean) == (2, 16, 0.4)
    params = model.init(jax.random.key(0))["params"]
    np.testing.assert_array_equal(params["embeddings"]["position"], given.params["embeddings"]["position"])

    shape = dataclasses.asdict(given.config)
    again = build_video_model(options, SIZES, COMPUTING, vit_from_spec(json.loads(json.dumps(shape))))
    assert again.module == model.module
    shapes = jax.eval_shape(again.init, jax.random.key(0))["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
