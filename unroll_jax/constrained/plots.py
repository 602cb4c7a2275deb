"""Pictures of feasibility, group by group. They need matplotlib."""

from typing import Any

from unroll_jax.constrained.report import VIOLATED, ConstraintReport

__all__ = ["plot_feasibility"]


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
