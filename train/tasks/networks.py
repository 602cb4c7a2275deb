"""The networks of images and scenes: the Flax module that a configuration stands for."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn

from unroll_jax import models
from unroll_jax.energies.equilibrium.regularisers import REGULARISERS
from unroll_jax.fixed_point import Probe, zero_probe

from ..config.images import Network
from ..config.networks import (
    EquilibriumConfig,
    FcnConfig,
    FeedForwardConfig,
    MonConfig,
    OdeConfig,
    OptEqConfig,
    SegmenterConfig,
)


@functools.singledispatch
def build(network: Any, num_classes: int) -> nn.Module:
    """The module of a configuration: ``x -> (logits, EquilibriumInfo or None)``.

    Where an equilibrium is not found training goes on, and says so in every row of its metrics.
    """
    raise TypeError(f"no network is known for {type(network).__name__}")


@build.register
def _(network: OptEqConfig, num_classes: int) -> nn.Module:
    return _behind_stem(network, models.DeepOptEq(num_classes=num_classes, on_failure="accept", **_options(network)))


@build.register
def _(network: SegmenterConfig, num_classes: int) -> nn.Module:
    return models.DeepOptEqSegmenter(num_classes=num_classes, on_failure="accept", **_options(network))


@build.register
def _(network: MonConfig, num_classes: int) -> nn.Module:
    model = models.MonotoneOperatorNetwork(num_classes=num_classes, on_failure="accept", **_options(network))
    return _behind_stem(network, model)


@build.register
def _(network: OdeConfig, num_classes: int) -> nn.Module:
    return _behind_stem(network, models.NeuralODE(num_classes=num_classes, **_options(network)))


@build.register
def _(network: FeedForwardConfig, num_classes: int) -> nn.Module:
    return _behind_stem(network, models.FeedForwardNetwork(num_classes=num_classes, **_options(network)))


@build.register
def _(network: FcnConfig, num_classes: int) -> nn.Module:
    return models.FullyConvolutionalNetwork(num_classes=num_classes, **_options(network))


def sees_vectors(network: Network) -> bool:
    """Returns whether images are flattened before the network sees them."""
    return not getattr(network, "convolutional", True)


def adjoint_probe(network: Network, batch_size: int) -> Probe | None:
    """Returns the probe for statistics of the adjoint solve of a gradient; None without such a solve."""
    if not isinstance(network, EquilibriumConfig) or network.way != "implicit":
        return None
    whole = network.regulariser is not None and REGULARISERS[network.regulariser]().couples_examples
    return zero_probe() if whole else zero_probe(batch_size)


def _options(network: Any) -> dict[str, Any]:
    beside = () if isinstance(network, SegmenterConfig | FcnConfig) else ("stem",)  # what `_behind_stem` is for
    names = (field.name for field in dataclasses.fields(network))
    return {name: getattr(network, name) for name in names if name not in beside}


def _behind_stem(network: Any, model: nn.Module) -> nn.Module:
    return models.BehindStem(model, network.stem) if network.stem else model
