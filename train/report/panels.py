"""What the figures share: colours, a panel per setting, log axes and the legend under all panels."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from train.report.groups import Setting

__all__ = [
    "COLOURS",
    "DPI",
    "GUIDE",
    "LOG_RATIO",
    "MARKERS",
    "NOISY",
    "WIDTH",
    "label_rows",
    "log_if_wide",
    "log_ticks",
    "padded",
    "png",
    "setting_panels",
    "shared_legend",
    "tidy",
]

# Okabe-Ito: told apart with every common colour blindness.
COLOURS = {"erm": "#D55E00", "constrained": "#0072B2"}
MARKERS = {"erm": "o", "constrained": "s"}
NOISY, GUIDE = "#6E6E6E", "#222222"
# 9 inches shown at 900 px: one point of type is 1.4 px.
WIDTH, DPI = 9.0, 160
MOST_COLUMNS = 3
LETTERS_PER_INCH = 11
# A log axis once the largest value is this many times the smallest.
LOG_RATIO = 4.0

Array = NDArray[np.float64]


def png(figure: Figure) -> bytes:
    """A figure as reports show it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def setting_panels(settings: Sequence[Setting], *, share_y: bool, height: float = 3.9) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with one titled panel per setting."""
    columns = min(len(settings), MOST_COLUMNS)
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharey=share_y, squeeze=False).flat)
    for axes in grid[len(settings) :]:
        axes.remove()
    for axes, setting in zip(grid, settings, strict=False):
        tidy(axes, setting.title)
    return figure, grid[: len(settings)]


def label_rows(panels: Sequence[Axes], label: str) -> None:
    """Put the y label beside the first panel of every row."""
    for axes in panels[:: min(len(panels), MOST_COLUMNS)]:
        axes.set_ylabel(label)


def log_if_wide(panels: Sequence[Axes], values: Sequence[Array]) -> None:
    """Make the y axes logarithmic where the values are positive and span more than `LOG_RATIO`."""
    finite = np.concatenate([np.ravel(value) for value in values]) if values else np.array([])
    finite = finite[np.isfinite(finite)]
    if not len(finite) or finite.min() <= 0 or finite.max() < LOG_RATIO * finite.min():
        return
    for axes in panels:
        axes.set_yscale("log")
        log_ticks(axes.yaxis)


def log_ticks(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of every decade of a log axis, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend under all panels."""
    entries = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    longest = max(map(len, entries)) + 8  # The line beside a label is about 8 letters wide.
    columns = int(np.clip(figure.get_figwidth() * LETTERS_PER_INCH // longest, 1, min(4, len(entries))))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def tidy(axes: Axes, title: str) -> None:
    """A faint grid, no box, and the title."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")


def padded(values: Array) -> tuple[float, float]:
    """Smallest and largest value with some room around them."""
    room = 0.03 * (values.max() - values.min()) or 0.03
    return float(values.min() - room), float(values.max() + room)
