"""The configurations of supervised experiments: what is trained, on what, and how."""

import dataclasses
from typing import Any

from train.config import RunConfig, check_fields, nonnegative, positive, run_rules
from train.data.images import ImageConfig
from train.data.scenes import SceneConfig
from train.limits import count_rules, size_rules
from train.profile import parse_profile
from train.supervised.networks import (
    FcnConfig,
    FeedForwardConfig,
    MonConfig,
    OdeConfig,
    OptEqConfig,
    SegmenterConfig,
)
from train.supervised.optimizers import OptimizerConfig

__all__ = [
    "ImageFeedForwardConfig",
    "ImageMonConfig",
    "ImageOdeConfig",
    "ImageOptEqConfig",
    "SceneFcnConfig",
    "SceneOptEqConfig",
    "SupervisedConfig",
    "check_supervised",
]


@dataclasses.dataclass(frozen=True)
class SupervisedConfig(RunConfig):
    """Train a network on labelled images by cross entropy."""

    seed: int = 0
    """Seed of initialisation, batch order and augmentation."""
    epochs: int = 30
    """Passes over the train split."""
    batch_size: int = 64
    """Images a step."""
    train_examples: int | None = None
    """How many examples of the train split to train on, a fixed random choice; None means all."""
    validate_every: int = 2
    """Epochs between validations; each writes a checkpoint."""
    augment: bool = False
    """Flip images at random, and shift or crop them."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)


@dataclasses.dataclass(frozen=True)
class ImageOptEqConfig(SupervisedConfig):
    """Classify images with deep OptEq (Xie et al., Section 5.1)."""

    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    network: OptEqConfig = dataclasses.field(default_factory=OptEqConfig)


@dataclasses.dataclass(frozen=True)
class ImageMonConfig(SupervisedConfig):
    """Classify images with a monotone operator network."""

    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    network: MonConfig = dataclasses.field(default_factory=MonConfig)


@dataclasses.dataclass(frozen=True)
class ImageOdeConfig(SupervisedConfig):
    """Classify images with a neural ODE, augmented or not."""

    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    network: OdeConfig = dataclasses.field(default_factory=OdeConfig)


@dataclasses.dataclass(frozen=True)
class ImageFeedForwardConfig(SupervisedConfig):
    """Classify images with a plain network."""

    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)
    network: FeedForwardConfig = dataclasses.field(default_factory=FeedForwardConfig)


@dataclasses.dataclass(frozen=True)
class SceneOptEqConfig(SupervisedConfig):
    """Label every pixel of a scene with deep OptEq (Xie et al., Section 5.2)."""

    data: SceneConfig = dataclasses.field(default_factory=SceneConfig)
    network: SegmenterConfig = dataclasses.field(default_factory=SegmenterConfig)


@dataclasses.dataclass(frozen=True)
class SceneFcnConfig(SupervisedConfig):
    """Label every pixel of a scene with a fully convolutional network."""

    data: SceneConfig = dataclasses.field(default_factory=SceneConfig)
    network: FcnConfig = dataclasses.field(default_factory=FcnConfig)


def check_supervised(config: SupervisedConfig) -> None:
    """Checks every number against what the experiments allow; networks check their own when they are built.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    rates = config.optimizer
    rules = (
        *count_rules(config),
        *run_rules(config),
        ("augment", "False for digits, which must not be mirrored", not (config.augment and _of_digits(config))),
        ("network.stem", "() for dense layers, which see images as vectors", _stem_fits(config)),
        ("optimizer.learning-rate", "positive and finite", positive(rates.learning_rate)),
        ("optimizer.clip-norm", "positive and finite", positive(rates.clip_norm)),
        ("optimizer.warmup-share", "in [0, 1)", 0.0 <= rates.warmup_share < 1.0),
        ("optimizer.decay", "in (0, 1]", 0.0 < rates.decay <= 1.0),
        ("optimizer.power", "positive and finite", positive(rates.power)),
        ("optimizer.momentum", "in [0, 1)", 0.0 <= rates.momentum < 1.0),
        ("optimizer.weight-decay", "finite and at least 0", nonnegative(rates.weight_decay)),
        *size_rules(config),
    )
    check_fields(config, rules)
    parse_profile(config.profile)


def _of_digits(config: Any) -> bool:
    return config.data.source == "digits"


def _stem_fits(config: Any) -> bool:
    return getattr(config.network, "convolutional", True) or not config.network.stem
