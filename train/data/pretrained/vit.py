"""Pretrained vision transformers: weights from a folder in the layout of Hugging Face, or from its hub."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import ViT, ViTConfig

from ...config.errors import UserError
from ..files import Log
from .architectures import VISION, Architecture, make_config, read_architecture, read_numbers
from .encoders import Slot, layer_slots, prefix_of, read_slots
from .folders import SafetensorsFiles, find_folder, open_folder, read_json

FILES = ("config.json", "model.safetensors")
DECODER = "decoder.0"  # of ViTForMaskedImageModeling: linear, from states to the pixels of a patch
CUBIC = -0.75  # the free parameter of cubic convolution, as in torch (-0.5 in Keys, 1981)


class PretrainedViT(NamedTuple):
    """The content of a folder.

    Attributes:
      config: of `unroll_jax.models.ViT`.
      params: of the same, NumPy float32, as far as the folder has them: ``pixels`` of a "linear" readout if there is
        a decoder of masked images, of a "residual" readout never, as it starts at 0.
    """

    config: ViTConfig
    params: dict[str, Any]


def load_vit(
    source: str,
    *,
    grid: tuple[int, int] = (10, 10),
    side: int = 16,
    reading: str = "state",
    mean: float = 0.5,
    std: float = 0.5,
    revision: str | None = None,
    option: str = "pretrained",
    log: Log = print,
) -> PretrainedViT:
    """Reads a ViTModel, ViTForImageClassification or ViTForMaskedImageModeling for grey frames.

    The weights of the colour channels are summed, as for a grey picture in every channel; a decoder's pixels are
    averaged over them. Position embeddings are interpolated bicubically to another grid of patches, as Hugging Face
    does with ``interpolate_pos_encoding=True``.

    Args:
      source: a folder that holds `FILES`, or a repository OWNER/NAME of the hub.
      grid: rows and columns of patches of a frame.
      side: of a patch, in pixels; the pretrained patches must have the same.
      reading: readout of the layers, see `ViTConfig`.
      mean: subtracted from pixels in [0, 1].
      std: divides the difference.
      revision: of the repository: branch, tag or commit.
      option: name of the source in errors.
      log: takes a line about the weights.
    """
    folder = find_folder(source, files=FILES, revision=revision, option=option, log=log)
    values, where = read_json(folder / "config.json"), str(folder / "config.json")
    architecture = read_architecture(values, where=where, known=VISION)
    numbers = read_numbers(values, architecture, where=where)
    picture = {name: numbers.pop(name) for name in ("image_size", "patch_size", "channels", "stride")}
    _check_picture(picture, side, where)
    ours = {"num_patches": grid[0] * grid[1], "pixels": side**2, "class_token": True}
    numbers |= ours | {"reading": reading, "mean": mean, "std": std}
    config = make_config(ViTConfig, numbers, architecture.numbers, where=where)
    with open_folder(folder) as tensors:
        leaves = _read(tensors, config, architecture, picture)
    log(
        f"vit of {config.num_layers} layers, {config.dim} wide, patches of {side} x {side} pixels, positions for "
        f"{picture['image_size'] // side} x {picture['image_size'] // side} of them"
    )
    return PretrainedViT(config, _adapted(leaves, config, grid, picture))


def start_from(pretrained: PretrainedViT, model: ViT, key: jax.Array) -> Any:
    """Returns the variables of a transformer: pretrained where there are any, else new."""
    if model.config != pretrained.config:
        raise UserError(f"the transformer is {model.config}, the pretrained one {pretrained.config}")
    frame = jnp.zeros((1, model.config.num_patches, model.config.pixels))
    drawn: dict[Any, Any] = traverse_util.flatten_dict(jax.jit(model.init)(key, frame)["params"])
    given = traverse_util.flatten_dict(pretrained.params)
    leaves = {path: jnp.asarray(given.get(path, leaf), leaf.dtype) for path, leaf in drawn.items()}
    return {"params": {"readout": {}, **traverse_util.unflatten_dict(leaves)}}


def interpolated(positions: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Interpolates embeddings (rows, columns, dim) bicubically from one grid to another; float32.

    Positions are the centres of patches, and the edge is repeated, as in torch's
    ``interpolate(mode="bicubic", align_corners=False)``.
    """
    rows, columns = (_bicubic(have, want) for have, want in zip(positions.shape, grid, strict=False))
    return np.einsum("ri,cj,ijd->rcd", rows, columns, positions).astype(np.float32)


def _check_picture(picture: dict[str, int], side: int, where: str) -> None:
    if picture["patch_size"] != side:
        raise UserError(
            f"{where} has patch_size={picture['patch_size']}, but patches of frames are {side} pixels wide; use "
            f"weights for patches of {side}"
        )
    if picture["image_size"] < side or picture["channels"] < 1:
        raise UserError(
            f"{where} has image_size={picture['image_size']} and num_channels={picture['channels']}; it must be one "
            f"patch of {side} or more, and one channel or more"
        )


def _read(
    tensors: SafetensorsFiles, config: ViTConfig, architecture: Architecture, picture: dict[str, int]
) -> dict[Any, Any]:
    prefix, names, dim = prefix_of(tensors, architecture), architecture.embeddings, config.dim
    frame = jax.ShapeDtypeStruct((1, config.num_patches, config.pixels), np.float32)
    side, channels = picture["patch_size"], picture["channels"]
    shapes = jax.eval_shape(ViT(config).init, jax.random.key(0), frame)["params"]
    places = (picture["image_size"] // side) ** 2 + 1
    slots = [
        Slot(("embeddings", "class_token"), [[prefix + names["class_token"]]], (1, 1, dim)),
        Slot(("embeddings", "position"), [[prefix + names["position"]]], (1, places, dim)),
        Slot(("embeddings", "patch", "colours"), [[f"{prefix}{names['patch']}.weight"]], (dim, channels, side, side)),
        Slot(("embeddings", "patch", "bias"), [[f"{prefix}{names['patch']}.bias"]], (dim,)),
        *layer_slots(tensors, shapes["layers"], architecture, num_layers=config.num_layers),
    ]
    if config.reading != "state":
        kinds = {"scale": "weight", "bias": "bias"}
        slots += [
            Slot(("readout", "norm", kind), [[f"{prefix}layernorm.{name}"]], (dim,)) for kind, name in kinds.items()
        ]
    if config.reading == "linear" and f"{DECODER}.weight" in tensors.names and picture["stride"] == side:
        outputs = channels * config.pixels
        slots.append(Slot(("readout", "pixels", "colours"), [[f"{DECODER}.weight"]], (outputs, dim, 1, 1)))
        slots.append(Slot(("readout", "pixels", "bias"), [[f"{DECODER}.bias"]], (outputs,)))
    return read_slots(tensors, slots, architecture, num_layers=config.num_layers)


def _adapted(leaves: dict[Any, Any], config: ViTConfig, grid: tuple[int, int], picture: dict[str, int]) -> Any:
    """Returns our parameters, for grey frames of a grid, from those of colour pictures."""
    tensors = dict(leaves)
    place, token, colours = (
        ("embeddings", *names) for names in (("position",), ("class_token",), ("patch", "colours"))
    )
    tensors[token] = tensors[token][0, 0]
    kernel = tensors.pop(colours).sum(axis=1).reshape(config.dim, config.pixels)
    tensors["embeddings", "patch", "kernel"] = np.ascontiguousarray(kernel.T)
    first, rest = tensors[place][0, :1], tensors[place][0, 1:]
    old = picture["image_size"] // picture["patch_size"]
    moved = interpolated(rest.reshape(old, old, config.dim), grid).reshape(-1, config.dim)
    tensors[place] = np.concatenate([first, moved])
    if ("readout", "pixels", "colours") in tensors:
        readout = tensors.pop(("readout", "pixels", "colours")), tensors["readout", "pixels", "bias"]
        kernel, bias = (leaf.reshape(picture["channels"], config.pixels, -1).mean(axis=0) for leaf in readout)
        tensors["readout", "pixels", "kernel"] = np.ascontiguousarray(kernel.T)
        tensors["readout", "pixels", "bias"] = bias[:, 0]
    return traverse_util.unflatten_dict(tensors)


def _bicubic(have: int, want: int) -> np.ndarray:
    """Returns the matrix (want, have) of cubic convolution between the centres of cells."""
    centres = (np.arange(want) + 0.5) * have / want - 0.5
    matrix, floor = np.zeros((want, have)), np.floor(centres).astype(int)
    for offset in (-1, 0, 1, 2):
        t = np.abs(centres - floor - offset)
        near = ((CUBIC + 2.0) * t - (CUBIC + 3.0)) * t**2 + 1.0
        far = CUBIC * (((t - 5.0) * t + 8.0) * t - 4.0)
        weights = np.where(t <= 1.0, near, far)
        np.add.at(matrix, (np.arange(want), np.clip(floor + offset, 0, have - 1)), weights)
    return matrix
