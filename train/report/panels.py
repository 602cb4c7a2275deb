"""Shared parts of figures: colours, a panel per setting, log axes and the legend under all panels."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from .groups import Setting, Variant
from .records import Array

# Okabe-Ito: told apart with every common colour blindness.
COLOURS = {"erm": "#D55E00", "deep_supervision": "#009E73", "constrained": "#0072B2"}
MARKERS = {"erm": "o", "deep_supervision": "^", "constrained": "s"}
LINE_STYLES = ("-", "--", ":", "-.")
NOISY, GUIDE = "#6E6E6E", "#222222"
# 9 inches shown at 900 px: one point of type is 1.4 px.
WIDTH, DPI = 9.0, 160
MOST_COLUMNS = 3
LETTERS_PER_INCH = 11
LOG_RATIO = 4.0  # a log axis once the largest value is this many times the smallest


def png(figure: Figure) -> bytes:
    """A figure as reports show it."""
    buffer = io.BytesIO()
    # Tight: a layout makes too little room for legends below panels where these are wider than their panels.
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", bbox_inches="tight", pad_inches=0.05)
    return buffer.getvalue()


def setting_panels(
    settings: Sequence[Setting], x: str, y: str, *, percent: bool = False, height: float = 3.9
) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with one titled panel per setting; the first of every row has the y label."""
    columns = min(len(settings), MOST_COLUMNS)
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in grid[len(settings) :]:
        axes.remove()
    for place, (axes, setting) in enumerate(zip(grid, settings, strict=False)):
        tidy(axes, setting.title)
        axes.set(xlabel=x, ylabel="" if place % columns else y)
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure, grid[: len(settings)]


def log_if_wide(panels: Sequence[Axes], values: Sequence[Array]) -> None:
    """Makes the y axes logarithmic where the values are positive and span more than `LOG_RATIO`."""
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
    plain_ticks(axis)
    axis.set_minor_formatter(NullFormatter())


def plain_ticks(axis: Axis) -> None:
    """Ticks as plain numbers, without powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend under all panels."""
    entries = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    longest = max(map(len, entries)) + 8  # The line of a label is about 8 letters wide.
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


def styled(setting: Setting) -> list[tuple[Variant, str]]:
    """Variants with line styles: colour tells the method, the style tells variants of one method apart."""
    return [(v, LINE_STYLES[setting.of(v.method).index(v) % len(LINE_STYLES)]) for v in setting.variants]


def draw_band(axes: Axes, x: NDArray, values: Array, variant: Variant, style: str, *, marked: bool = False) -> None:
    """Mean over the first axis as a line; smallest to largest as a band where there are several seeds."""
    colour, marker = COLOURS[variant.method], MARKERS[variant.method] if marked else ""
    axes.plot(x, values.mean(0), color=colour, linestyle=style, marker=marker, markersize=5, label=variant.title)
    if len(values) > 1:
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
