"""The vision transformer of video: what it starts from, and what of it a run must know to build it again."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unroll_jax.models import ViT, ViTConfig

from ..config.run import Remat
from ..config.video import ViTOptions
from ..data.pretrained.vit import PretrainedViT, load_vit, start_from
from ..sharding.parts import POLICIES
from ..task import Log


class FrameModel(NamedTuple):
    """A model of frames.

    Attributes:
      module: called on the patches of frames, (*batch, patches, pixels).
      num_layers: depth L.
      init: ``key -> params``, from what is given and the seed.
    """

    module: ViT
    num_layers: int
    init: Callable[[jax.Array], Any]


def load_given(options: ViTOptions, *, grid: tuple[int, int], side: int, log: Log) -> PretrainedViT | None:
    """The pretrained weights that the options name, for frames of a grid of patches; None where they name none."""
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


def build_vit(
    options: ViTOptions,
    pretrained: PretrainedViT | None,
    *,
    num_patches: int,
    pixels: int,
    remat: Remat = "none",
    unroll: int | None = None,
) -> FrameModel:
    """The transformer of a configuration.

    Args:
      options: of the model.
      pretrained: what `load_given` or `given_of` made of them.
      num_patches: patches of a frame.
      pixels: of a patch.
      remat: what the backward pass recomputes, a name of `POLICIES`.
      unroll: layers in one iteration of the scan.
    """
    shape = _shape(options, num_patches, pixels) if pretrained is None else pretrained.config
    module = ViT(shape, dtype=jnp.dtype(options.dtype), remat=POLICIES[remat] or False, unroll=unroll)

    def init(key: jax.Array) -> Any:
        if pretrained is not None and pretrained.params:
            return start_from(pretrained, module, key)
        return module.init(key, jnp.zeros((1, num_patches, pixels)))

    return FrameModel(module, shape.num_layers, init)


def given_facts(pretrained: PretrainedViT | None) -> dict[str, Any] | None:
    """All that a model needs to know of pretrained weights beside its parameters, as JSON values."""
    return None if pretrained is None else dataclasses.asdict(pretrained.config)


def given_of(facts: dict[str, Any] | None) -> PretrainedViT | None:
    """Builds what `given_facts` describes, without weights: enough for a model, which is then given its parameters."""
    return None if facts is None else PretrainedViT(ViTConfig(**facts), {})


def _shape(options: ViTOptions, num_patches: int, pixels: int) -> ViTConfig:
    return ViTConfig(
        num_patches=num_patches,
        pixels=pixels,
        dim=options.dim,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        hidden_dim=options.hidden_dim,
        reading=options.reading,
        mean=options.mean,
        std=options.std,
    )
