"""Pictures of constraints: multipliers over training, and feasibility group by group. They need matplotlib."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from unroll_jax.constrained.groups import as_violations
from unroll_jax.constrained.report import VIOLATED, ConstraintReport

__all__ = ["plot_feasibility", "plot_multipliers"]

MAX_LINES = 12  # of a group; of larger ones the median and the range are drawn


def plot_multipliers(history: Sequence[PyTree], *, steps: Sequence[int] | None = None, axes: Any = None) -> Any:
    """Draws multipliers (or violations) against steps, a line for each constraint, a colour for each group.

    Args:
      history: multipliers at several steps, each a pytree of equal structure.
      steps: the steps; None for 0, 1, 2, ...
      axes: matplotlib axes; None makes a figure.

    Returns:
      The axes.

    Raises:
      ValueError: if the history is empty, or there is not one step for each entry.

    Example:
      >>> import jax.numpy as jnp, matplotlib
      >>> matplotlib.use("agg")
      >>> axes = plot_multipliers([{"gap": jnp.array([0.0, 1.0])}, {"gap": jnp.array([0.5, 1.0])}])
      >>> axes.get_xlabel(), len(axes.lines)  # two multipliers, and 0
      ('step', 3)
    """
    if not history:
        raise ValueError("history must hold the multipliers of at least one step, got none")
    steps = range(len(history)) if steps is None else steps
    if len(steps) != len(history):
        raise ValueError(f"steps must have one entry for each of the {len(history)} of history, got {len(steps)}")
    axes = _axes(axes)
    stacked = jax.tree.map(lambda *leaves: np.stack([np.ravel(leaf) for leaf in leaves]), *history)
    for place, (path, values) in enumerate(jax.tree.leaves_with_path(as_violations("history", stacked))):
        name, colour = jax.tree_util.keystr(path, simple=True, separator="/") or "multiplier", f"C{place % 10}"
        if values.shape[1] > MAX_LINES:
            axes.fill_between(steps, values.min(1), values.max(1), color=colour, alpha=0.2)
            values, name = np.median(values, 1, keepdims=True), f"{name}: median, range of {values.shape[1]}"
        for column in range(values.shape[1]):
            axes.plot(steps, values[:, column], color=colour, label=name if column == 0 else None)
    axes.axhline(0.0, color="grey", linewidth=0.8, zorder=0)
    axes.set_xlabel("step")
    axes.set_ylabel("multiplier")
    axes.legend()
    return axes


def plot_feasibility(report: ConstraintReport, *, axes: Any = None) -> Any:
    r"""Draws the worst violation of every group as a bar, with its status and price: to the right of 0 it is violated.

    Args:
      report: of `constraint_report`.
      axes: matplotlib axes; None makes a figure.

    Returns:
      The axes.

    Example:
      >>> import jax.numpy as jnp, matplotlib
      >>> matplotlib.use("agg")
      >>> from unroll_jax.constrained import constraint_report
      >>> axes = plot_feasibility(constraint_report({"gap": jnp.array(0.5)}, {"gap": jnp.array(1.0)}))
      >>> axes.get_xlabel(), [label.get_text() for label in axes.get_yticklabels()]
      ('worst violation', ['gap\nviolated, price 1'])
    """
    axes = _axes(axes)
    units = [f" [{group.unit}]" if group.unit else "" for group in report.groups]
    names = [f"{g.name}{unit}\n{g.status}, price {g.price:.3g}" for g, unit in zip(report.groups, units, strict=True)]
    colours = ["C3" if group.status == VIOLATED else "C2" for group in report.groups]
    axes.barh(names, [group.worst for group in report.groups], color=colours, height=0.5)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.axvline(report.tolerance, color="grey", linewidth=0.8, linestyle="--", label="tolerance")
    axes.invert_yaxis()
    axes.set_xlabel("worst violation")
    axes.legend()
    return axes


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib: pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]
