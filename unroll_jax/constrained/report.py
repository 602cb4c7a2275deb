"""A report on any constraints: which hold and bind, at which price, and whether the
point is stationary."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from unroll_jax.arguments import at_least, checked, require
from unroll_jax.constrained import trees
from unroll_jax.constrained.constraint import (
    Constraint,
    column_means,
    violations,
    without_samples,
)
from unroll_jax.summaries import new_axes

__all__ = ["ConstraintReport", "GroupReport", "constraint_report", "held_out_report"]

BINDING, IDLE, SLACK, VIOLATED = "binding", "idle", "slack", "violated"
NO_SAMPLES, NOT_FINITE = "no samples", "not finite"
# A constraint has room this many tolerances from its bound, or one in so many of a
# known bound if that is less.
ROOM = 10.0


class GroupReport(NamedTuple):
    """One group of constraints, by its path in the violations such as ``"gap"``, and
    its kind.

    Attributes:
      status: "not finite" if a violation or a price is not; "violated" if a constraint
        exceeds its tolerance; "no samples" if a violation is not known; "binding" if
        the largest multiplier is of a constraint at its bound; "slack" if it is of one
        with room, ten tolerances or a tenth of a known bound; "idle" if there is none.
      worst: the violation furthest above its tolerance (of equalities in absolute
        value), in units of the violations; NaN without any.
      bound, value: bound of that constraint, NaN if none was given, and its bound plus
        its violation.
      tolerance: its largest violation that counts as met.
      met: share of the constraints within their tolerances, of those that are known.
      price: the multiplier of largest absolute value: objective per unit of relaxation.
      wound_up: the largest such multiplier of the constraints with room: not a price; 0
        without one.
      slackness: largest |multiplier x violation|, 0 at a saddle point.
      unit, size: of the violations, and number of constraints.
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


class ConstraintReport(NamedTuple):
    """Feasibility of a point, group by group; `str` of it is a table with a verdict.

    Attributes:
      groups: one `GroupReport` for each leaf of the violations.
      gradient_norm: norm of the gradient of the Lagrangian; None if none was given.
      gradient_tolerance: largest such norm that counts as stationary.

    Example:
      >>> import jax.numpy as jnp
      >>> report = constraint_report(
      ...     {"gap": jnp.array(0.0)}, {"gap": jnp.array(2.0)}, units={"gap": "rate"}
      ... )
      >>> report.feasible, report.status, report.verdict
      (True, 'met', 'Every constraint is met. Binding: gap (2 of the objective for 1 rate).')
    """

    groups: tuple[GroupReport, ...]
    gradient_norm: float | None = None
    gradient_tolerance: float = 1e-2

    @property
    def feasible(self) -> bool:
        """True if every constraint is known and met within the tolerance."""
        return not any(
            group.status in (VIOLATED, NO_SAMPLES, NOT_FINITE) for group in self.groups
        )

    @property
    def status(self) -> str:
        """The first that holds: "not finite", "violated", "no samples", "met, not
        stationary", "met, wound up", "met".

        "met, wound up": a constraint with room has a multiplier, so its price is none.
        """
        finite = self.gradient_norm is None or np.isfinite(self.gradient_norm)
        there = {group.status for group in self.groups} | (
            set() if finite else {NOT_FINITE}
        )
        for status in (NOT_FINITE, VIOLATED, NO_SAMPLES):
            if status in there:
                return status
        moves = (
            self.gradient_norm is not None
            and self.gradient_norm > self.gradient_tolerance
        )
        wound_up = any(group.wound_up > 0.0 for group in self.groups)
        return (
            "met, not stationary" if moves else "met, wound up" if wound_up else "met"
        )

    @property
    def verdict(self) -> str:
        """The constraints by status, and the gain of relaxing those that bind."""
        words = {
            NOT_FINITE: lambda g: g.name,
            VIOLATED: lambda g: f"{g.name} by {g.worst:.3g}{_unit(g)}",
            NO_SAMPLES: lambda g: g.name,
            BINDING: lambda g: (
                f"{g.name} ({abs(g.price):.3g} of the objective for"
                f" 1{_unit(g) or ' unit'})"
            ),
            SLACK: lambda g: (
                f"{g.name} (a multiplier of {g.wound_up:.3g} has wound up)"
            ),
            IDLE: lambda g: g.name,
        }
        wound_up = [
            g
            for g in self.groups
            if g.status == SLACK or (self.feasible and g.wound_up > 0.0)
        ]
        lines = []
        for status, name in words.items():
            if groups := (
                wound_up
                if status == SLACK
                else [g for g in self.groups if g.status == status]
            ):
                lines.append(f"{status.capitalize()}: {', '.join(map(name, groups))}.")
        size = (
            ""
            if self.gradient_norm is None
            else f"the gradient of the Lagrangian has norm {self.gradient_norm:.3g}"
        )
        if self.feasible:
            open_ended = self.status in ("met, not stationary", NOT_FINITE)
            ending = (
                " and the point is stationary"
                if self.status == "met"
                else f", but {size}"
                if open_ended
                else ""
            )
            lines.insert(0, f"Every constraint is met{ending if size else ''}.")
        elif size and not np.isfinite(self.gradient_norm):
            lines.insert(0, f"Not finite: {size}.")
        return " ".join(lines)

    def __str__(self) -> str:
        bounded = not all(np.isnan(group.bound) for group in self.groups)
        names = ["value", "bound"] * bounded
        rows = [
            [
                "constraint",
                "kind",
                "status",
                *names,
                "worst violation",
                "met",
                "price",
                "slackness",
            ]
        ]
        for g in self.groups:
            row = [g.name if g.size == 1 else f"{g.name} ({g.size})", g.kind, g.status]
            row += [f"{g.value:.3g}", f"{g.bound:.3g}"] * bounded
            rows.append(
                [
                    *row,
                    f"{g.worst:+.3g}{_unit(g)}",
                    f"{g.met:.0%}",
                    f"{g.price:.3g}",
                    f"{g.slackness:.2g}",
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, self.verdict])

    def plot(self, axes: Any = None) -> Any:
        """Draws the worst violation of every group with its status and price; returns
        the matplotlib axes.

        ``axes`` of None makes a figure. It needs matplotlib, the extra ``plot``.
        """
        axes = new_axes() if axes is None else axes
        units = [f" [{group.unit}]" if group.unit else "" for group in self.groups]
        names = [
            f"{g.name}{unit}\n{g.status}, price {g.price:.3g}"
            for g, unit in zip(self.groups, units, strict=True)
        ]
        colours = [
            "C2" if group.status in (BINDING, SLACK, IDLE) else "C3"
            for group in self.groups
        ]
        axes.barh(
            names, [group.worst for group in self.groups], color=colours, height=0.5
        )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.plot(
            [group.tolerance for group in self.groups],
            range(len(names)),
            "k|",
            markersize=18,
            label="tolerance",
        )
        axes.invert_yaxis()
        axes.set_xlabel("worst violation")
        axes.legend()
        return axes


@checked(least_price=at_least(0.0), gradient_tolerance=at_least(0.0))
def constraint_report(
    violations: PyTree,
    multipliers: PyTree,
    gradient: PyTree = None,
    *,
    kinds: Any = "at_most",
    tolerance: Any = 1e-3,
    least_price: float = 1e-4,
    gradient_tolerance: float = 1e-2,
    units: Any = "",
    bounds: Any = np.nan,
    absent: Any = False,
) -> ConstraintReport:
    r"""Judges a point by its strict violations, on data that training did not see.

    A multiplier is a price: at an optimum, relaxing :math:`c_i \le 0` to
    :math:`c_i \le \delta` lowers the objective by about :math:`\lambda_i \delta`. An
    idle constraint could be left out.

    Args:
      violations, multipliers: c and lambda, pytrees of known arrays of one structure
        and shapes.
      gradient: gradient of the Lagrangian, a pytree; None leaves stationarity out.
      kinds: as in `dual_ascent`.
      tolerance: largest violation that counts as met, in units of the violations, one
        or a prefix tree.
      least_price: a met constraint with multipliers up to this size is idle: objective
        per unit of violation.
      gradient_tolerance: largest norm of the gradient that counts as stationary.
      units: names of the violations' units, one or a prefix tree.
      bounds: b where violations are a value minus a bound, one or a prefix tree; NaN
        leaves values out.
      absent: True for violations that no sample gave, one or a prefix tree.

    Returns:
      A `ConstraintReport`. A ValueError says if a multiplier of an inequality is
      negative, two constraints have one name, or arguments do not fit each other; a
      TypeError, if violations are traced.

    Source: Boyd and Vandenberghe, "Convex optimization" (2004), Section 5.6 (prices).

    Example:
      >>> import jax.numpy as jnp
      >>> violations = {"gap": jnp.array([0.25, -1.0]), "sum": jnp.array(0.0)}
      >>> prices = {"gap": jnp.array([3.0, 0.0]), "sum": jnp.array(-1.5)}
      >>> print(
      ...     constraint_report(
      ...         violations, prices, kinds={"gap": "at_most", "sum": "equal"}
      ...     )
      ... )
      constraint  kind     status    worst violation  met   price  slackness
      gap (2)     at_most  violated  +0.25            50%   3      0.75
      sum         equal    binding   +0               100%  -1.5   0
      Violated: gap by 0.25. Binding: sum (1.5 of the objective for 1 unit).
    """
    violations = trees.as_violations("violations", violations)
    multipliers = trees.as_violations("multipliers", multipliers)
    if any(
        isinstance(leaf, Tracer)
        for leaf in jax.tree.leaves((violations, multipliers, gradient))
    ):
        raise TypeError(
            "violations must be known, got a traced value; return them from the jitted"
            " function"
        )
    trees.check_matching("multipliers", multipliers, violations)
    names = [
        name or "constraint" for name in trees.leaf_names("violations", violations)
    ]
    trees.check_known(
        "tolerance",
        tolerance,
        lambda least: (least >= 0.0) & (least < np.inf),
        "finite and at least 0",
    )
    kinds = trees.check_kinds(kinds, violations)
    units = trees.broadcast_prefix("units", units, violations)
    options = (("bounds", bounds), ("absent", absent), ("tolerance", tolerance))
    others = [
        trees.broadcast_option(name, option, violations) for name, option in options
    ]
    columns = map(jax.tree.leaves, (violations, multipliers, kinds, units, *others))
    groups = (_group(parts, least_price) for parts in zip(names, *columns, strict=True))
    size = None if gradient is None else _norm(gradient)
    return ConstraintReport(tuple(groups), size, gradient_tolerance)


def held_out_report(
    constraints: Mapping[str, Constraint],
    sums: Any,
    multipliers: PyTree,
    gradient: PyTree = None,
    *,
    tolerance: Any = 1e-3,
    least_price: float = 1e-4,
    gradient_tolerance: float = 1e-2,
    units: Any = "",
) -> ConstraintReport:
    """Judges constraints by their sums over any number of batches, with values and
    bounds in their units.

    Args:
      constraints: constraints by name.
      sums: their `column_sums`, strict ones where they have them, added over batches.
      multipliers: lambda by name, of the structure of `violations`.
      gradient: as in `constraint_report`.
      tolerance, least_price, gradient_tolerance, units: as in `constraint_report`.

    Returns:
      A `ConstraintReport`; a constraint on a group without samples has the status "no
      samples".

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.constrained import class_losses, column_sums
      >>> constraints = {
      ...     "loss": class_losses(2, at_most=1.0, labels=lambda labels: labels)
      ... }
      >>> sums = column_sums(constraints, jnp.array([1.5, 2.5]), jnp.array([0, 0]))
      >>> report = held_out_report(
      ...     constraints, sums, {"loss": jnp.zeros(2)}, units="nats"
      ... )
      >>> report.groups[0].value, report.groups[0].bound, report.verdict
      (2.0, 1.0, 'Violated: loss by 1 nats.')
    """
    excesses = violations(constraints, column_means(sums))
    options = {
        "tolerance": tolerance,
        "least_price": least_price,
        "gradient_tolerance": gradient_tolerance,
    }
    kinds = {
        name: "equal" if one.equality else "at_most"
        for name, one in constraints.items()
    }
    bounds, absent = (
        {name: one.bound for name, one in constraints.items()},
        without_samples(constraints, sums),
    )
    return constraint_report(
        excesses,
        multipliers,
        gradient,
        kinds=kinds,
        units=units,
        bounds=bounds,
        absent=absent,
        **options,
    )


def _norm(gradient: PyTree) -> float:
    squares = [
        np.sum(np.abs(np.asarray(leaf).astype(complex)) ** 2)
        for leaf in jax.tree.leaves(gradient)
    ]
    require(squares, "gradient", "hold at least one array", gradient)
    return float(np.sqrt(sum(squares)))


def _group(parts: tuple[Any, ...], least_price: float) -> GroupReport:
    """The report of a leaf, from its name, violations, multipliers, kind, unit,
    bound, absence and tolerance."""
    name, violation, multiplier, kind, unit, bound, absent, tolerance = parts
    values, prices = np.asarray(violation, float), np.asarray(multiplier, float)
    if kind == "at_most" and np.any(prices < 0.0):
        raise ValueError(
            f"multipliers of {name} must be at least 0, as it is an inequality, got"
            f" {prices}"
        )
    sizes, missing = (
        np.abs(values) if kind == "equal" else values,
        np.broadcast_to(absent, values.shape),
    )
    tolerances, bounds = (
        np.broadcast_to(np.asarray(each, float), values.shape)
        for each in (tolerance, bound)
    )
    share = np.maximum(
        np.where(bounds == 0.0, np.nan, np.abs(bounds)) / ROOM, tolerances
    )
    known, priced = np.isfinite(sizes), np.abs(prices) > least_price
    # the first where no bound is known
    at_bound = np.abs(values) <= np.fmin(ROOM * tolerances, share)
    binding, wound_up = (
        np.abs(prices)[priced & part].max(initial=0.0) for part in (at_bound, ~at_bound)
    )
    if not np.all(known | missing) or not np.all(np.isfinite(prices)):
        status = NOT_FINITE
    elif np.any((sizes > tolerances)[known]):
        status = VIOLATED
    elif np.any(missing):
        status = NO_SAMPLES
    else:
        status = (
            BINDING
            if binding > 0.0 and binding >= wound_up
            else SLACK
            if wound_up > 0.0
            else IDLE
        )
    worst = (
        int(np.argmax(np.where(known, sizes - tolerances, -np.inf)))
        if np.any(known)
        else None
    )
    return GroupReport(
        name=name,
        kind=kind,
        status=status,
        worst=(
            float(sizes.flat[worst])
            if worst is not None
            else np.nan
            if sizes.size
            else 0.0
        ),
        bound=np.nan if worst is None else float(bounds.flat[worst]),
        value=np.nan if worst is None else float((bounds + values).flat[worst]),
        tolerance=np.nan if worst is None else float(tolerances.flat[worst]),
        met=(
            float(np.mean((sizes <= tolerances)[known]))
            if np.any(known)
            else 0.0
            if sizes.size
            else 1.0
        ),
        price=float(prices.flat[np.argmax(np.abs(prices))]) if prices.size else 0.0,
        wound_up=float(wound_up) if status in (BINDING, SLACK) else 0.0,
        slackness=float(np.abs(prices[known] * values[known]).max(initial=0.0)),
        unit=unit,
        size=values.size,
    )


def _unit(group: GroupReport) -> str:
    return f" {group.unit}" if group.unit else ""
