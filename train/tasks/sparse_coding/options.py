"""Options of sparse coding: the network and its runs."""

import dataclasses
from typing import ClassVar, Literal

from ...config.constrained import ConstrainedConfig, ConstraintConfig
from ...config.options import (
    Count,
    Depth,
    Levels,
    NonNegative,
    NonNegatives,
    Parts,
    Positive,
    Width,
    options,
)
from ...config.run import PrimalConfig
from ..images.options import ImageConfig


@options
class CodeConfig(ImageConfig):
    """Images to code, in grey, the dictionary to code them in, and the folder for
    prepared images and codes."""

    dictionary: Literal["learned", "random"] = "learned"
    """learned: from the train images, by scikit-learn, which takes long for large
    images. random: Gaussian atoms of unit length, the same ones every time.
    """
    atoms: Width | None = None
    """Atoms of the dictionary, and so the width of a code; None: 1.2 times the
    pixels of an image."""
    sparsity: Positive = 0.1
    """lambda of the Lasso that codes solve, 1/2 |x - D'z|^2 + lambda |z|_1, pixels
    in [0, 1]."""


@options
class ListaConfig:
    """LISTA: layers of iterative soft thresholding, each with its weights."""

    num_layers: Depth = 10
    """Depth L."""
    weights: Literal["ista", "noise"] = "ista"
    """Initial weights. ista: from ISTA in the dictionary; noise: Gaussian, of a
    deviation of 0.01 (Hadou et al.)."""
    start: NonNegative = 0.0
    """Standard deviation of the codes of layer 0, drawn anew for every image and
    step; at 0 they are 0."""


@options
class SparseCodingConfig(ConstrainedConfig):
    """Find the sparse codes of images by a few layers (LISTA; Gregor and LeCun 2010,
    Hadou et al. 2023)."""

    task: ClassVar[str] = "sparse-coding"
    metric: ClassVar[str] = "validation loss (half squared error of a code)"

    steps: Count = 3000
    batch_size: Parts = 64
    """Images a step."""
    train_gamma: NonNegative = 0.0
    """Noise of training on the images: its standard deviation over the standard
    deviation of clean train pixels."""
    test_gammas: NonNegatives = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Noise levels of the evaluation, in the same unit; the training level is added
    when missing."""
    layer_noise: NonNegative = 0.0
    """Standard deviation of Gaussian noise on every layer's output, in training and
    validation."""
    test_layer_noises: Levels = (0.1, 0.2)
    """The same in the evaluation, level by level, at the noise of training on the
    input; none: not evaluated."""
    data: CodeConfig = dataclasses.field(default_factory=CodeConfig)
    model: ListaConfig = dataclasses.field(default_factory=ListaConfig)
    primal: PrimalConfig = dataclasses.field(
        default_factory=lambda: PrimalConfig(learning_rate=3e-3)
    )
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(alpha=(0.15,))
    )
