"""Options of image classification and of scene labelling: the networks and their
runs."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from .data import ImageConfig, SceneConfig
from .errors import option_text
from .fields import (
    WIDEST,
    Count,
    Depth,
    Iterations,
    Parts,
    Positive,
    Rule,
    Width,
    changes,
)
from .run import FREE, Judgement, OptimizerConfig, RunConfig


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """Options that networks for images share: the kind of their layers, and the stem
    before them."""

    convolutional: bool = True
    """Convolutions; else dense layers on flattened images."""
    stem: tuple[Width, ...] = ()
    """Channels of convolutions of stride 2 before all else: each halves the images."""


@dataclasses.dataclass(frozen=True)
class EquilibriumConfig:
    """Deep OptEq, without the layers around it."""

    channels: Width = 16
    """Channels of the state."""
    widths: tuple[Width, ...] = (16, 32)
    """Hidden channels of each layer."""
    input_layers: tuple[Depth, ...] | None = None
    """Layers that see the input, counted from 1; None means all."""
    use_bias: bool = True
    """Give layers biases."""
    skip: float = 1.0
    """a in (0, 1]: share of the layer in each step; 1 has no skip connection."""
    way: Literal["implicit", "unrolled", "averaged"] = "implicit"
    """Method for the equilibrium and its gradient: implicit function theorem, K
    steps, or K steps of SAM."""
    num_steps: Annotated[int, Ge(1), Le(10**4)] = 20
    """K of unrolled and averaged."""
    regulariser: str | None = None
    """A name of unroll_jax.energies.REGULARISERS: a layer appended to the network,
    or what SAM regularises by."""
    regulariser_step: float = 1.0
    """Step size g of the appended layer, prox_(g R) or I - g grad R."""
    regulariser_smoothness: float | None = None
    """L_R of averaged, whose step size is 1 / (2 L_R), for a regulariser without one
    (decorrelation, absolute)."""
    max_norm: float | None = 0.9
    """Spectral norm that every W is scaled down to where it is used; reports print the
    norms of the trained W before that. None leaves them free (then nothing promises an
    equilibrium).
    """
    norm_steps: Iterations | None = None
    """None divides by a certified upper bound of the norm; else power iteration of
    so many steps."""
    tol: float = 1e-3
    """Relative tolerance of the equilibrium and of the adjoint."""
    max_steps: Iterations = 100
    """Cap of the solver; metrics rows have its steps and the number of examples that
    converged."""


@dataclasses.dataclass(frozen=True)
class OptEqConfig(ClassifierConfig, EquilibriumConfig):
    """Deep OptEq behind a feature extractor."""

    features: Width | None = 16
    """Channels of the feature extractor before the equilibrium."""


@dataclasses.dataclass(frozen=True)
class SegmenterConfig(EquilibriumConfig):
    """Deep OptEq between a strided stem and a head that is enlarged to the image."""

    channels: Width = 32
    widths: tuple[Width, ...] = (32, 64, 64)
    stem: tuple[Width, ...] = (16, 32)
    """Channels of the convolutions of stride 2 before the equilibrium."""


@dataclasses.dataclass(frozen=True)
class MonConfig(ClassifierConfig):
    """One monotone operator layer (Winston and Kolter, 2020)."""

    channels: Width = 16
    """Channels of the state."""
    pool: Width | None = 4
    """Side of the windows that are averaged before the head; None averages over the
    whole image."""
    tol: float = 1e-3
    """Relative tolerance of the equilibrium."""


@dataclasses.dataclass(frozen=True)
class OdeConfig(ClassifierConfig):
    """A neural ODE, integrated by diffrax from time 0 to 1."""

    widths: tuple[Width, ...] = (32,)
    """Hidden channels of the vector field."""
    features: Width | None = 16
    """Channels of the feature extractor and of the state."""
    augment: Annotated[int, Ge(0), Le(WIDEST)] = 0
    """Channels of zeros appended to the state: an augmented neural ODE."""


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(ClassifierConfig):
    """A plain network of the same layers, each applied once."""

    widths: tuple[Width, ...] = (16, 32)
    """Channels of each layer."""
    features: Width | None = 16
    """Channels of the feature extractor before them."""


@dataclasses.dataclass(frozen=True)
class FcnConfig:
    """A fully convolutional network: the segmenter's stem and head around plain
    convolutions."""

    widths: tuple[Width, ...] = (32, 64, 64)
    """Channels of each layer."""
    stem: tuple[Width, ...] = (16, 32)
    """Channels of the convolutions of stride 2 before them."""


Network = (
    OptEqConfig
    | MonConfig
    | OdeConfig
    | FeedForwardConfig
    | SegmenterConfig
    | FcnConfig
)
_UNNAMED = ("seed", "data", *FREE)  # named otherwise, or free to change


@dataclasses.dataclass(frozen=True)
class SupervisedConfig(RunConfig):
    """Train a network on labelled images by cross entropy."""

    best_by: ClassVar[str] = "accuracy"
    """The score that the best checkpoint is best in."""
    rates: ClassVar[str] = "--optimizer.learning-rate or --optimizer.clip-norm"

    epochs: Iterations = 30
    """Passes over the train split."""
    batch_size: Parts = 64
    """Images a step."""
    train_examples: Count | None = None
    """Number of examples of the train split to train on, a fixed random choice; None
    means all."""
    validate_every: Count = 2
    """Epochs between validations; each writes a checkpoint."""
    augment: bool = False
    """Flip images at random, and shift or crop them."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    data: ImageConfig | SceneConfig = dataclasses.field(default_factory=ImageConfig)
    network: Network = dataclasses.field(default_factory=OptEqConfig)

    def rules(self) -> Iterator[Rule]:
        """Yields the rules of every run, and of images; networks check their sizes
        when they are built."""
        yield from super().rules()
        vectors = not getattr(self.network, "convolutional", True)
        mirrored = self.augment and self.data.source == "digits"
        yield "augment", "False for digits, which must not be mirrored", not mirrored
        stem = getattr(self.network, "stem", ())
        yield (
            "network.stem",
            "() for dense layers, which see images as vectors",
            not (vectors and stem),
        )

    def followers(self) -> Iterator[tuple[str, Any]]:
        """Yields the augmentation, which digits do not take, and the stem, which
        dense layers do not have."""
        yield from [("augment", False)] * (self.data.source == "digits")
        yield from [("network.stem", ())] * (
            not getattr(self.network, "convolutional", True)
        )

    def label(self) -> str:
        """The source, and every option of the run that is not the task's own,
        shortened."""
        changed = [
            f"{name}{'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in changes(self, type(self)(), but=_UNNAMED)
        ]
        return "-".join([self.data.source, *changed, f"seed{self.seed}"]).replace(
            "/", "_"
        )

    @property
    def title(self) -> str:
        """The kind of network."""
        return type(self.network).__name__.removesuffix("Config")

    def describe(self) -> str:
        """Network and epochs."""
        return f"{self.title}, {self.epochs} epochs"

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """By the metric, in percent."""
        return Judgement(True, None, 100.0 * row[self.best_by])


@dataclasses.dataclass(frozen=True)
class ImageTaskConfig(SupervisedConfig):
    """Classify images."""

    metric: ClassVar[str] = "validation accuracy %"

    lipschitz: Positive | None = None
    """Lipschitz constant (Euclidean, pixels in [0, 1]) that logits are scaled down to,
    in training too, where the bound of the network is larger: margins then certify
    something; None leaves them.
    """
    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def rules(self) -> Iterator[Rule]:
        """Yields the rules of all networks, and of the limit."""
        yield from super().rules()
        names = ("max_norm", "norm_steps", "regulariser", "way")
        norm, steps, regulariser, way = (
            option_text(f"network.{name}") for name in names
        )
        opteq = (
            f"OptEq with {norm} below 1, {steps} and {regulariser} None, and {way}"
            " implicit or unrolled"
        )
        allowed = f"None except for plain networks and {opteq}"
        yield (
            "lipschitz",
            allowed,
            self.lipschitz is None or is_certifiable(self.network),
        )


@dataclasses.dataclass(frozen=True)
class SceneTaskConfig(SupervisedConfig):
    """Label every pixel of scenes."""

    metric: ClassVar[str] = "validation mIoU %"
    best_by: ClassVar[str] = "intersection_over_union"
    data: SceneConfig = dataclasses.field(default_factory=SceneConfig)


@dataclasses.dataclass(frozen=True)
class ImageOptEqConfig(ImageTaskConfig):
    """Classify images with deep OptEq (Xie et al., Section 5.1)."""

    task: ClassVar[str] = "image-opteq"
    network: OptEqConfig = dataclasses.field(default_factory=OptEqConfig)


@dataclasses.dataclass(frozen=True)
class ImageMonConfig(ImageTaskConfig):
    """Classify images with a monotone operator network."""

    task: ClassVar[str] = "image-mon"
    network: MonConfig = dataclasses.field(default_factory=MonConfig)


@dataclasses.dataclass(frozen=True)
class ImageOdeConfig(ImageTaskConfig):
    """Classify images with a neural ODE, augmented or not."""

    task: ClassVar[str] = "image-ode"
    network: OdeConfig = dataclasses.field(default_factory=OdeConfig)


@dataclasses.dataclass(frozen=True)
class ImageFeedForwardConfig(ImageTaskConfig):
    """Classify images with a plain network."""

    task: ClassVar[str] = "image-dnn"
    network: FeedForwardConfig = dataclasses.field(default_factory=FeedForwardConfig)


@dataclasses.dataclass(frozen=True)
class SceneOptEqConfig(SceneTaskConfig):
    """Label every pixel of a scene with deep OptEq (Xie et al., Section 5.2)."""

    task: ClassVar[str] = "segment-opteq"
    network: SegmenterConfig = dataclasses.field(default_factory=SegmenterConfig)


@dataclasses.dataclass(frozen=True)
class SceneFcnConfig(SceneTaskConfig):
    """Label every pixel of a scene with a fully convolutional network."""

    task: ClassVar[str] = "segment-fcn"
    network: FcnConfig = dataclasses.field(default_factory=FcnConfig)


def is_certifiable(network: object) -> bool:
    """Returns whether a Lipschitz constant is known: of plain networks, and of OptEq
    held by a certified norm below 1. SAM and regularisers change the map from features
    to states, and have none.
    """
    if isinstance(network, OptEqConfig):
        held = (
            network.max_norm is not None
            and network.max_norm < 1.0
            and network.norm_steps is None
        )
        return held and network.way != "averaged" and network.regulariser is None
    return isinstance(network, FeedForwardConfig)
