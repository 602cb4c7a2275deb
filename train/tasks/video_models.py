"""Models of video denoising, built from their options, and the check of their outputs."""

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


def patches_across(spec: VideoSpec) -> int:
    """Patches on a side of a frame."""
    return spec.frame_side // math.isqrt(spec.token_dim)


def build_video_model(
    config: VideoRunConfig, spec: VideoSpec, vit: PretrainedViT | None, param_dtype: Any
) -> VideoModel:
    """Builds the model of a configuration; ``vit`` are pretrained weights of a vision transformer, or None."""
    loop: dict[str, Any] = {"remat": POLICIES[config.remat] or False, "unroll": config.unroll}
    model, dim = config.model, spec.token_dim
    if isinstance(model, ViTOptions):
        return _vit(model, spec, vit, loop)
    shared = {"dtype": jnp.dtype(model.dtype), "self_loops": model.self_loops, "param_dtype": param_dtype, **loop}
    module = _dust(model, dim, shared) if isinstance(model, DustOptions) else _transformer(model, dim, shared)

    def init(key: jax.Array) -> Params:
        return dict(module.init(key, jnp.zeros((1, spec.num_tokens, dim))))

    of_input = isinstance(model, ModelConfig)
    bases = cosine_bases(dim) if of_input else dictionary_bases(dim)
    return VideoModel(module, model.num_layers, init, bases=bases, reads_input=of_input)


def _transformer(model: ModelConfig, dim: int, shared: dict[str, Any]) -> nn.Module:
    if model.rank is not None and model.rank > dim:
        raise OptionError("model.rank", f"between 1 and the token width {dim}", model.rank)
    return UnrolledTransformer(
        dim=dim,
        num_layers=model.num_layers,
        rank=model.rank,
        V_init=dct(model.attention_scale),
        W_init=scaled_identity(model.mixing),
        U_init=scaled_identity(1.0 - model.mixing),
        **shared,
    )


def _dust(model: DustOptions, dim: int, shared: dict[str, Any]) -> nn.Module:
    names = ("num_atoms", "num_layers", "tied", "sparsity", "attention_scale", "train_attention")
    return DUST(dim=dim, **{name: getattr(model, name) for name in names}, **shared)


def _vit(model: ViTOptions, spec: VideoSpec, vit: PretrainedViT | None, loop: dict[str, Any]) -> VideoModel:
    names = ("dim", "num_layers", "num_heads", "hidden_dim", "reading", "mean", "std")
    options = {name: getattr(model, name) for name in names}
    sizes = {"num_patches": patches_across(spec) ** 2, "pixels": spec.token_dim}
    shape = ViTConfig(**sizes, **options) if vit is None else vit.config
    module = ViT(shape, dtype=jnp.dtype(model.dtype), **loop)

    def init(key: jax.Array) -> Params:
        if vit is not None and vit.params:
            return start_from(vit, module, key)
        return module.init(key, jnp.zeros((1, *sizes.values())))

    return VideoModel(module, shape.num_layers, init, of_frames=True)


def load_pretrained_vit(options: ViTOptions, spec: VideoSpec, log: Log) -> PretrainedViT | None:
    """Loads the pretrained weights that the options name, for frames of a grid of patches; None without a name."""
    if options.pretrained is None:
        return None
    across = patches_across(spec)
    fields = {name: getattr(options, name) for name in ("reading", "mean", "std", "revision")}
    where = {"grid": (across, across), "side": math.isqrt(spec.token_dim), "option": "--model.pretrained"}
    return load_vit(options.pretrained, **fields, **where, log=log)


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
