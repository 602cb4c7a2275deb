"""Options of image classification and of scene labelling: the networks and their
runs."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...config.errors import OptionError, option_text
from ...config.options import (
    WIDEST,
    Count,
    Depth,
    Fraction,
    Iterations,
    Number,
    Parts,
    Positive,
    Text,
    Width,
    options,
)
from ...config.run import Judgement, OptimizerConfig, RunConfig, SourceConfig

ImageSource = Literal["digits", "cifar10", "image_folder"]


SceneSource = Literal["shapes", "camvid", "cityscapes"]


@options
class ImageConfig(SourceConfig):
    """Images to classify, and the folder for prepared data."""

    own: ClassVar[str] = "image_folder"

    source: ImageSource = "digits"
    """digits: 8x8 grey digits, no files needed. cifar10: the binary version, as archive
    or folder. image_folder: your images, as folder or archive.
    """
    root: Text | None = None
    """Folder or archive of your images, with a folder for each of two or more
    classes, ROOT/CLASS/NAME.png (or jpg), or of splits with such, as train/CLASS/..
    and test/CLASS/... What lies there tells the source, if none is given."""
    size: Annotated[int, Field(ge=4, le=1024)] | None = None
    """Images are resized to size x size pixels. None: all have one size."""
    validation_share: Fraction = 0.1
    """Share of train images held out for validation, stratified, and of all as much for
    test, where the images have no such splits."""


@options
class SceneConfig(SourceConfig):
    """Scenes to segment, and the folder for prepared data."""

    own: ClassVar[str] = "camvid"

    source: SceneSource = "shapes"
    """shapes: scenes drawn by the program, no files needed. camvid: in the layout of
    SegNet (train, trainannot). cityscapes: as published (leftImg8bit, gtFine), where
    val is the test split."""
    reduction: Width = 1
    """Divides both sides of the originals: images by averaging, labels by keeping
    one pixel of each block."""


@options
class ClassifierConfig:
    """Options that networks for images share: the kind of their layers, and the stem
    before them."""

    convolutional: bool = True
    """Convolutions. Else dense layers on flattened images."""
    stem: tuple[Width, ...] = ()
    """Channels of convolutions of stride 2 before all else: each halves the images."""


@options
class EquilibriumConfig:
    """Deep OptEq, without the layers around it."""

    channels: Width = 16
    """Channels of the state."""
    widths: tuple[Width, ...] = (16, 32)
    """Hidden channels of each layer."""
    input_layers: tuple[Depth, ...] | None = None
    """Layers that see the input, counted from 1. None means all."""
    use_bias: bool = True
    """Give layers biases."""
    skip: Number = 1.0
    """a in (0, 1]: share of the layer in each step. 1 has no skip connection."""
    way: Literal["implicit", "unrolled", "averaged"] = "implicit"
    """Method for the equilibrium and its gradient: implicit function theorem, K
    steps, or K steps of SAM."""
    num_steps: Annotated[int, Field(ge=1, le=10**4)] = 20
    """K of unrolled and averaged."""
    regulariser: Text | None = None
    """A name of unroll_jax.energies.REGULARISERS: a layer appended to the network,
    or what SAM regularises by."""
    regulariser_step: Number = 1.0
    """Step size g of the appended layer, prox_(g R) or I - g grad R."""
    regulariser_smoothness: Number | None = None
    """L_R of averaged, whose step size is 1 / (2 L_R), for a regulariser without one
    (decorrelation, absolute)."""
    max_norm: Number | None = 0.9
    """Spectral norm that every W is scaled down to where it is used. Reports print the
    norms of the trained W before that. None leaves them free (then nothing promises an
    equilibrium).
    """
    norm_steps: Iterations | None = None
    """None divides by a certified upper bound of the norm. Else power iteration of
    so many steps."""
    tol: Number = 1e-3
    """Relative tolerance of the equilibrium and of the adjoint."""
    max_steps: Iterations = 100
    """Cap of the solver. Metrics rows have its steps and the number of examples that
    converged."""


@options
class OptEqConfig(ClassifierConfig, EquilibriumConfig):
    """Deep OptEq behind a feature extractor."""

    features: Width | None = 16
    """Channels of the feature extractor before the equilibrium."""


@options
class SegmenterConfig(EquilibriumConfig):
    """Deep OptEq between a strided stem and a head that is enlarged to the image."""

    channels: Width = 32
    widths: tuple[Width, ...] = (32, 64, 64)
    stem: tuple[Width, ...] = (16, 32)
    """Channels of the convolutions of stride 2 before the equilibrium."""


@options
class MonConfig(ClassifierConfig):
    """One monotone operator layer (Winston and Kolter, 2020)."""

    channels: Width = 16
    """Channels of the state."""
    pool: Width | None = 4
    """Side of the windows that are averaged before the head. None averages over the
    whole image."""
    tol: Number = 1e-3
    """Relative tolerance of the equilibrium."""


@options
class OdeConfig(ClassifierConfig):
    """A neural ODE, integrated by diffrax from time 0 to 1."""

    widths: tuple[Width, ...] = (32,)
    """Hidden channels of the vector field."""
    features: Width | None = 16
    """Channels of the feature extractor and of the state."""
    augment: Annotated[int, Field(ge=0, le=WIDEST)] = 0
    """Channels of zeros appended to the state: an augmented neural ODE."""


@options
class FeedForwardConfig(ClassifierConfig):
    """A plain network of the same layers, each applied once."""

    widths: tuple[Width, ...] = (16, 32)
    """Channels of each layer."""
    features: Width | None = 16
    """Channels of the feature extractor before them."""


@options
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


@options
class SupervisedConfig(RunConfig):
    """Train a network on labelled images by cross entropy."""

    best_by: ClassVar[str] = "accuracy"
    """The score that the best checkpoint is best in."""
    rates: ClassVar[str] = "--optimizer.learning-rate or --optimizer.clip-norm"

    epochs: Iterations = 30
    """Passes over the train split."""
    steps: Count | None = None
    """Training steps, in place of --epochs."""
    batch_size: Parts = 64
    """Images a step."""
    train_examples: Count | None = None
    """Number of examples of the train split to train on, a fixed random choice. None
    means all."""
    validate_every: Count = 2
    """Epochs between validations. Each writes a checkpoint."""
    augment: bool = False
    """Flip images at random, and shift or crop them."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    data: ImageConfig | SceneConfig = dataclasses.field(default_factory=ImageConfig)
    network: Network = dataclasses.field(default_factory=OptEqConfig)

    def check(self) -> None:
        """Checks the rules of every run, and of images. Networks check their sizes
        when they are built."""
        super().check()
        if self.augment and self.data.source == "digits":
            allowed = "False for digits, which must not be mirrored"
            raise OptionError("augment", allowed, True)
        stem = getattr(self.network, "stem", ())
        if stem and not getattr(self.network, "convolutional", True):
            allowed = "() for dense layers, which see images as vectors"
            raise OptionError("network.stem", allowed, stem)

    @property
    def title(self) -> str:
        """The kind of network."""
        return type(self.network).__name__.removesuffix("Config")

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """By the metric, in percent."""
        return Judgement(True, None, 100.0 * row[self.best_by])


@options
class ImageTaskConfig(SupervisedConfig):
    """Classify images."""

    metric: ClassVar[str] = "validation accuracy %"

    lipschitz: Positive | None = None
    """Lipschitz constant (Euclidean, pixels in [0, 1]) that logits are scaled down to,
    in training too, where the bound of the network is larger: margins then certify
    something. None leaves them.
    """
    data: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def check(self) -> None:
        """Checks the rules of all networks, and of the limit."""
        super().check()
        if self.lipschitz is None or is_certifiable(self.network):
            return
        allowed = (
            f"None except for plain networks and OptEq with"
            f" {option_text('network.max_norm')} below 1, norm_steps and regulariser"
            " None, and way implicit or unrolled"
        )
        raise OptionError("lipschitz", allowed, self.lipschitz)


@options
class SceneTaskConfig(SupervisedConfig):
    """Label every pixel of scenes."""

    metric: ClassVar[str] = "validation mIoU %"
    best_by: ClassVar[str] = "intersection_over_union"
    data: SceneConfig = dataclasses.field(default_factory=SceneConfig)


@options
class ImageOptEqConfig(ImageTaskConfig):
    """Classify images with deep OptEq (Xie et al., Section 5.1)."""

    task: ClassVar[str] = "image-opteq"
    network: OptEqConfig = dataclasses.field(default_factory=OptEqConfig)


@options
class ImageMonConfig(ImageTaskConfig):
    """Classify images with a monotone operator network."""

    task: ClassVar[str] = "image-mon"
    network: MonConfig = dataclasses.field(default_factory=MonConfig)


@options
class ImageOdeConfig(ImageTaskConfig):
    """Classify images with a neural ODE, augmented or not."""

    task: ClassVar[str] = "image-ode"
    network: OdeConfig = dataclasses.field(default_factory=OdeConfig)


@options
class ImageFeedForwardConfig(ImageTaskConfig):
    """Classify images with a plain network."""

    task: ClassVar[str] = "image-dnn"
    network: FeedForwardConfig = dataclasses.field(default_factory=FeedForwardConfig)


@options
class SceneOptEqConfig(SceneTaskConfig):
    """Label every pixel of a scene with deep OptEq (Xie et al., Section 5.2)."""

    task: ClassVar[str] = "segment-opteq"
    network: SegmenterConfig = dataclasses.field(default_factory=SegmenterConfig)


@options
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
