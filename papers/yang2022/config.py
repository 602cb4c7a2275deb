"""Options of `unroll-jax figures`: the figures to draw, and their data."""

import dataclasses

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import LARGEST, SMALLEST, WHOLE

NUMBERS = (1, 2, 3, 4, 5, 6)


@dataclasses.dataclass(frozen=True)
class FigureData:
    """The texts of Figs. 5 and 6."""

    root: str | None = None
    """Folder with glue/SST-2/{train,dev,test}.tsv and imdb/aclImdb (or imdb/aclImdb_v1.tar.gz), as published."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""


@dataclasses.dataclass(frozen=True)
class FiguresConfig:
    """Figs. 1 to 6 of Yang, Huang, Wipf, Transformers from an Optimization Perspective (2022)."""

    out: str = "runs/figures/yang2022"
    """Folder for the pictures, and for a JSON file of numbers beside each."""
    only: str = ""
    """Numbers of the figures to draw, as in 1,2,5; all that can be by default."""
    seed: int = 0
    """Seed of all random numbers."""
    data: FigureData = dataclasses.field(default_factory=FigureData)
    embeddings: str | None = None
    """Word vectors in the format of GloVe; None draws each word's vector from a hash of the word."""
    embedding_dim: int = 300
    """Width of the hashed vectors, used without a file of embeddings."""
    num_layers: int = 12
    """Layers of Figs. 5 and 6."""
    attention_step_size: float = 1.0
    """Damping of the attention step of Figs. 5 and 6, in (0, 1]; 1 is softmax attention."""
    feedforward_step_size: float = 0.5
    """Length of their feed-forward step; up to 1 / 1.95 it descends whatever W_f. The paper's code has 1."""
    num_texts: int = 200
    """Test texts of Figs. 5 and 6."""
    steps: int = 2000
    """Training steps of Fig. 6, one text each."""
    learning_rate: float = 0.01
    """Of the gradient descent of Fig. 6."""
    tokens: int = 500
    """Rows of Y in Figs. 2 and 3."""
    width: int = 128
    """Columns of Y in Figs. 2 and 3."""
    half_steps: int = 200
    """Gradient steps of Figs. 2 and 3, on f and g in turn."""
    step_size: float = 0.05
    """Length of those steps."""
    points: int = 401
    """Points along each side of the panels of Figs. 1 and 4."""


def chosen(config: FiguresConfig) -> tuple[int, ...]:
    """The numbers of the figures to draw; without texts and without a choice, those that need none.

    Raises:
      UserError: if the choice is not of numbers of figures.
    """
    if not config.only:
        return NUMBERS if config.data.root else NUMBERS[:4]
    fields = config.only.replace(",", " ").split()
    if not fields or not set(fields) <= {str(number) for number in NUMBERS}:
        raise UserError(f"--only must be numbers from 1 to 6 with commas between, as in 1,2,5, got {config.only!r}")
    return tuple(number for number in NUMBERS if str(number) in fields)


def check_figures(config: FiguresConfig) -> None:
    """Checks every number.

    Raises:
      UserError: naming the option, its value and what is allowed.
    """
    numbers = {name: getattr(config, name) for name in _POSITIVE}
    for name, allowed, holds in (
        *(
            (name, f"a whole number from {least} to {most}", least <= getattr(config, name) <= most)
            for name, (least, most) in _RANGES.items()
        ),
        *((name, f"from {SMALLEST:g} to {LARGEST:g}", SMALLEST <= value <= LARGEST) for name, value in numbers.items()),
        ("attention_step_size", "in (0, 1]", 0.0 < config.attention_step_size <= 1.0),
        ("half_steps", "even", config.half_steps % 2 == 0),
    ):
        if not holds:
            raise UserError(f"--{name.replace('_', '-')} must be {allowed}, got {getattr(config, name)}")


_POSITIVE = ("step_size", "learning_rate", "feedforward_step_size")
_RANGES = {
    "embedding_dim": WHOLE["dim"],
    "half_steps": (2, 10**6),
    "num_layers": WHOLE["num_layers"],
    "num_texts": WHOLE["test_examples"],
    "points": (2, 10**4),
    "seed": WHOLE["seed"],
    "steps": WHOLE["steps"],
    "tokens": WHOLE["dim"],
    "width": WHOLE["dim"],
}
