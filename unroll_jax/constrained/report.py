"""A report on constraints: which hold, which bind and at which price."""

from collections import OrderedDict
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
    mark_absent,
    terms,
    violations,
)
from unroll_jax.constrained.group_report import (
    NOT_FINITE,
    SLACK,
    STATUSES,
    UNMET,
    GroupReport,
    judge_group,
)
from unroll_jax.summaries import new_axes

__all__ = ["ConstraintReport", "GroupReport", "constraint_report", "held_out_report"]

TITLES = (
    "constraint",
    "kind",
    "status",
    "value",
    "bound",
    "tolerance",
    "worst violation",
    "met",
    "price",
    "slackness",
)
TOLERANCE = trees.Range(
    "finite and at least 0", lambda least: (least >= 0.0) & (least < np.inf)
)


class ConstraintReport(NamedTuple):
    """Feasibility of a point, group by group. `str` of it is a table with a verdict.

    Attributes:
      groups: one `GroupReport` for each leaf of the violations.
      gradient_norm: norm of the gradient of the Lagrangian. None if none was given.
      gradient_tolerance: largest such norm that counts as stationary.

    Example:
      >>> import jax.numpy as jnp
      >>> report = constraint_report(
      ...     {"gap": jnp.array(0.0)}, {"gap": jnp.array(2.0)}, units={"gap": "rate"}
      ... )
      >>> report.feasible, report.verdict
      (True, 'Every constraint is met. Binding: gap (2 of the objective for 1 rate).')
    """

    groups: tuple[GroupReport, ...]
    gradient_norm: float | None = None
    gradient_tolerance: float = 1e-2

    @property
    def feasible(self) -> bool:
        """True if every constraint is known and met within the tolerance."""
        return not any(group.status in UNMET for group in self.groups)

    @property
    def status(self) -> str:
        """The state of the point in words.

        The first that holds of "not finite", "violated", "no samples", "met, not
        stationary", "met, wound up" (a constraint with room has a multiplier, which is
        not a price) and "met".
        """
        norm = self.gradient_norm or 0.0
        statuses = [group.status for group in self.groups]
        if not np.isfinite(norm):
            statuses.append(NOT_FINITE)
        for status in UNMET:
            if status in statuses:
                return status
        if norm > self.gradient_tolerance:
            return "met, not stationary"
        wound_up = any(group.wound_up > 0.0 for group in self.groups)
        return "met, wound up" if wound_up else "met"

    @property
    def verdict(self) -> str:
        """The constraints by status, and the gain of relaxing those that bind."""
        lines = []
        norm = self.gradient_norm
        size = f"the gradient of the Lagrangian has norm {norm or 0.0:.3g}"
        if self.feasible:
            endings = {"met": " and the point is stationary", "met, wound up": ""}
            ending = "" if norm is None else endings.get(self.status, f", but {size}")
            lines.append(f"Every constraint is met{ending}.")
        elif not np.isfinite(norm or 0.0):
            lines.append(f"Not finite: {size}.")

        for status in STATUSES:
            words = [one.words for one in self.groups if one.status == status]
            if status == SLACK:
                words = [
                    f"{one.name} (a multiplier of {one.wound_up:.3g}, wound up unless"
                    " the constraint binds in training)"
                    for one in self.groups
                    if one.wound_up > 0.0 and (self.feasible or one.status == SLACK)
                ]
            if words:
                lines.append(f"{status.capitalize()}: {', '.join(words)}.")
        return " ".join(lines)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [TITLES]
        for g in self.groups:
            name = g.name if g.size == 1 else f"{g.name} ({g.size})"
            numbers = f"{g.value:.3g}", f"{g.bound:.3g}", f"{g.tolerance:.2g}"
            worst = f"+{g.excess}" if g.worst >= 0.0 else g.excess
            ends = f"{g.met:.0%}", f"{g.price:.3g}", f"{g.slackness:.2g}"
            rows.append((name, g.kind, g.status, *numbers, worst, *ends))
        columns = list(zip(*rows, strict=True))
        if all(np.isnan(group.bound) for group in self.groups):
            del columns[3:6]
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join(map(str.ljust, row, widths)).rstrip()
            for row in zip(*columns, strict=True)
        ]
        return "\n".join([*lines, self.verdict])

    def plot(self, axes: Any = None) -> Any:
        """Draws the worst violation of every group, and returns the matplotlib axes.

        ``axes`` of None makes a figure. It needs matplotlib, the extra ``plot``.
        """
        axes = new_axes() if axes is None else axes
        names, colours, allowed = [], [], []
        for g in self.groups:
            unit = f" [{g.unit}]" if g.unit else ""
            names.append(f"{g.name}{unit}\n{g.status}, price {g.price:.3g}")
            colours.append("C3" if g.status in UNMET else "C2")
            allowed.append(g.tolerance / np.nan_to_num(g.scale, nan=1.0))
        worst = [group.worst for group in self.groups]
        axes.barh(names, worst, color=colours, height=0.5)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.plot(allowed, range(len(names)), "k|", markersize=18, label="tolerance")
        axes.invert_yaxis()
        axes.set_xlabel("worst violation")
        axes.legend()
        return axes


@checked(
    least_price=at_least(0.0), gradient_tolerance=at_least(0.0), rtol=at_least(0.0)
)
def constraint_report(
    violations: PyTree,
    multipliers: PyTree,
    gradient: PyTree = None,
    *,
    kinds: Any = "at_most",
    tolerance: Any = 1e-3,
    rtol: float = 0.0,
    least_price: float = 1e-4,
    gradient_tolerance: float = 1e-2,
    units: Any = "",
    bounds: Any = np.nan,
    scales: Any = np.nan,
    absent: Any = False,
) -> ConstraintReport:
    r"""Judges a point by its strict violations, on data that training did not see.

    A multiplier is a price: at an optimum, relaxing :math:`c_i \le 0` to
    :math:`c_i \le \delta` lowers the objective by about :math:`\lambda_i \delta`. An
    idle constraint could be left out. `held_out_report` takes violations, bounds and
    scales from constraints.

    Args:
      violations, multipliers: c and lambda, pytrees of known arrays of one structure
        and shapes.
      gradient: gradient of the Lagrangian, a pytree. None leaves stationarity out.
      kinds: as in `dual_ascent`.
      tolerance: largest violation that counts as met, in units of the violations, one
        or a prefix tree.
      rtol: share of a known bound that is added to it.
      least_price: a met constraint with multipliers up to this size is idle: objective
        per unit of violation.
      gradient_tolerance: largest norm of the gradient that counts as stationary.
      units: names of the values' units, one or a prefix tree.
      bounds, scales: b and s where violations are (value - b) / s, one or a prefix
        tree. NaN for b leaves values out, NaN for s is 1.
      absent: True for violations that no sample gave, one or a prefix tree.

    Returns:
      A `ConstraintReport`. A ValueError says if a multiplier of an inequality is
      negative, two constraints have one name, or arguments do not fit each other. A
      TypeError, if violations are traced.

    Source: Boyd and Vandenberghe, "Convex optimization" (2004), Section 5.6 (prices).

    Example:
      >>> import jax.numpy as jnp
      >>> violations = {"gap": jnp.array([0.25, -1.0]), "sum": jnp.array(0.0)}
      >>> prices = {"gap": jnp.array([3.0, 0.0]), "sum": jnp.array(-1.5)}
      >>> kinds = {"gap": "at_most", "sum": "equal"}
      >>> print(constraint_report(violations, prices, kinds=kinds))
      constraint  kind     status    worst violation  met   price  slackness
      gap (2)     at_most  violated  +0.25            50%   3      0.75
      sum         equal    binding   +0               100%  -1.5   0
      Violated: gap by 0.25. Binding: sum (1.5 of the objective for 1 unit).
    """
    violations = trees.as_violations("violations", violations)
    multipliers = trees.as_violations("multipliers", multipliers)
    given = jax.tree.leaves((violations, multipliers, gradient))
    if any(isinstance(leaf, Tracer) for leaf in given):
        raise TypeError(
            "violations must be known, got a traced value; return them from the jitted"
            " function"
        )
    trees.check_matching("multipliers", multipliers, violations)
    trees.check_known("tolerance", tolerance, TOLERANCE)
    names = trees.leaf_names("violations", violations)

    kinds = trees.check_kinds(kinds, violations)
    units = trees.broadcast_prefix("units", units, violations)
    numbers = {
        "tolerance": tolerance,
        "bounds": bounds,
        "scales": scales,
        "absent": absent,
    }
    full = [trees.broadcast_option(name, numbers[name], violations) for name in numbers]
    columns = map(jax.tree.leaves, (kinds, units, violations, multipliers, *full))
    groups = [
        judge_group(name, kind, unit, numbers, rtol, least_price)
        for name, kind, unit, *numbers in zip(names, *columns, strict=True)
    ]
    size = None if gradient is None else _norm(gradient)
    return ConstraintReport(tuple(groups), size, gradient_tolerance)


def held_out_report(
    constraints: Mapping[str, Constraint],
    sums: Any,
    multipliers: PyTree,
    gradient: PyTree = None,
    *,
    tolerance: Any = 1e-3,
    rtol: float = 0.0,
    least_price: float = 1e-4,
    gradient_tolerance: float = 1e-2,
    units: Any = "",
) -> ConstraintReport:
    """Judges constraints by their sums over any number of batches.

    Values, bounds and tolerances are in units of the values.

    Args:
      constraints: constraints by name. The report keeps their order.
      sums: their `column_sums`, strict ones where they have them, added over batches.
      multipliers: lambda by name, of the structure of `violations`.
      gradient: as in `constraint_report`.
      tolerance: as in `constraint_report`: in units of the violations, so for
        constraints with a scale a share of it.
      rtol, least_price, gradient_tolerance, units: as in `constraint_report`.

    Returns:
      A `ConstraintReport`. A constraint on a group without samples has the status "no
      samples".

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> from unroll_jax.constrained import column_sums
      >>> constraints = unroll_jax.descent_constraints(
      ...     0.5, num_layers=2, reference=4.0, bounds="cumulative"
      ... )
      >>> losses = jnp.array([[4.0, 2.0, 1.0], [4.0, 2.0, 1.5]])  # of two samples
      >>> prices = {"f_0": 0.0, "layer 1": 0.5, "layer 2": 1.0}
      >>> sums = column_sums(constraints, losses, None)
      >>> report = held_out_report(constraints, sums, prices, tolerance=0.05)
      >>> [(group.name, group.status, group.excess) for group in report.groups[1:]]
      [('layer 1', 'binding', '0.00%'), ('layer 2', 'violated', '25.00%')]
      >>> report.groups[2].value, report.groups[2].bound, report.groups[2].tolerance
      (1.25, 1.0, 0.05)
    """
    means = column_means(sums)
    kinds, bounds, scales = {}, {}, {}
    for name, one in constraints.items():
        kinds[name] = "equal" if one.equality else "at_most"
        _, bounds[name], scales[name] = terms(name, one, means[name])
        if isinstance(one.scale, int | float) and one.scale == 1:
            scales[name] = np.nan  # violations are in units of the value

    def in_order(given: Any) -> Any:
        # JAX sorts the keys of other dicts: layer 10 would come before layer 2
        named = isinstance(given, Mapping) and set(given) == set(constraints)
        return OrderedDict((n, given[n]) for n in constraints) if named else given

    trees_by_name = {
        "kinds": kinds,
        "tolerance": tolerance,
        "units": units,
        "bounds": bounds,
        "scales": scales,
        "absent": mark_absent(constraints, sums),
    }
    return constraint_report(
        in_order(violations(constraints, means)),
        in_order(multipliers),
        gradient,
        rtol=rtol,
        least_price=least_price,
        gradient_tolerance=gradient_tolerance,
        **{name: in_order(tree) for name, tree in trees_by_name.items()},
    )


def _norm(gradient: PyTree) -> float:
    leaves = [np.asarray(leaf).astype(complex) for leaf in jax.tree.leaves(gradient)]
    require(leaves, "gradient", "hold at least one array", gradient)
    return float(np.sqrt(sum(np.sum(np.abs(leaf) ** 2) for leaf in leaves)))
