"""A report on one group of constraints, a leaf of the violations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "BINDING",
    "NOT_FINITE",
    "SLACK",
    "STATUSES",
    "UNMET",
    "GroupReport",
    "judge_group",
]

STATUSES = ("not finite", "violated", "no samples", "binding", "slack", "idle")
NOT_FINITE, VIOLATED, NO_SAMPLES, BINDING, SLACK, IDLE = STATUSES
UNMET = (NOT_FINITE, VIOLATED, NO_SAMPLES)
# A constraint is slack if it is at least so many tolerances below its bound, or this
# part of the bound if that is less.
ROOM = 10.0


class GroupReport(NamedTuple):
    """One group of constraints.

    Attributes:
      name: path in the violations, such as ``"gap"``.
      kind: as in `dual_ascent`.
      status: "not finite" if a violation or a price is not; "violated" if a constraint
        exceeds its tolerance; "no samples" if a violation is not known; "binding" if
        the largest multiplier is of a constraint at its bound; "slack" if it is of a
        constraint with room, ten tolerances or a tenth of a known bound; "idle" if all
        multipliers are 0.
      worst: the violation furthest above its tolerance (of equalities in absolute
        value), in units of the violations. NaN without any.
      bound, value: of that constraint, NaN if no bound was given.
      tolerance: its largest violation that counts as met, in units of the value.
      met: share of the known constraints that are within their tolerances.
      price: the multiplier of largest absolute value, for one unit of the value.
      wound_up: the largest such multiplier of the constraints with room, which is not a
        price. 0 without one.
      slackness: largest |multiplier x violation|, 0 at a saddle point.
      unit, size: of the value, and number of constraints.
      scale: of the worst violation. NaN if it is in units of the value.
    """

    name: str
    kind: str
    status: str
    worst: float
    bound: float
    value: float
    tolerance: float
    met: float
    price: float
    wound_up: float
    slackness: float
    unit: str
    size: int
    scale: float = np.nan

    @property
    def excess(self) -> str:
        """The worst violation in words: with its unit, or as a share in percent."""
        if np.isnan(self.scale):
            return f"{self.worst:.3g} {self.unit}".rstrip()
        return f"{self.worst:.2%}"

    @property
    def words(self) -> str:
        """The group in words for the sentence of its status."""
        if self.status == VIOLATED:
            return f"{self.name} by {self.excess}"
        if self.status == BINDING:
            price, unit = abs(self.price), self.unit or "unit"
            return f"{self.name} ({price:.3g} of the objective for 1 {unit})"
        return self.name


def judge_group(
    name: str,
    kind: str,
    unit: str,
    numbers: Sequence[Any],
    rtol: float,
    least_price: float,
) -> GroupReport:
    """The report of one leaf, from its violations, multipliers, tolerances, bounds,
    scales and marks of absent samples."""
    size = np.shape(numbers[0])
    values, prices, tolerances, bounds, shares, absent = (
        np.ravel(np.broadcast_to(np.asarray(each, float), size)) for each in numbers
    )
    name = name or "constraint"
    if kind == "at_most" and np.any(prices < 0.0):
        raise ValueError(
            f"multipliers of {name} must be at least 0, as it is an inequality, got"
            f" {prices}"
        )
    scales = np.nan_to_num(shares, nan=1.0, posinf=np.inf)
    tolerances = tolerances + rtol * np.nan_to_num(np.abs(bounds)) / scales
    sizes = np.abs(values) if kind == "equal" else values
    known = np.isfinite(sizes)
    met = sizes <= tolerances

    # A bound of 0 or none gives no part of it: the tolerances decide.
    room = np.where(bounds == 0.0, np.nan, np.abs(bounds / scales)) / ROOM
    room = np.fmin(ROOM * tolerances, np.maximum(room, tolerances))
    at_bound = np.abs(values) <= room
    of_value = np.where(np.abs(prices) > least_price, np.abs(prices) / scales, 0.0)
    binding = of_value[at_bound].max(initial=0.0)
    wound_up = of_value[~at_bound].max(initial=0.0)

    if not np.all(known | (absent > 0.0)) or not np.all(np.isfinite(prices)):
        status = NOT_FINITE
    elif not np.all(met[known]):
        status = VIOLATED
    elif not np.all(known):
        status = NO_SAMPLES
    elif wound_up > binding:
        status = SLACK
    else:
        status = BINDING if binding > 0.0 else IDLE

    # the worst of the known violations
    worst = (
        np.argmax(np.where(known, sizes - tolerances, -np.inf)) if any(known) else None
    )

    def at(column: np.ndarray) -> float:
        if worst is None:
            return np.nan if sizes.size else 0.0
        return float(column[worst])

    # Nothing is bound under an infinite scale, and its value is not known.
    with np.errstate(invalid="ignore"):
        of_bounds = bounds + scales * values
        allowed = scales * tolerances
    return GroupReport(
        name=name,
        kind=kind,
        status=status,
        worst=at(sizes),
        bound=at(bounds),
        value=at(of_bounds),
        tolerance=at(allowed),
        met=float(not sizes.size) if worst is None else float(np.mean(met[known])),
        price=float(max(prices / scales, key=abs, default=0.0)),
        wound_up=float(wound_up) if status in (BINDING, SLACK) else 0.0,
        slackness=float(np.abs(prices * values)[known].max(initial=0.0)),
        unit=unit,
        size=values.size,
        scale=at(shares),
    )
