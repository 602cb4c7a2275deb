"""Options of video denoising: the models, their runs, and disturbances of an
evaluation's frames."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Le

from .constrained import ConstrainedConfig
from .constraints import ConstraintConfig
from .data import DataConfig
from .errors import OptionError, option_text
from .fields import WIDEST, Depth, NonNegative, Parts, Positive, Rule, Width
from .run import PrimalConfig

PATCH_PIXELS = 16**2
SALT_AND_PEPPER, BLUR, DROPPED = "salt-and-pepper", "blur", "dropped"
# The largest size of each, and its meaning; all are above 0. Of a wider blur, little
# but the mean grey is left.
SIZES = {
    SALT_AND_PEPPER: (1.0, "a share"),
    BLUR: (100.0, "a deviation in pixels"),
    DROPPED: (1.0, "a share"),
}


class Disturbance(NamedTuple):
    """A kind of disturbance of inputs other than Gaussian noise, one of `SIZES`, and
    its strength."""

    name: str
    size: float

    @property
    def label(self) -> str:
        """The word that it is typed as, and that figures name it by."""
        return f"{self.name}={self.size:g}"


def disturbances(words: Sequence[str]) -> list[Disturbance]:
    """Returns the disturbances of words NAME=SIZE, sorted by name and then by
    strength."""
    parsed = []
    for word in words:
        name, _, size = word.partition("=")
        if name not in SIZES:
            raise OptionError("test_disturbances", f"of {', '.join(SIZES)}", word)
        most, meaning = SIZES[name]
        try:
            parsed.append(Disturbance(name, float(size)))
        except ValueError:
            raise OptionError("test_disturbances", "as in blur=1", word) from None
        if not 0.0 < parsed[-1].size <= most:
            raise OptionError(
                "test_disturbances",
                f"{name}=SIZE with {meaning} above 0 and at most {most:g}",
                word,
            )
    if len({one.label for one in parsed}) < len(parsed):
        raise OptionError("test_disturbances", "each once", " ".join(words))
    return sorted(parsed)


@dataclasses.dataclass(frozen=True)
class VideoPrimalConfig(PrimalConfig):
    """Adam on the parameters, in the cosine basis of patches, or Muon, which needs
    no basis."""

    learning_rate: Positive = 2e-3
    """Peak learning rate."""
    basis: Literal["cosine", "pixels"] = "cosine"
    """Coordinates of Adam: cosine, coefficients of a patch's cosine transform, in which
    a step changes no brightness; pixels, as they are stored. Muon's steps are the same
    in either.
    """


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """Models of the sequences of one patch position."""

    num_layers: Depth = 3
    """Depth L."""
    self_loops: bool = True
    """Let frames attend to themselves; they do so more under noise that is stronger
    than in training."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Dtype of layers and codes; parameters and losses stay float32, or are float64
    too (with JAX_ENABLE_X64=1)."""


@dataclasses.dataclass(frozen=True)
class ModelConfig(SequenceOptions):
    """The unrolled transformer."""

    rank: Width | None = None
    """Rows of V; None means the token width."""


@dataclasses.dataclass(frozen=True)
class DustOptions(SequenceOptions):
    """DUST: sparse codes of the patches of a sequence, which attend to one another."""

    num_atoms: Width = 256
    """Atoms of the dictionary, which starts as cosines: more than the 256 pixels of
    a patch make it overcomplete."""
    sparsity: NonNegative = 0.3
    """lambda: what a code's entry costs, in the units of pixels in [0, 1]."""


@dataclasses.dataclass(frozen=True)
class ViTOptions:
    """A vision transformer that sees the patches of one frame at a time, and whose
    every state is the frame."""

    num_layers: Depth = 3
    """Depth L."""
    dim: Width = 256
    """Width, a multiple of the 256 pixels of a patch."""
    num_heads: Depth = 4
    """Attention heads, which share out the width."""
    hidden_dim: Annotated[int, Ge(1), Le(4 * WIDEST)] = 512
    """Width between the dense layers."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class VideoRunConfig(ConstrainedConfig):
    """Denoise patches of grey video (Porras-Valenzuela et al., Section 4)."""

    metric: ClassVar[str] = "validation loss (half squared error per patch)"

    batch_size: Parts = 64
    """Samples a step: sequences of one patch position through 20 frames, or frames."""
    train_gamma: NonNegative = 0.15
    """Noise of training; gamma x the standard deviation of clean train pixels is the
    noise's variance."""
    test_gammas: tuple[NonNegative, ...] = (
        0.0,
        0.05,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
        0.4,
        0.5,
    )
    """Noise levels of the evaluation; the training level is added when missing."""
    test_disturbances: tuple[str, ...] = ()
    """Disturbances of the frames in the evaluation, one by one, with the noise of
    training, as in blur=1 dropped=0.1: salt-and-pepper, share of pixels; blur,
    deviation in pixels; dropped, share of frames that repeat the last one.
    """
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig | DustOptions | ViTOptions = dataclasses.field(
        default_factory=ModelConfig
    )

    def check(self) -> None:
        """Checks every value, and each disturbance."""
        super().check()
        disturbances(self.test_disturbances)

    def rules(self) -> Iterator[Rule]:
        """Yields the rules of all such runs, and of the dtype."""
        yield from super().rules()
        yield (
            "model.dtype",
            "float32 or bfloat16 unless JAX_ENABLE_X64=1 is set",
            _computable(self.model.dtype),
        )

    def label(self) -> str:
        """Source, method, depth, noise and seed."""
        depth = f"L{self.model.num_layers}"
        changed = (
            (self.task.removeprefix("video-"), self.task != "video"),
            ("noself", not getattr(self.model, "self_loops", True)),
            ("pixels", getattr(self.primal, "basis", "cosine") == "pixels"),
            ("muon", self.primal.name == "muon"),
        )
        others = [name for name, there in changed if there]
        return "-".join(
            (
                self.data.source,
                self.method,
                depth,
                f"gamma{self.train_gamma}",
                *others,
                f"seed{self.seed}",
            )
        )


# The paper's UT has alpha = 0.22 and f_ref = 5.5, below the input's loss on our clips,
# which have more contrast.
@dataclasses.dataclass(frozen=True)
class VideoConfig(VideoRunConfig):
    """Denoise patch sequences of grey video with an unrolled transformer
    (Porras-Valenzuela et al., Section 4)."""

    task: ClassVar[str] = "video"
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    primal: VideoPrimalConfig = dataclasses.field(default_factory=VideoPrimalConfig)
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(reference=8.0)
    )

    def rules(self) -> Iterator[Rule]:
        """Yields the rules of all such runs, and of noise: without it, layer 0 has
        no loss to take a share of."""
        yield from super().rules()
        cumulative, given = (
            option_text("constraints.bounds", "cumulative"),
            self.constraints,
        )
        absolute = given.bounds == "cumulative" or given.last is not None
        yield (
            "train_gamma",
            f"above 0, or {cumulative}",
            absolute or self.train_gamma > 0.0 or not self.enforces,
        )


@dataclasses.dataclass(frozen=True)
class VideoDustConfig(VideoRunConfig):
    """Denoise patch sequences of grey video with DUST (Porras-Valenzuela et al.,
    Section 4)."""

    task: ClassVar[str] = "video-dust"
    model: DustOptions = dataclasses.field(default_factory=DustOptions)
    primal: VideoPrimalConfig = dataclasses.field(default_factory=VideoPrimalConfig)


@dataclasses.dataclass(frozen=True)
class VideoViTConfig(VideoRunConfig):
    """Denoise frames of grey video with a vision transformer (Porras-Valenzuela et
    al., Section 4)."""

    task: ClassVar[str] = "video-vit"

    batch_size: Parts = 4
    """Frames a step."""
    model: ViTOptions = dataclasses.field(default_factory=ViTOptions)
    primal: PrimalConfig = dataclasses.field(default_factory=lambda: PrimalConfig(3e-3))

    def rules(self) -> Iterator[Rule]:
        """Yields the rules of video, and of the transformer's sizes."""
        yield from super().rules()
        model, dim = self.model, option_text("model.dim", self.model.dim)
        yield "model.num_heads", f"a divisor of {dim}", model.dim % model.num_heads == 0
        yield (
            "model.dim",
            f"a multiple of the {PATCH_PIXELS} pixels of a patch",
            model.dim % PATCH_PIXELS == 0,
        )


def _computable(dtype: str) -> bool:
    if dtype != "float64":
        return True
    import jax  # which knows the setting; the other choices need not wait for it

    return jax.config.read("jax_enable_x64")
