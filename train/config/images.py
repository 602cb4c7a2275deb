"""Options of image classification and of scene labelling."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from .data import ImageConfig, SceneConfig
from .disturbances import BLUR, SALT_AND_PEPPER, disturbance_rules
from .errors import option_text
from .fields import Basic, Condition, Count, Iterations, Parts, Positive, Rule, changes
from .networks import (
    FcnConfig,
    FeedForwardConfig,
    MonConfig,
    OdeConfig,
    OptEqConfig,
    SegmenterConfig,
    is_certifiable,
)
from .run import FREE, Judgement, OptimizerConfig, RunConfig

Network = OptEqConfig | MonConfig | OdeConfig | FeedForwardConfig | SegmenterConfig | FcnConfig
# Named otherwise, or what a run may go on with another value of.
_UNNAMED = ("seed", "data", *FREE)


@dataclasses.dataclass(frozen=True)
class SupervisedConfig(RunConfig):
    """Train a network on labelled images by cross entropy."""

    best_by: ClassVar[str] = "accuracy"
    """The score that the best checkpoint is best in."""
    larger_is_better: ClassVar[bool] = True
    rates: ClassVar[str] = "--optimizer.learning-rate or --optimizer.clip-norm"

    epochs: Basic[Iterations] = 30
    """Passes over the train split."""
    batch_size: Parts = 64
    """Images a step."""
    train_examples: Count | None = None
    """Number of examples of the train split to train on, a fixed random choice; None means all."""
    validate_every: Count = 2
    """Epochs between validations; each writes a checkpoint."""
    test_disturbances: tuple[str, ...] = ()
    """Disturbances of the pictures of the test split, one by one, as in salt-and-pepper=0.05 blur=1: share of values
    of pixels that are 0 or 1, deviation of a Gaussian in pixels."""
    augment: bool = False
    """Flip images at random, and shift or crop them."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    data: ImageConfig | SceneConfig = dataclasses.field(default_factory=ImageConfig)
    network: Network = dataclasses.field(default_factory=OptEqConfig)

    def rules(self) -> Iterator[Rule]:
        """Yields those of every run, and of images; networks check their sizes when they are built."""
        yield from super().rules()
        vectors = not getattr(self.network, "convolutional", True)
        yield "unroll", "None for networks, whose layers differ", self.unroll is None
        mirrored = self.augment and self.data.source == "digits"
        yield "augment", "False for digits, which must not be mirrored", not mirrored
        stem = getattr(self.network, "stem", ())
        yield "network.stem", "() for dense layers, which see images as vectors", not (vectors and stem)
        yield from disturbance_rules(self.test_disturbances, (SALT_AND_PEPPER, BLUR))

    def conditions(self) -> Iterator[Condition]:
        """Yields the options of one optimiser."""
        yield "optimizer.momentum", option_text("optimizer.name", "sgd"), self.optimizer.name == "sgd"

    def label(self) -> str:
        """The source, and every option of the run that is not the task's own, shortened."""
        joined = (
            (name, "x".join(map(str, value)) if isinstance(value, tuple) else value)
            for name, value in changes(self, type(self)(), but=_UNNAMED)
        )
        changed = [f"{name}{value}" for name, value in joined]
        return "-".join([self.data.source, *changed, f"seed{self.seed}"]).replace("/", "_")

    @property
    def title(self) -> str:
        """The kind of network."""
        return type(self.network).__name__.removesuffix("Config")

    def describe(self) -> str:
        """Network and epochs."""
        return f"{self.title}, {self.epochs} epochs"

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """Without constraints; the metric in percent."""
        return Judgement(True, None, 100.0 * row[self.best_by])


@dataclasses.dataclass(frozen=True)
class ImageTaskConfig(SupervisedConfig):
    """Classify images."""

    metric: ClassVar[str] = "validation accuracy %"

    lipschitz: Positive | None = None
    """Lipschitz constant of the logits in pixels of [0, 1], both in the Euclidean norm: where the bound of the network
    is larger, logits are scaled down to it, in training too, so that margins certify something; None leaves them."""
    test_noises: tuple[Positive, ...] = ()
    """Deviations of Gaussian noise on the pixels of the test split, which are in [0, 1]."""
    test_attacks: tuple[Positive, ...] = ()
    """Radii, in the Euclidean norm of all pixels of an image, which are in [0, 1], of a projected-gradient attack (PGD)
    on the cross entropy of the test split; OptEq and plain networks have the certified accuracy too."""
    attack_steps: Annotated[int, Ge(1), Le(10**4)] = 20
    """Gradient steps of the attack."""
    attack_examples: Count = 1000
    """Number of examples of the test split that are attacked, evenly spread over it."""
    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def rules(self) -> Iterator[Rule]:
        """Yields those of all networks, and of the disturbances of the test split."""
        yield from super().rules()
        for name, levels in (("test_noises", self.test_noises), ("test_attacks", self.test_attacks)):
            yield name, "positive and finite, each once", len(set(levels)) == len(levels)
        yield "lipschitz", _certifiable_words(), self.lipschitz is None or is_certifiable(self.network)

    def conditions(self) -> Iterator[Condition]:
        """Yields those of all networks, and of the attack."""
        yield from super().conditions()
        for name in ("attack_steps", "attack_examples"):
            yield name, option_text("test_attacks"), bool(self.test_attacks)


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


def _certifiable_words() -> str:
    names = ("max_norm", "norm_steps", "regulariser", "way")
    norm, steps, regulariser, way = (option_text(f"network.{name}") for name in names)
    return (
        f"None except for plain networks and OptEq with {norm} below 1, {steps} and {regulariser} None, and {way} "
        "implicit or unrolled"
    )
