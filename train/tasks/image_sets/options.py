"""Options and experiments of denoising sets of images with an unrolled transformer."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ...config.constrained import PAPER, ConstrainedConfig, ConstraintConfig, DualConfig
from ...config.errors import OptionError, option_text
from ...config.options import (
    Count,
    Depth,
    Fraction,
    Levels,
    NonNegative,
    NonNegatives,
    Parts,
    Text,
    options,
)
from ...config.run import Experiment, SourceConfig
from ..video.options import ModelConfig, VideoPrimalConfig

SetSource = Literal["digits", "class_folders"]


@options
class SetConfig(SourceConfig):
    """Grey images, the sets that are drawn from them, and the folder for prepared
    images."""

    own: ClassVar[str] = "class_folders"

    source: SetSource = "digits"
    """digits: scikit-learn's 8x8 digits, no files needed. class_folders: your
    images. --data.root implies it."""
    root: Text | None = None
    """Folder or archive of your images, with a folder for each of two or more
    classes, ROOT/CLASS/NAME.png (or jpg), or of splits with such, as train/CLASS/...
    """
    size: Annotated[int, Field(ge=4, le=64)] = 8
    """Images are resized to size x size pixels. A token has as many entries."""
    set_size: Depth = 16
    """Images of a set: its tokens."""
    classes: Depth = 2
    """Classes of a set, each with the same number of images."""
    validation_share: Fraction = 0.2
    """Share of your images held out for validation, and as much for test,
    stratified. Digits keep their splits."""


# Bounds of digits at the noise of training, where the loss of the input is this. Layers
# descend by alpha to the last loss of plain training, from which on they are bound by
# that. Of other images the defaults are in proportion.
INPUT_LOSS = 1.804
BOUNDS = ConstraintConfig(
    bounds="cumulative",
    reference=1.85,
    alpha=(0.26,),
    floor=0.4,
    margin=0.1,
    first_margin=0.1,
)


@options
class ImageSetConfig(ConstrainedConfig):
    """Denoise sets of grey images from a few classes with an unrolled transformer
    (Porras-Valenzuela et al., eqs. 47, 48): a token is an image, and images of a class
    attend to each other.
    """

    task: ClassVar[str] = "image-sets"
    metric: ClassVar[str] = "validation loss (half squared error of an image)"

    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Seeds of each method, from --seed on: a run each, and intervals in the report."""
    batch_size: Parts = 32
    """Sets a step."""
    layer_weights: NonNegatives = (0.03,)
    """Of deep_supervision, with 1 on the last layer: one number, or one for each of
    layers 1 to L - 1."""
    train_gamma: NonNegative = 0.15
    """Noise of training. Gamma x the standard deviation of clean train pixels is the
    noise's variance."""
    test_gammas: NonNegatives = (0.0, 0.05, 0.15, 0.25, 0.35, 0.5)
    """Noise levels of the evaluation. The training level is added when missing."""
    test_layer_noises: Levels = (0.05, 0.1)
    """Standard deviations of Gaussian noise on every layer's output in the
    evaluation, at the noise of training."""
    validate_every: Count = 500
    """Steps between validations. Each writes a checkpoint."""
    data: SetConfig = dataclasses.field(default_factory=SetConfig)
    model: ModelConfig = dataclasses.field(
        default_factory=lambda: ModelConfig(num_layers=5)
    )
    primal: VideoPrimalConfig = dataclasses.field(
        default_factory=lambda: VideoPrimalConfig(learning_rate=0.012)
    )
    dual: DualConfig = dataclasses.field(
        default_factory=lambda: DualConfig(optimizer="adam", learning_rate=0.03)
    )
    constraints: ConstraintConfig = dataclasses.field(default_factory=lambda: BOUNDS)

    def check(self) -> None:
        """Checks the rules of all such runs, of sets, and of seeds."""
        super().check()
        data = self.data
        if data.set_size % data.classes:
            allowed = f"a multiple of {option_text('data.classes', data.classes)}"
            raise OptionError("data.set_size", allowed, data.set_size)
        if data.source != "digits" and data.validation_share >= 0.5:
            allowed = "below 0.5, as validation and test each take so much"
            raise OptionError("data.validation_share", allowed, data.validation_share)

    def variants(self) -> Sequence[tuple[str, Self]]:
        """The runs of each method, a folder for each seed."""
        if self.seeds == 1:
            return super().variants()
        each = dataclasses.replace(self, seeds=1).variants()
        seeds = range(self.seed, self.seed + self.seeds)
        return [
            (f"{name or one.method}-{seed}", dataclasses.replace(one, seed=seed))
            for name, one in each
            for seed in seeds
        ]


# Nine trials each at seed 100, by the validation loss (docs/results/demo.md): plain at
# rates from .002 to .02; deep supervision at the weights .03, .1, .3 and constraints at
# alpha .22, .26, .3, both at the rates .004, .008, .012.
DEMO = Experiment(
    config=ImageSetConfig(method="all", seeds=5, out="runs/demo"),
    summary=(
        "a transformer that denoises sets of digits: plain, deep supervision and"
        " constrained, five seeds each"
    ),
    paper=PAPER,
    expect=(
        "half squared error 0.39 plain, 0.40 constrained and with deep supervision, of"
        " a linear layer 0.57; every layer descends under constraints; 2.5 minutes"
        " on 2 cores"
    ),
)


EXPERIMENTS: dict[str, Experiment] = {
    "demo": DEMO,
    "image-sets": Experiment(
        config=ImageSetConfig(),
        summary=(
            "the transformer of the demo on digits or your images (--data.root), one"
            " method (or several)"
        ),
        paper=PAPER,
        expect=(
            "feasible; half squared error 0.40 on digits, of a linear layer 0.57; 15"
            " seconds on one core"
        ),
    ),
}
