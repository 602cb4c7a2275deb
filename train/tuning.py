"""What a search needs to know of a kind of experiment: what can be varied, and what a validation says of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Judgement", "Tunable", "Tuning"]


class Tunable(NamedTuple):
    """A number of a configuration that a search may vary.

    Attributes:
      field: its dotted name in the configuration.
      default: what is searched over where nothing is said, as in "1e-4:1e-2"; None leaves it as it is.
      log: whether equal ratios are equal steps, as for rates.
      optional: whether it may be none.
      unit: for the labels of axes; "" for shares and other plain numbers.
    """

    field: str
    default: str | None
    log: bool = False
    optional: bool = False
    unit: str = ""


class Judgement(NamedTuple):
    """What one validation says of a model.

    Attributes:
      feasible: whether it meets its constraints; True where it has none.
      excess: by which share of a bound it exceeds it, where that is largest; None without constraints.
      metric: the number that feasible models are ranked by.
    """

    feasible: bool
    excess: float | None
    metric: float


class Tuning(NamedTuple):
    """What a search needs to know.

    Attributes:
      tunables: ``config -> {name on the command line: Tunable}``.
      metric: what the metric is, with its unit, for tables and axes.
      larger_is_better: which way it is ranked.
      judge: ``(config, validation row of metrics.jsonl) -> Judgement``, in the order of the scores of checkpoints.
    """

    tunables: Callable[[Any], Mapping[str, Tunable]]
    metric: str
    larger_is_better: bool
    judge: Callable[[Any, dict[str, Any]], Judgement]
