"""Models of video denoising, built from their options, and the check of their outputs."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import (
    DUST,
    UnrolledTransformer,
    ViT,
    ViTConfig,
    cosine_bases,
    dct,
    dictionary_bases,
    scaled_identity,
)

from ..config.errors import OptionError, UserError, option_text
from ..config.run import Remat
from ..config.video import DustOptions, ModelConfig, VideoRunConfig, ViTOptions
from ..data.pretrained.vit import PretrainedViT, load_vit, start_from
from ..data.video import VideoSpec
from ..sharding.parts import POLICIES
from ..task import Log, Params

# A trained layer leaves at most a few units silent; collapsed ones silence most of theirs.
DEAD_SHARE = 0.5
# Spread of an output over samples, relative to that of the input: a denoiser keeps most of it.
CONSTANT_SPREAD = 0.1
# Mean multipliers of feasible runs stay of the order of 1.
WOUND_UP = 5.0


class Patches(NamedTuple):
    """Sizes of prepared video: frames of a window, patches of a frame, pixels of a patch."""

    frames: int
    positions: int
    pixels: int

    @classmethod
    def of(cls, spec: VideoSpec) -> "Patches":
        """Returns the sizes of prepared video."""
        return cls(spec.num_tokens, (spec.frame_side // math.isqrt(spec.token_dim)) ** 2, spec.token_dim)


class Computing(NamedTuple):
    """Options for the computation of layers.

    Attributes:
      param_dtype: Dtype of the parameters.
      remat: Policy of rematerialisation, a name of `POLICIES`.
      unroll: Layers in one iteration of the scan.
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
      num_layers: Depth L.
      init: ``key -> params``.
      bases: Bases of `unroll_jax.in_coordinates`, in which Adam's steps change no brightness; None for the entries.
      of_frames: Whether samples are frames and tokens their patches; else tokens are the frames of one patch position.
      reads_input: Whether layer 0 is the input itself.
    """

    module: nn.Module
    num_layers: int
    init: Callable[[jax.Array], Params]
    bases: Any = None
    of_frames: bool = False
    reads_input: bool = False


@functools.singledispatch
def build_video_model(model: Any, sizes: Patches, computing: Computing, vit: PretrainedViT | None) -> VideoModel:
    """Builds the model of its options.

    Args:
      model: Options of the model.
      sizes: Sizes of the video.
      computing: Options for the computation of layers.
      vit: Pretrained weights of a vision transformer, or None.
    """
    raise TypeError(f"no model of video is known for {type(model).__name__}")


@build_video_model.register
def _(model: ModelConfig, sizes: Patches, computing: Computing, vit: PretrainedViT | None) -> VideoModel:
    if model.rank is not None and not 1 <= model.rank <= sizes.pixels:
        raise OptionError("model.rank", f"between 1 and the token width {sizes.pixels}", model.rank)
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
def _(model: DustOptions, sizes: Patches, computing: Computing, vit: PretrainedViT | None) -> VideoModel:
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
def _(model: ViTOptions, sizes: Patches, computing: Computing, vit: PretrainedViT | None) -> VideoModel:
    shape = _vit_shape(model, sizes) if vit is None else vit.config
    remat = POLICIES[computing.remat] or False
    module = ViT(shape, dtype=jnp.dtype(model.dtype), remat=remat, unroll=computing.unroll)

    def init(key: jax.Array) -> Params:
        if vit is not None and vit.params:
            return start_from(vit, module, key)
        return module.init(key, jnp.zeros((1, sizes.positions, sizes.pixels)))

    return VideoModel(module, shape.num_layers, init, of_frames=True)


def load_pretrained_vit(options: ViTOptions, *, grid: tuple[int, int], side: int, log: Log) -> PretrainedViT | None:
    """Loads the pretrained weights that the options name, for frames of a grid of patches; None without a name."""
    if options.pretrained is None:
        return None
    return load_vit(
        options.pretrained,
        grid=grid,
        side=side,
        reading=options.reading,
        mean=options.mean,
        std=options.std,
        revision=options.revision,
        option="--model.pretrained",
        log=log,
    )


def vit_from_spec(shape: dict[str, Any] | None) -> PretrainedViT | None:
    """Returns a ViT of a shape without weights, which are then loaded; None for None."""
    return None if shape is None else PretrainedViT(ViTConfig(**shape), {})


class VideoReading(NamedTuple):
    """Figures of a split under one trial.

    Attributes:
      losses: (N, L + 1) loss of every sample at every layer; (N, 1) of the last one under a disturbance.
      noisy: (N,) loss of every sample's input.
      dead: (L + 1,) share of units that are 0 for every token of every sample.
      spread: (L + 1,) standard deviation of the outputs over samples, averaged over tokens and units.
    """

    losses: np.ndarray
    noisy: np.ndarray
    dead: np.ndarray = np.zeros(0)
    spread: np.ndarray = np.zeros(0)


def check_reference(config: VideoRunConfig, input_loss: float) -> None:
    """Raises a `UserError` for a bound on the input's loss that no training can meet."""
    reference = config.constraints.reference
    if config.enforces and reference is not None and reference < input_loss:
        raise UserError(
            f"{option_text('constraints.reference', reference)} is below the loss of the noisy input, about "
            f"{input_loss:.2f} at {option_text('train_gamma', config.train_gamma)}, which no training can lower; raise "
            "it, or pass None"
        )


def describe_collapse(
    dead: np.ndarray, spread: np.ndarray, layer_losses: np.ndarray, multipliers: np.ndarray
) -> str | None:
    """Returns one plain sentence if the model has collapsed, else None.

    A model has collapsed when its output hardly depends on its input, or is not better than its input and there is a
    cause: dead units, a layer that hardly depends on the input, or multipliers winding up. Arrays are of layers 0..L.
    """
    constant = spread < CONSTANT_SPREAD * spread[0]
    # Under strong noise a constant output is better than the input.
    if layer_losses[-1] < layer_losses[0] and not constant[-1]:
        return None
    causes = []
    for layer in np.flatnonzero(dead[1:] > DEAD_SHARE)[:1] + 1:
        causes.append(f"dead units ({dead[layer]:.0%} of layer {layer} is 0 for every input)")
    for layer in np.flatnonzero(constant[1:])[:1] + 1:
        causes.append(f"constant output (layer {layer} hardly depends on the input)")
    if multipliers.size and np.max(multipliers) > WOUND_UP:
        causes.append(f"multipliers winding up (the largest is {np.max(multipliers):.1f})")
    if not causes:
        return None
    losses = f"output loss {layer_losses[-1]:.2f}, input {layer_losses[0]:.2f}"
    return f"the model has collapsed ({losses}): {', '.join(causes)}"


def _init(module: nn.Module, sizes: Patches) -> Callable[[jax.Array], Params]:
    return lambda key: dict(module.init(key, jnp.zeros((1, sizes.frames, sizes.pixels))))


def _vit_shape(options: ViTOptions, sizes: Patches) -> ViTConfig:
    return ViTConfig(
        num_patches=sizes.positions,
        pixels=sizes.pixels,
        dim=options.dim,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        hidden_dim=options.hidden_dim,
        reading=options.reading,
        mean=options.mean,
        std=options.std,
    )
