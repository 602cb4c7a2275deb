"""What runs are scored by at every test gamma."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["SCORES", "Score"]


class Score(NamedTuple):
    """A score of evaluation.json, by gamma.

    Attributes:
      label: for axes.
      tested: the key that says how many examples were tested.
      unit: what these are called.
      baseline: the key of the same score of the input itself, by gamma; None where it has none.
    """

    label: str
    tested: str
    unit: str
    baseline: str | None = None


# By their keys in evaluation.json; an evaluation has one of them.
SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "rmse": Score("RMSE (0-255 scale)", "num_sequences", "sequences", "noisy_rmse"),
        "accuracy": Score("accuracy", "num_examples", "examples"),
    }
)
