"""Video denoising: the models, and the numbers of their runs."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from .basic import Basic
from .checks import check_depth, check_training, perturbation_rules
from .constraints import ConstraintConfig, PerturbedConfig
from .data import DataConfig
from .errors import UserError
from .fields import Rule, check_used, nonnegative, positive
from .run import PrimalConfig
from .video_models import ViTOptions, vit_conditions, vit_rules

PATCH_PIXELS = 16**2


@dataclasses.dataclass(frozen=True)
class VideoPrimalConfig(PrimalConfig):
    """Adam on the parameters, in the cosine basis of patches, or Muon, which needs no basis."""

    learning_rate: float = 2e-3
    """Peak learning rate."""
    basis: Literal["cosine", "pixels"] = "cosine"
    """Coordinates of Adam for the entries of V, W and U that stand for pixels: cosine, coefficients of the cosine
    transform of a patch, so that a step does not change brightness; pixels, as they are stored. Muon's steps are the
    same in either."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The unrolled transformer."""

    num_layers: Basic[int] = 3
    """Depth L."""
    rank: int | None = None
    """Rows of V; None means the token width."""
    attention_scale: float = 0.25
    """V starts as this times the cosine transform: the square sharpens or softens attention."""
    self_loops: bool = True
    """Let frames attend to themselves; they do so more under noise that is stronger than in training."""
    mixing: float = 0.2
    """W starts as this times the identity and U as the rest: how much of a layer's first output is attention's."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32, or are float64 too, for which
    JAX_ENABLE_X64=1 must be set."""


@dataclasses.dataclass(frozen=True)
class DustOptions:
    """DUST: sparse codes of the patches of a sequence, which attend to one another."""

    num_layers: Basic[int] = 3
    """Depth L."""
    num_atoms: int = 256
    """Atoms of the dictionary, which starts as cosines: more than the 256 pixels of a patch make it overcomplete."""
    tied: bool = False
    """One dictionary for all layers; the paper's unconstrained models have one, its constrained ones one a layer."""
    sparsity: float = 0.3
    """lambda: what a code's entry costs, in the units of pixels in [0, 1]."""
    attention_scale: float = 0.25
    """The multiple of the identity through which attention sees codes."""
    train_attention: bool = False
    """Train that matrix too; the paper trains dictionaries alone."""
    self_loops: bool = True
    """Let frames attend to themselves; they do so more under noise that is stronger than in training."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Dtype that codes are kept in from layer to layer; they are computed in float32, or in float64, for which
    JAX_ENABLE_X64=1 must be set."""


@dataclasses.dataclass(frozen=True)
class VideoRunConfig(PerturbedConfig):
    """Denoise patches of grey video (Porras-Valenzuela et al., Section 4)."""

    metric: ClassVar[str] = "validation loss (half squared error per patch)"
    unit: ClassVar[str] = "half squared error per patch"

    batch_size: int = 64
    """Samples a step: sequences of one patch position through 20 frames, or frames."""
    train_gamma: float = 0.15
    """Noise of training; gamma x the standard deviation of clean train pixels is the noise's variance."""
    test_gammas: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    """Noise levels of the evaluation; the training level is added when missing."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig | DustOptions | ViTOptions = dataclasses.field(default_factory=ModelConfig)

    def check(self) -> None:
        """Checks every number against what the task allows."""
        dtype = self.model.dtype
        check_training(
            self,
            ("model.dtype", "float32 or bfloat16 unless JAX_ENABLE_X64=1 is set", _computable(dtype)),
            *self.model_rules(),
            *perturbation_rules(self),
        )
        if not self.pretrained:  # else the task checks the depth that it finds
            check_depth(self, self.model.num_layers)
        if self.train_gamma == 0.0 and self.enforces:
            raise UserError(
                "--train-gamma 0 leaves descent constraints nothing to lower; use --method erm, or a gamma above 0"
            )

    @property
    def pretrained(self) -> str | None:
        """The source of pretrained weights; None without one."""
        return getattr(self.model, "pretrained", None)

    def model_rules(self) -> tuple[Rule, ...]:
        """Returns the rules for the model's numbers."""
        return ()

    def label(self) -> str:
        """Source, method, depth, noise and seed."""
        depth = Path(self.pretrained).name if self.pretrained else f"L{self.model.num_layers}"
        changed = (
            (self.task.removeprefix("video-"), self.task != "video"),
            ("noself", not getattr(self.model, "self_loops", True)),
            ("pixels", getattr(self.primal, "basis", "cosine") == "pixels"),
            ("muon", self.primal.name == "muon"),
            (f"layers{self.layer_noise}", self.layer_noise > 0.0),
        )
        others = [name for name, there in changed if there]
        return "-".join((self.data.source, self.method, depth, f"gamma{self.train_gamma}", *others, f"seed{self.seed}"))

    def describe(self) -> str:
        """Method, depth and steps."""
        model = self.pretrained or f"{self.model.num_layers} layers"
        return f"{self.method}, {model}, {self.steps} steps"


# The paper's UT has alpha = 0.22 and f_ref = 5.5, which is below the input's loss on the built-in clips, as these have
# more contrast than its videos.
@dataclasses.dataclass(frozen=True)
class VideoConfig(VideoRunConfig):
    """Denoise patch sequences of grey video with an unrolled transformer (Porras-Valenzuela et al., Section 4)."""

    task: ClassVar[str] = "video"

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    primal: VideoPrimalConfig = dataclasses.field(default_factory=VideoPrimalConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=lambda: ConstraintConfig(reference=8.0))

    def model_rules(self) -> tuple[Rule, ...]:
        """Initial weights."""
        model = self.model
        return (
            ("model.mixing", "in [0, 1]", 0.0 <= model.mixing <= 1.0),
            ("model.attention-scale", "positive and finite", positive(model.attention_scale)),
        )


@dataclasses.dataclass(frozen=True)
class VideoDustConfig(VideoRunConfig):
    """Denoise patch sequences of grey video with DUST (Porras-Valenzuela et al., Section 4)."""

    task: ClassVar[str] = "video-dust"

    model: DustOptions = dataclasses.field(default_factory=DustOptions)
    primal: VideoPrimalConfig = dataclasses.field(default_factory=VideoPrimalConfig)

    def model_rules(self) -> tuple[Rule, ...]:
        """The energy's weights."""
        model = self.model
        return (
            ("model.sparsity", "finite and at least 0", nonnegative(model.sparsity)),
            ("model.attention-scale", "positive and finite", positive(model.attention_scale)),
        )


@dataclasses.dataclass(frozen=True)
class VideoViTConfig(VideoRunConfig):
    """Denoise frames of grey video with a vision transformer (Porras-Valenzuela et al., Section 4)."""

    task: ClassVar[str] = "video-vit"

    batch_size: int = 4
    """Frames a step."""
    model: ViTOptions = dataclasses.field(default_factory=ViTOptions)
    primal: PrimalConfig = dataclasses.field(default_factory=lambda: PrimalConfig(3e-3))

    def model_rules(self) -> tuple[Rule, ...]:
        """Its sizes."""
        check_used(self, type(self)(), vit_conditions(self.model))
        return tuple(vit_rules(self.model, PATCH_PIXELS))


def _computable(dtype: str) -> bool:
    if dtype != "float64":
        return True
    import jax  # which knows what was set; the other choices need not wait for it

    return jax.config.read("jax_enable_x64")
