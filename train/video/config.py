"""The configuration of video experiments."""

import dataclasses
from typing import Literal

import jax

from train.config import PrimalConfig, RunConfig, positive
from train.constrained import ConstraintConfig, DualConfig, check_depth, check_training
from train.data import DataConfig
from train.errors import UserError

__all__ = [
    "ModelConfig",
    "VideoConfig",
    "check_config",
]

Method = Literal["erm", "constrained"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The unrolled transformer."""

    num_layers: int = 3
    """Depth L."""
    rank: int | None = None
    """Rows of V; None means the token width."""
    attention_scale: float = 0.25
    """V starts as this times the cosine transform: the square sharpens or softens attention."""
    mixing: float = 0.2
    """W starts as this times the identity and U as the rest: how much of a layer's first output is attention's."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """What layers compute in; parameters, losses and multipliers stay float32, or are float64 too, for which
    JAX_ENABLE_X64=1 must be set."""


@dataclasses.dataclass(frozen=True)
class VideoConfig(RunConfig):
    """Denoise patch sequences of grey video with an unrolled transformer (Porras-Valenzuela et al., Section 4)."""

    method: Literal["erm", "constrained", "both"] = "constrained"
    """Plain risk, descent constraints, or one run of each and a report that compares them."""
    seed: int = 0
    """Seed of initialisation, batch order and noise."""
    steps: int = 1500
    """Training steps."""
    batch_size: int = 64
    """Sequences a step."""
    train_gamma: float = 0.15
    """Noise of training; gamma x the standard deviation of clean train pixels is the noise's variance."""
    test_gammas: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    """Noise levels of the evaluation; the training level is added when missing."""
    validate_every: int = 250
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do when two validations in a row show a collapsed model."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    # The paper's UT has alpha = 0.22 and f_ref = 5.5, which is below the input's loss on the built-in clips, as these
    # have more contrast than its videos.
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)


def check_config(config: VideoConfig) -> None:
    """Checks every number against what the experiment allows.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    check_training(
        config,
        ("model.dtype", "float32 or bfloat16 unless JAX_ENABLE_X64=1 is set", _computable(config.model.dtype)),
        ("model.mixing", "in [0, 1]", 0.0 <= config.model.mixing <= 1.0),
        ("model.attention-scale", "positive and finite", positive(config.model.attention_scale)),
    )
    check_depth(config, config.model.num_layers)
    if config.train_gamma == 0.0 and config.method != "erm":
        raise UserError(
            "--train-gamma 0 leaves descent constraints nothing to lower; use --method erm, or a gamma above 0"
        )


def _computable(dtype: str) -> bool:
    return dtype != "float64" or jax.config.read("jax_enable_x64")
