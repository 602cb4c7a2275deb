"""Models of video denoising, built from their options, and the check of their outputs."""

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
from ..data.video import VideoSpec
from ..sharding.parts import POLICIES
from ..task import Params

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


def build_video_model(config: VideoRunConfig, spec: VideoSpec, param_dtype: Any) -> VideoModel:
    """Builds the model of a configuration."""
    loop: dict[str, Any] = {"remat": POLICIES[config.remat] or False, "unroll": config.unroll}
    model, dim = config.model, spec.token_dim
    if isinstance(model, ViTOptions):
        return _vit(model, spec, loop)
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


def _vit(model: ViTOptions, spec: VideoSpec, loop: dict[str, Any]) -> VideoModel:
    names = ("dim", "num_layers", "num_heads", "hidden_dim", "reading", "mean", "std")
    num_patches = spec.frame_side**2 // spec.token_dim
    shape = ViTConfig(num_patches, spec.token_dim, **{name: getattr(model, name) for name in names})
    module = ViT(shape, dtype=jnp.dtype(model.dtype), **loop)

    def init(key: jax.Array) -> Params:
        return module.init(key, jnp.zeros((1, num_patches, spec.token_dim)))

    return VideoModel(module, shape.num_layers, init, of_frames=True)


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
