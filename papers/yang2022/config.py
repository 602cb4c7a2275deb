"""Options of `python -m papers.yang2022`: the figures to draw, and their data."""

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from unroll_jax.train.config.errors import OptionError
from unroll_jax.train.config.options import (
    Count,
    Depth,
    Positive,
    Seed,
    Text,
    Width,
    options,
)

NUMBERS = (1, 2, 3, 4, 5, 6)
RhoName = Literal[
    "softmax",
    "log",
    "cauchy",
    "geman_mcclure",
    "power",
    "student",
    "truncated_quadratic",
]


@options
class FigureData:
    """The texts of Figs. 5 and 6."""

    root: Text | None = None
    """Folder with glue/SST-2/{train,dev,test}.tsv and imdb/aclImdb, as published."""
    prepared: Text | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""


@options
class FiguresConfig:
    """Figs. 1 to 6 of Yang, Huang, Wipf, Transformers from an Optimization
    Perspective (2022)."""

    out: Text = "runs/figures/yang2022"
    """Folder for the pictures, and for a JSON file of the numbers of each."""
    only: Text = ""
    """Numbers of the figures to draw, as in 1,2,5; all that can be by default."""
    seed: Seed = 0
    """Seed of all random numbers."""
    data: FigureData = dataclasses.field(default_factory=FigureData)
    embeddings: Text | None = None
    """Word vectors in the format of GloVe; None draws each word's vector from a hash
    of the word."""
    embedding_dim: Width = 300
    """Width of the hashed vectors, used without a file of embeddings."""
    num_layers: Depth = 12
    """Layers of Figs. 5 and 6."""
    attention_step_size: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Damping of the attention step of Figs. 5 and 6, in (0, 1]; 1 is softmax
    attention."""
    feedforward_step_size: Positive = 0.5
    """Length of their feed-forward step; up to 1 / 1.95 it descends for every W_f.
    The paper's code has 1."""
    num_texts: Count = 200
    """Test texts of Figs. 5 and 6."""
    rho: RhoName = "softmax"
    """Function of the pair energy in Fig. 6."""
    texts: Literal["both", "sst2", "imdb"] = "both"
    """Data sets of Figs. 5 and 6."""
    steps: Count = 2000
    """Training steps of Fig. 6."""
    batch_size: Count = 1
    """Texts of a step."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of Fig. 6; the paper has plain gradient descent."""
    learning_rate: Positive = 0.01
    """Its learning rate."""
    train_words: bool = False
    """Train word vectors too in Fig. 6; the paper's are frozen."""
    tokens: Width = 500
    """Rows of Y in Figs. 2 and 3."""
    width: Width = 128
    """Columns of Y in Figs. 2 and 3."""
    half_steps: Annotated[int, Field(ge=2, le=10**6)] = 200
    """Gradient steps of Figs. 2 and 3, on f and g in turn."""
    step_size: Positive = 0.05
    """Length of those steps."""
    points: Annotated[int, Field(ge=2, le=10**4)] = 401
    """Points along each side of the panels of Figs. 1 and 4."""


def chosen(config: FiguresConfig) -> tuple[int, ...]:
    """The numbers of the figures to draw, by default those whose texts are given.

    Raises:
      UserError: if the choice is not of numbers of figures.
    """
    if not config.only:
        return NUMBERS if config.data.root else NUMBERS[:4]
    fields = config.only.replace(",", " ").split()
    if not fields or not set(fields) <= {str(number) for number in NUMBERS}:
        allowed = "numbers from 1 to 6 with commas between, as in 1,2,5"
        raise OptionError("only", allowed, repr(config.only))
    return tuple(number for number in NUMBERS if str(number) in fields)


def check_figures(config: FiguresConfig) -> None:
    """Checks every number.

    Raises:
      OptionError: naming the option, its value and the allowed ones.
    """
    if config.half_steps % 2:
        raise OptionError("half_steps", "even", config.half_steps)
