"""Pretrained vision transformers: a `ViTModel` of `transformers`, from a folder or from
the hub."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import ViT, ViTConfig

from ...config.errors import UserError
from ..files import Log
from . import folders
from .architectures import activation_of, read_fields

# Fields of `ViTConfig`, and sizes of images, by their names in config.json.
NUMBERS = {
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "norm_epsilon": "layer_norm_eps",
    "activation": "hidden_act",
    "image": "image_size",
    "side": "patch_size",
    "channels": "num_channels",
}
# Of fields that files leave out.
DEFAULTS = {
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
REQUIRED = {"model_type": "vit", "qkv_bias": True}
# Names inside a layer. Several are concatenated.
LAYER = {
    "query_key_value": tuple(
        f"attention.attention.{name}" for name in ("query", "key", "value")
    ),
    "attention_output": ("attention.output.dense",),
    "attention_norm": ("layernorm_before",),
    "hidden": ("intermediate.dense",),
    "output": ("output.dense",),
    "output_norm": ("layernorm_after",),
}
PROCESSOR = "preprocessor_config.json"


class PretrainedViT(NamedTuple):
    """The content of a folder."""

    config: ViTConfig
    params: dict[str, Any]  # of `unroll_jax.models.ViT`, float32


def load_vit(
    source: str,
    key: jax.Array,
    *,
    grey: bool = False,
    reading: str = "state",
    num_patches: int | None = None,
    option: str = "pretrained",
    log: Log = print,
) -> PretrainedViT:
    """Reads a vision transformer. A patch has its channels one after the other, each
    row by row.

    Args:
      source: a folder of `transformers`, or its name on the hub.
      key: of the readout's layer to pixels, which a folder lacks.
      grey: takes patches of one channel, as if all channels were equal.
      reading: of `ViTConfig`. Norms before "residual" and "linear" are the folder's.
      num_patches: of a square image. None takes the size of config.json. Positions of
        another size are interpolated, by cubic splines between patches.
      option: the source's name in errors.
      log: takes lines.
    """
    folder = folders.find_folder(source, option=option, log=log)
    config, sizes = _config(folder, grey=grey, reading=reading)
    model = ViT(config)
    patches = jnp.zeros((1, config.num_patches, config.pixels))
    shapes = jax.eval_shape(model.init, key, patches)["params"]
    with folders.open_folder(folder) as tensors:
        read = _read(tensors, config, sizes, shapes)
    kernel = read.pop(("embeddings", "patch", "weight"))
    kernel = kernel.sum(1) if grey else kernel
    read["embeddings", "patch", "kernel"] = kernel.reshape(config.dim, -1).T
    for name in ("class_token", "position"):
        place = ("embeddings", name)
        read[place] = read[place].reshape(shapes["embeddings"][name].shape)
    # the compiler leaves out the rest
    draw = jax.jit(lambda key: model.init(key, patches)["params"]["readout"])
    params = traverse_util.unflatten_dict(read)
    params["readout"] = draw(key) | params.get("readout", {})
    log(f"vit of {config.num_layers} layers, {config.dim} wide")
    if num_patches not in (None, config.num_patches):
        embeddings = params["embeddings"]
        embeddings["position"] = _resized(embeddings["position"], num_patches)
        config = dataclasses.replace(config, num_patches=num_patches)
    return PretrainedViT(config, params)


def _resized(position: np.ndarray, num_patches: int) -> np.ndarray:
    """Returns positions (1 + num_patches, dim) of another square of patches. The class
    token comes first."""
    before, after = math.isqrt(len(position) - 1), math.isqrt(num_patches)
    squares = position[1:].reshape(before, before, -1)
    shape = (after, after, squares.shape[-1])
    resized = jax.image.resize(squares, shape, "cubic", antialias=False)
    return np.concatenate([position[:1], np.asarray(resized).reshape(-1, shape[-1])])


def _config(
    folder: Path, *, grey: bool, reading: str
) -> tuple[ViTConfig, dict[str, int]]:
    """Returns the configuration and the sizes of images, patches and channels."""
    processor = folder / PROCESSOR
    levels = folders.read_json(processor) if processor.is_file() else {}
    sizes = {}

    def make(
        *, image: int, side: int, channels: int, activation: str, **fields: Any
    ) -> ViTConfig:
        sizes.update(side=side, channels=channels)
        return ViTConfig(
            **fields,
            activation=activation_of(activation),
            num_patches=(image // side) ** 2,
            pixels=side**2 * (1 if grey else channels),
            class_token=True,
            reading=reading,
            mean=_level(levels, "image_mean", processor),
            std=_level(levels, "image_std", processor),
        )

    path = folder / "config.json"
    options = {"defaults": DEFAULTS, "required": REQUIRED, "where": str(path)}
    config = read_fields(make, folders.read_json(path), NUMBERS, **options)
    return config, sizes


def _level(levels: Mapping[str, Any], name: str, where: Path) -> float:
    """Returns the mean or the deviation of pixels, one for all channels."""
    each = levels.get(name, 0.5)
    each = each if isinstance(each, list) else [each]
    if len({*map(str, each)}) != 1 or type(each[0]) not in (int, float):
        raise UserError(f"{where} has {name}={each}; only equal numbers are supported")
    return float(each[0])


def _read(
    tensors: folders.SafetensorsFiles,
    config: ViTConfig,
    sizes: Mapping[str, int],
    shapes: Mapping[str, Any],
) -> dict[tuple[str, ...], np.ndarray]:
    """Returns the tensors of a file by our names, those of embeddings as stored."""
    folders.check_layer_count(tensors, config.num_layers)
    # which a model with a head has
    tensors = tensors.renamed(lambda name: name.removeprefix("vit."))
    patches = "embeddings.patch_embeddings.projection"
    side, dim = sizes["side"], config.dim
    stored = {
        ("class_token",): ("embeddings.cls_token", (1, 1, dim)),
        ("position",): (
            "embeddings.position_embeddings",
            (1, config.num_patches + 1, dim),
        ),
        ("patch", "weight"): (
            f"{patches}.weight",
            (dim, sizes["channels"], side, side),
        ),
        ("patch", "bias"): (f"{patches}.bias", (dim,)),
    }
    slots = [
        folders.Slot(("embeddings", *path), [[name]], shape)
        for path, (name, shape) in stored.items()
    ]
    ends = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    leaves: dict[Any, Any] = traverse_util.flatten_dict(shapes["layers"])
    for path, leaf in leaves.items():
        rows = [
            [f"encoder.layer.{layer}.{part}.{ends[path[1]]}" for part in LAYER[path[0]]]
            for layer in range(config.num_layers)
        ]
        slots.append(folders.Slot(("layers", *path), rows, leaf.shape, stacked=True))
    if "norm" in shapes["readout"]:
        for end in ("scale", "bias"):
            name = f"layernorm.{ends[end]}"
            slots.append(folders.Slot(("readout", "norm", end), [[name]], (dim,)))
    next_layer = f"encoder.layer.{config.num_layers}."
    return folders.read_slots(tensors, slots, next_layer)
