"""Pretrained vision transformers: weights from a folder as Hugging Face lays it out, or from its hub."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import ViT, ViTConfig

from ..config.errors import UserError
from .files import Log
from .pretrained_architectures import VISION, Architecture, config_of, read_architecture, read_numbers
from .pretrained_files import find_folder, read_json, weights_file
from .pretrained_weights import Slot, Tensors, layer_slots, open_tensors, prefix_of, read_slots

FILES = ("config.json", "model.safetensors")
DECODER = "decoder.0"  # of ViTForMaskedImageModeling: a product from states to the pixels of a patch
CUBIC = -0.75  # the free number of cubic convolution as torch has it (Keys, 1981, has -0.5)


class PretrainedViT(NamedTuple):
    """The content of a folder.

    Attributes:
      config: of `unroll_jax.models.ViT`.
      params: of the same, NumPy float32, as far as the folder has them: of a readout "linear" ``pixels`` is there if
        there is a decoder of masked images, and of one "residual" never, as that starts at 0.
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

    Weights of the colours are added up, as for a grey picture repeated in every colour; of a decoder's pixels the mean
    over the colours is taken. Position embeddings are interpolated bicubically where the picture has another grid of
    patches, as ``interpolate_pos_encoding=True`` of Hugging Face does.

    Args:
      source: a folder that holds `FILES`, or a repository OWNER/NAME of the hub.
      grid: rows and columns of patches of a frame.
      side: of a patch, in pixels; the pretrained patches must have the same.
      reading: how layers are read, see `ViTConfig`.
      mean: subtracted from pixels in [0, 1].
      std: what they are divided by then.
      revision: of the repository: branch, tag or commit.
      option: what errors call the source by.
      log: takes a line on what was read.

    Raises:
      UserError: if the folder is of another architecture, lacks a file or a tensor, is damaged, or does not fit.
    """
    folder = find_folder(source, files=FILES, revision=revision, option=option, log=log)
    values, where = read_json(folder / "config.json", files=FILES), str(folder / "config.json")
    architecture = read_architecture(values, where=where, known=VISION)
    numbers = read_numbers(values, architecture, where=where)
    picture = {name: numbers.pop(name) for name in ("image_size", "patch_size", "channels", "stride")}
    _check_picture(picture, side, where)
    ours = {"num_patches": grid[0] * grid[1], "pixels": side**2, "class_token": True}
    numbers |= ours | {"reading": reading, "mean": mean, "std": std}
    config = config_of(ViTConfig, numbers, architecture, where=where)
    with open_tensors(weights_file(folder, files=FILES)) as tensors:
        leaves = _read(tensors, config, architecture, picture)
    log(
        f"vit of {config.num_layers} layers, {config.dim} wide, patches of {side} x {side} pixels, positions for "
        f"{picture['image_size'] // side} x {picture['image_size'] // side} of them"
    )
    return PretrainedViT(config, _adapted(leaves, config, grid, picture))


def start_from(pretrained: PretrainedViT, model: ViT, key: jax.Array) -> Any:
    """The variables of a transformer: the pretrained ones, and new ones where there are none."""
    if model.config != pretrained.config:
        raise UserError(f"the transformer is {model.config}, the pretrained one {pretrained.config}")
    frame = jnp.zeros((1, model.config.num_patches, model.config.pixels))
    drawn: dict[Any, Any] = traverse_util.flatten_dict(jax.jit(model.init)(key, frame)["params"])
    given = traverse_util.flatten_dict(pretrained.params)
    leaves = {path: jnp.asarray(given.get(path, leaf), leaf.dtype) for path, leaf in drawn.items()}
    return {"params": {"readout": {}, **traverse_util.unflatten_dict(leaves)}}


def interpolated(positions: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Embeddings (rows, columns, dim) of the positions of a grid, bicubically on another grid; float32.

    Positions are those of the patches' centres, and beyond the edge the last ones are repeated, as in torch's
    ``interpolate(mode="bicubic", align_corners=False)``.
    """
    rows, columns = (_bicubic(have, want) for have, want in zip(positions.shape, grid, strict=False))
    return np.einsum("ri,cj,ijd->rcd", rows, columns, positions).astype(np.float32)


def _check_picture(picture: dict[str, int], side: int, where: str) -> None:
    if picture["patch_size"] != side:
        raise UserError(
            f"{where} has patch_size={picture['patch_size']}, but patches of frames are {side} pixels wide; take "
            f"weights for patches of {side}"
        )
    if picture["image_size"] < side or picture["channels"] < 1:
        raise UserError(
            f"{where} has image_size={picture['image_size']} and num_channels={picture['channels']}; it must be one "
            f"patch of {side} or more, and one channel or more"
        )


def _read(tensors: Tensors, config: ViTConfig, architecture: Architecture, picture: dict[str, int]) -> dict[Any, Any]:
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
    """The leaves of our parameters, of grey frames of a grid, out of those of coloured pictures."""
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
        grey = lambda leaf: leaf.reshape(picture["channels"], config.pixels, -1).mean(axis=0)  # noqa: E731
        tensors["readout", "pixels", "kernel"] = np.ascontiguousarray(
            grey(tensors.pop(("readout", "pixels", "colours"))).T
        )
        tensors["readout", "pixels", "bias"] = grey(tensors["readout", "pixels", "bias"])[:, 0]
    return traverse_util.unflatten_dict(tensors)


def _bicubic(have: int, want: int) -> np.ndarray:
    """The matrix (want, have) of cubic convolution between the centres of so many cells of one length."""
    centres = (np.arange(want) + 0.5) * have / want - 0.5
    matrix, floor = np.zeros((want, have)), np.floor(centres).astype(int)
    for offset in (-1, 0, 1, 2):
        t = np.abs(centres - floor - offset)
        near = ((CUBIC + 2.0) * t - (CUBIC + 3.0)) * t**2 + 1.0
        far = CUBIC * (((t - 5.0) * t + 8.0) * t - 4.0)
        weights = np.where(t <= 1.0, near, far)
        np.add.at(matrix, (np.arange(want), np.clip(floor + offset, 0, have - 1)), weights)
    return matrix
