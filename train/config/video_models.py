"""Other models of video than the unrolled transformer."""

import dataclasses
from typing import Literal

from .basic import Basic
from .fields import Rule, positive


@dataclasses.dataclass(frozen=True)
class ViTOptions:
    """A vision transformer that sees the patches of one frame at a time, and whose every layer is read as the frame."""

    pretrained: Basic[str | None] = None
    """Folder with config.json and model.safetensors of a ViT (ViTModel, ViTForImageClassification,
    ViTForMaskedImageModeling), or a repository of the Hugging Face hub; None draws a small one, whose sizes are those
    below."""
    revision: str | None = None
    """Of the repository: branch, tag or commit."""
    num_layers: Basic[int] = 3
    """Depth L, without pretrained weights; the next three options likewise."""
    dim: int = 256
    """Width."""
    num_heads: int = 4
    """Attention heads, which share out the width."""
    hidden_dim: int = 512
    """Width between the dense layers."""
    reading: Literal["state", "residual", "linear"] = "state"
    """Readout of a frame from a layer's state: state, it is one, as the paper has it, and its width must be a multiple
    of the pixels of a patch; residual, the noisy frame plus a readout of the state that all layers share; linear, that
    readout alone."""
    mean: float = 0.5
    """Subtracted from pixels in [0, 1]; 0.5 is what most ViTs were pretrained with."""
    std: float = 0.5
    """Divides the difference; 0.5 likewise."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


def vit_rules(model: ViTOptions, pixels: int, *, prefix: str = "model") -> list[Rule]:
    """Returns the rules for the options, for `check_training`; ``pixels`` are those of a patch."""
    drawn = model.pretrained is None
    return [
        (f"{prefix}.std", "positive and finite", positive(model.std)),
        (
            f"{prefix}.num-heads",
            f"a divisor of --{prefix}.dim {model.dim}",
            not drawn or model.dim % max(model.num_heads, 1) == 0,
        ),
        (
            f"{prefix}.dim",
            f"a multiple of the {pixels} pixels of a patch with --{prefix}.reading state",
            not drawn or model.reading != "state" or model.dim % pixels == 0,
        ),
    ]


def vit_conditions(model: ViTOptions, *, prefix: str = "model") -> list[tuple[str, str, bool]]:
    """Returns the conditions under which options have an effect, for `check_used`."""
    there, drawn = model.pretrained is not None, f"a transformer that is drawn (--{prefix}.pretrained None)"
    sizes = ("num-layers", "dim", "num-heads", "hidden-dim")
    return [
        (f"{prefix}.revision", f"--{prefix}.pretrained", there),
        *((f"{prefix}.{name}", drawn, not there) for name in sizes),
    ]
