"""A report on any constraints: which bind, which are idle, which are violated, and what each costs."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from unroll_jax.arguments import at_least, checked
from unroll_jax.constrained.groups import as_violations, broadcast_prefix, check_kinds, check_matching

__all__ = ["ConstraintReport", "GroupReport", "constraint_report"]

BINDING, IDLE, VIOLATED = "binding", "idle", "violated"


class GroupReport(NamedTuple):
    """One group of constraints.

    Attributes:
      name: path of the group in the violations, such as ``"gap"``.
      kind: "at_most" or "equal".
      status: "violated" if a constraint exceeds its tolerance; else "binding" if a price is above
        ``least_price``; else "idle".
      worst: the largest violation (of equalities in absolute value), in units of the violations.
      met: share of the constraints within the tolerance.
      price: the multiplier of largest absolute value: objective a unit of relaxation.
      slackness: largest |multiplier x violation|, 0 at a saddle point.
      unit: of the violations; "" if none was given.
      size: number of constraints.

    Example:
      >>> import jax.numpy as jnp
      >>> (group,) = constraint_report({"gap": jnp.array([-1.0, 0.5])}, {"gap": jnp.zeros(2)}).groups
      >>> group.name, group.status, group.worst, group.met
      ('gap', 'violated', 0.5, 0.5)
    """

    name: str
    kind: str
    status: str
    worst: float
    met: float
    price: float
    slackness: float
    unit: str
    size: int


class ConstraintReport(NamedTuple):
    """Feasibility of a point, group by group; `str` of it is a table with a verdict.

    Attributes:
      groups: one `GroupReport` for each leaf of the violations.
      tolerance: largest violation that counts as met.

    Example:
      >>> import jax.numpy as jnp
      >>> report = constraint_report({"gap": jnp.array(0.0)}, {"gap": jnp.array(2.0)}, units={"gap": "rate"})
      >>> bool(report.feasible), report.verdict
      (True, 'Every constraint is met. Binding: gap (2 of the objective for 1 rate).')
    """

    groups: tuple[GroupReport, ...]
    tolerance: float

    @property
    def feasible(self) -> bool:
        """True if every constraint is met within the tolerance."""
        return all(group.status != VIOLATED for group in self.groups)

    @property
    def verdict(self) -> str:
        """The constraints that are violated, binding and idle, and the price of relaxing those that bind."""
        violated = [f"{g.name} by {g.worst:.3g}{_unit(g)}" for g in self.groups if g.status == VIOLATED]
        binding = [
            f"{g.name} ({abs(g.price):.3g} of the objective for 1{_unit(g) or ' unit'})"
            for g in self.groups
            if g.status == BINDING
        ]
        idle = [g.name for g in self.groups if g.status == IDLE]
        first = f"Violated: {', '.join(violated)}." if violated else "Every constraint is met."
        rest = [f"{word}: {', '.join(names)}." for word, names in (("Binding", binding), ("Idle", idle)) if names]
        return " ".join([first, *rest])

    def __str__(self) -> str:
        rows = [("constraint", "kind", "status", "worst violation", "met", "price", "slackness")]
        for g in self.groups:
            name = g.name if g.size == 1 else f"{g.name} ({g.size})"
            worst = f"{g.worst:+.3g}{_unit(g)}"
            rows.append((name, g.kind, g.status, worst, f"{g.met:.0%}", f"{g.price:.3g}", f"{g.slackness:.2g}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.verdict])


@checked(tolerance=at_least(0.0), least_price=at_least(0.0))
def constraint_report(
    violations: PyTree,
    multipliers: PyTree,
    *,
    kinds: Any = "at_most",
    tolerance: float = 1e-3,
    least_price: float = 1e-4,
    units: Any = "",
) -> ConstraintReport:
    r"""Judges a point by its strict violations, on data that training did not see.

    A multiplier is a price: at an optimum, relaxing :math:`c_i \le 0` to :math:`c_i \le \delta` lowers the objective by
    about :math:`\lambda_i \delta`. An idle constraint could be left out; a violated one with a large multiplier
    conflicts with others or with the objective.

    Args:
      violations: c, any pytree of arrays that are known.
      multipliers: lambda, of the same structure and shapes.
      kinds: as in `dual_ascent`.
      tolerance: largest violation that counts as met, in units of the violations.
      least_price: a met constraint with multipliers up to this size is idle: objective per unit of violation.
      units: names of the violations' units, one or a prefix tree.

    Returns:
      A `ConstraintReport`.

    Raises:
      ValueError: if violations are not finite, an inequality's multiplier is negative, tolerance is negative, or the
        arguments do not fit each other; if least_price is negative.

    Source: Boyd and Vandenberghe, "Convex optimization" (2004), Section 5.6 (prices).

    Example:
      >>> import jax.numpy as jnp
      >>> violations = {"gap": jnp.array([0.25, -1.0]), "sum": jnp.array(0.0)}
      >>> prices = {"gap": jnp.array([3.0, 0.0]), "sum": jnp.array(-1.5)}
      >>> print(constraint_report(violations, prices, kinds={"gap": "at_most", "sum": "equal"}))
      constraint  kind     status    worst violation  met   price  slackness
      gap (2)     at_most  violated  +0.25            50%   3      0.75
      sum         equal    binding   +0               100%  -1.5   0
      Violated: gap by 0.25. Binding: sum (1.5 of the objective for 1 unit).
    """
    violations, multipliers = as_violations("violations", violations), as_violations("multipliers", multipliers)
    check_matching("multipliers", multipliers, violations)
    leaves = jax.tree.leaves_with_path(violations)
    others = (multipliers, check_kinds(kinds, violations), broadcast_prefix("units", units, violations))
    parts = zip(leaves, *map(jax.tree.leaves, others), strict=True)
    limits = tolerance, least_price
    groups = (_group(path, c, prices, kind, unit, limits) for (path, c), prices, kind, unit in parts)
    return ConstraintReport(tuple(groups), tolerance)


def _group(
    path: Any, violation: Any, multiplier: Any, kind: str, unit: str, limits: tuple[float, float]
) -> GroupReport:
    tolerance, least_price = limits
    name = jax.tree_util.keystr(path, simple=True, separator="/") or "constraint"
    values, prices = np.asarray(violation, float), np.asarray(multiplier, float)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"violations of {name} must be finite, got {values}")
    if kind == "at_most" and np.any(prices < 0.0):
        raise ValueError(f"multipliers of {name} must be at least 0, as it is an inequality, got {prices}")
    sizes = np.abs(values) if kind == "equal" else values
    price = float(prices.flat[np.argmax(np.abs(prices))]) if prices.size else 0.0
    status = VIOLATED if np.any(sizes > tolerance) else BINDING if abs(price) > least_price else IDLE
    return GroupReport(
        name=name,
        kind=kind,
        status=status,
        worst=float(sizes.max()) if sizes.size else 0.0,
        met=float(np.mean(sizes <= tolerance)) if sizes.size else 1.0,
        price=price,
        slackness=float(np.abs(prices * values).max(initial=0.0)),
        unit=unit,
        size=values.size,
    )


def _unit(group: GroupReport) -> str:
    return f" {group.unit}" if group.unit else ""
