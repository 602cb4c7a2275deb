"""The models of video denoising, made of their options."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.models import (
    DUST,
    UnrolledTransformer,
    cosine_bases,
    dct,
    dictionary_bases,
    scaled_identity,
)

from ..config.errors import UserError
from ..config.run import Remat
from ..config.video import DustOptions, ModelConfig, ViTOptions
from ..data.pretrained.vit import PretrainedViT
from ..sharding.parts import POLICIES
from ..task import Params
from .vit import build_vit


class Patches(NamedTuple):
    """Sizes of prepared video.

    Attributes:
      frames: of a window.
      positions: patches of a frame.
      pixels: of a patch.
    """

    frames: int
    positions: int
    pixels: int


class Computing(NamedTuple):
    """Options for the computation of layers, whatever the model.

    Attributes:
      param_dtype: dtype of the parameters.
      remat: what the backward pass recomputes, a name of `POLICIES`.
      unroll: layers in one iteration of the scan.
    """

    param_dtype: Any
    remat: Remat
    unroll: int | None

    def options(self) -> dict[str, Any]:
        """Returns the options of a module."""
        return {"param_dtype": self.param_dtype, "remat": POLICIES[self.remat] or False, "unroll": self.unroll}


class VideoModel(NamedTuple):
    """A model of patches, whose every layer is read as the clean ones.

    Attributes:
      module: ``apply(params, noisy, record=, perturb=)`` gives ``record`` of layers 0..L, stacked.
      num_layers: depth L.
      init: parameters from a key.
      bases: of `unroll_jax.in_coordinates`, in which Adam's steps change no brightness; None where there are none.
      of_frames: whether samples are frames and tokens their patches; else tokens are the frames of one patch position.
      reads_input: whether layer 0 is the input itself.
    """

    module: nn.Module
    num_layers: int
    init: Callable[[jax.Array], Params]
    bases: Any = None
    of_frames: bool = False
    reads_input: bool = False


@functools.singledispatch
def build_video_model(model: Any, sizes: Patches, computing: Computing, given: PretrainedViT | None) -> VideoModel:
    """The model of its options.

    Args:
      model: its options.
      sizes: of the video.
      computing: how layers are computed.
      given: pretrained weights of a vision transformer, or None.
    """
    raise TypeError(f"no model of video is known for {type(model).__name__}")


@build_video_model.register
def _(model: ModelConfig, sizes: Patches, computing: Computing, given: PretrainedViT | None) -> VideoModel:
    if model.rank is not None and not 1 <= model.rank <= sizes.pixels:
        raise UserError(f"--model.rank must be between 1 and the token width {sizes.pixels}, got {model.rank}")
    module = UnrolledTransformer(
        dim=sizes.pixels,
        num_layers=model.num_layers,
        rank=model.rank,
        dtype=jnp.dtype(model.dtype),
        self_loops=model.self_loops,
        V_init=dct(model.attention_scale),
        W_init=scaled_identity(model.mixing),
        U_init=scaled_identity(1.0 - model.mixing),
        **computing.options(),
    )
    return VideoModel(
        module, model.num_layers, _init(module, sizes), bases=cosine_bases(sizes.pixels), reads_input=True
    )


@build_video_model.register
def _(model: DustOptions, sizes: Patches, computing: Computing, given: PretrainedViT | None) -> VideoModel:
    module = DUST(
        dim=sizes.pixels,
        num_atoms=model.num_atoms,
        num_layers=model.num_layers,
        tied=model.tied,
        sparsity=model.sparsity,
        attention_scale=model.attention_scale,
        train_attention=model.train_attention,
        self_loops=model.self_loops,
        dtype=jnp.dtype(model.dtype),
        **computing.options(),
    )
    return VideoModel(module, model.num_layers, _init(module, sizes), bases=dictionary_bases(sizes.pixels))


@build_video_model.register
def _(model: ViTOptions, sizes: Patches, computing: Computing, given: PretrainedViT | None) -> VideoModel:
    shape = {"num_patches": sizes.positions, "pixels": sizes.pixels}
    vit = build_vit(model, given, **shape, remat=computing.remat, unroll=computing.unroll)
    return VideoModel(vit.module, vit.num_layers, vit.init, of_frames=True)


def _init(module: nn.Module, sizes: Patches) -> Callable[[jax.Array], Params]:
    return lambda key: dict(module.init(key, jnp.zeros((1, sizes.frames, sizes.pixels))))
