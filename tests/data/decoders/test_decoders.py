"""Decoders from folders: read as they are, or a one-line error."""

import functools
import json
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.decoders.conftest import llama_tensors
from tests.devices import on_eight_devices
from tests.errors import assert_fails
from unroll_jax.models import Decoder, DecoderConfig, RotaryScaling
from unroll_jax.train.data.pretrained.decoders import load_decoder

load = functools.partial(load_decoder, log=lambda line: None)
INDEX, NORM = "model.safetensors.index.json", "model.norm.weight"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
}
LLAMA3 |= {"original_max_position_embeddings": 16}


class State(NamedTuple):
    params: Any


def reads(folder):
    return load(str(folder))


@pytest.mark.parametrize("shards", [1, 3])
def test_the_tensors_of_a_folder_become_the_parameters(write_folder, shards):
    decoder, tensors = reads(write_folder(shards=shards)), llama_tensors()
    assert decoder.config == DecoderConfig(
        270, 8, 2, 4, 2, 12, max_positions=32, rotary_base=100.0, tied=False
    )
    shapes = jax.eval_shape(
        Decoder(decoder.config).init, jax.random.key(0), jnp.ones((1, 1), int)
    )["params"]
    chex.assert_trees_all_equal_shapes_and_dtypes(decoder.params, shapes)
    weights, stem = (
        jax.tree.map(lambda leaf: np.asarray(leaf)[1], decoder.params["layers"]),
        "model.layers.1.",
    )
    assert_array_equal(
        weights["key"]["kernel"], tensors[f"{stem}self_attn.k_proj.weight"].T
    )
    assert_array_equal(decoder.params["head"]["embedding"], tensors["lm_head.weight"])


@pytest.mark.parametrize(
    ("dtype", "cast"),
    [(np.float32, None), (ml_dtypes.bfloat16, None), (np.float16, "bfloat16")],
)
def test_tensors_of_several_dtypes_are_cast_to_the_named_one(write_folder, dtype, cast):
    tensors = llama_tensors(dtype)
    tensors[NORM] = tensors[NORM].astype(np.float32)
    params = load(str(write_folder(tensors=tensors)), dtype=cast).params
    dtypes = (params["layers"]["up"]["kernel"].dtype, params["norm"]["scale"].dtype)
    assert dtypes == (np.dtype(cast or dtype), np.dtype(cast or np.float32))
    assert_array_equal(
        params["embedding"], tensors["model.embed_tokens.weight"].astype(dtypes[0])
    )


SHARED_OUT = """
import jax, numpy as np
from tests.data.decoders.test_decoders import State, load
from unroll_jax.train.sharding import make_mesh
from unroll_jax.train.sharding import shardings

mesh = make_mesh("fsdp=4,tensor=2", batch_size=4)
shared = load(FOLDER, place=lambda shapes: shardings(State(shapes), mesh).params).params
alone = load(FOLDER).params
print(all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (shared, alone)), strict=True)))
print(shared["layers"]["up"]["kernel"].addressable_shards[0].data.shape)
"""


@pytest.mark.slow
def test_weights_are_the_same_however_many_devices_share_them_out(write_folder):
    """Matrices over both axes of the mesh. Heads of keys are as many as the axis of
    them."""
    assert on_eight_devices(f"FOLDER = {str(write_folder())!r}\n{SHARED_OUT}") == [
        "True",
        "(2, 2, 6)",
    ]


def test_the_older_name_of_scaled_rotary_embeddings_is_read(write_folder):
    config = reads(write_folder(config={"rope_scaling": LLAMA3})).config
    assert (config.rotary_scaling, config.rotary_base) == (
        RotaryScaling("llama3", 8.0, 1.0, 2.0, 16),
        100.0,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"config": {"model_type": "gemma2"}},
            ["model_type='gemma2'; it must be one of llama, qwen2, qwen3"],
        ),
        (
            {"config": {"model_type": "qwen2", "use_sliding_window": True}},
            ["only use_sliding_window=False"],
        ),
        (
            {"config": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}},
            ["by 'yarn'", "only llama3"],
        ),
        (
            {"config": {"num_attention_heads": 3}},
            ["num_heads=3, got 2", "'num_heads': 'num_attention_heads'"],
        ),
        (
            {"config": {"num_hidden_layers": 10**9}},
            ["num_layers=1000000000", "21 tensors in all"],
        ),
        (
            {"config": {"intermediate_size": 13}},
            ["6 tensors, as ", "gate_proj.weight is (12, 8), not (13, 8)"],
        ),
        (
            {"config": {"vocab_size": 100}},
            ["table of 100 rows", "came with the weights"],
        ),
        (
            {"tensors": llama_tensors() | {NORM: np.full(8, np.nan, np.float32)}},
            ["not finite in model"],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(next(iter(value))),
)
def test_what_does_not_fit_is_told_in_one_line(write_folder, change, words):
    assert_fails(reads, write_folder(**change), *words)


def test_missing_shards_and_lying_indices_are_told_in_one_line(write_folder):
    folder = write_folder(shards=3)
    index = json.loads((folder / INDEX).read_text())

    def with_places(**places):
        (folder / INDEX).write_text(
            json.dumps({"weight_map": index["weight_map"] | places})
        )

    with_places(**{NORM: "../model-0.safetensors"})
    assert_fails(reads, folder, "no weight_map of tensors to files of its folder")
    with_places()
    (folder / "model-1.safetensors").unlink()
    assert_fails(reads, folder, "model-1.safetensors cannot be read (No such file")
