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
from ..config.video import DustOptions, ModelConfig
from ..task import Params

# `num_tokens, token_dim, remat, unroll, param_dtype` of a model.
Sizes = dict[str, Any]


class VideoModel(NamedTuple):
    """A model of patches, whose every layer is read as the clean ones.

    Attributes:
      module: ``apply(params, noisy, record=, perturb=)`` gives ``record`` of layers 0..L, stacked.
      init: parameters from a key.
      bases: of `unroll_jax.in_coordinates`, in which Adam's steps change no brightness; None where there are none.
      of_frames: whether samples are frames and tokens their patches; else tokens are the frames of one patch position.
      reads_input: whether layer 0 is the input itself.
    """

    module: nn.Module
    init: Callable[[jax.Array], Params]
    bases: Any = None
    of_frames: bool = False
    reads_input: bool = False


@functools.singledispatch
def build_video_model(model: Any, num_tokens: int, token_dim: int, **options: Any) -> VideoModel:
    """The model of its options.

    Args:
      model: its options.
      num_tokens: frames of a window.
      token_dim: pixels of a patch.
      **options: ``param_dtype``, ``remat`` and ``unroll`` of the module.
    """
    raise TypeError(f"no model of video is known for {type(model).__name__}")


@build_video_model.register
def _(model: ModelConfig, num_tokens: int, token_dim: int, **options: Any) -> VideoModel:
    if model.rank is not None and not 1 <= model.rank <= token_dim:
        raise UserError(f"--model.rank must be between 1 and the token width {token_dim}, got {model.rank}")
    module = UnrolledTransformer(
        dim=token_dim,
        num_layers=model.num_layers,
        rank=model.rank,
        dtype=jnp.dtype(model.dtype),
        self_loops=model.self_loops,
        V_init=dct(model.attention_scale),
        W_init=scaled_identity(model.mixing),
        U_init=scaled_identity(1.0 - model.mixing),
        **options,
    )
    return VideoModel(module, _init(module, num_tokens, token_dim), cosine_bases(token_dim), reads_input=True)


@build_video_model.register
def _(model: DustOptions, num_tokens: int, token_dim: int, **options: Any) -> VideoModel:
    module = DUST(
        dim=token_dim,
        num_atoms=model.num_atoms,
        num_layers=model.num_layers,
        tied=model.tied,
        sparsity=model.sparsity,
        attention_scale=model.attention_scale,
        train_attention=model.train_attention,
        self_loops=model.self_loops,
        dtype=jnp.dtype(model.dtype),
        **options,
    )
    return VideoModel(module, _init(module, num_tokens, token_dim), dictionary_bases(token_dim))


def _init(module: nn.Module, num_tokens: int, token_dim: int) -> Callable[[jax.Array], Params]:
    return lambda key: dict(module.init(key, jnp.zeros((1, num_tokens, token_dim))))
