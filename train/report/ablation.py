"""The ablation figure: score and feasibility of constrained training against one number of the config."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from train.report.groups import Setting, Variant, identity, is_number
from train.report.panels import COLOURS, GUIDE, MARKERS, WIDTH, log_ticks, tidy

__all__ = ["Ablation", "Series", "ablation", "find_ablations"]

# Okabe-Ito again; the first is the constrained method's own.
SERIES_COLOURS = (COLOURS["constrained"], "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# A log axis for field values that span more than a decade, and for an excess above the bound itself.
DECADE, WHOLE_BOUND = 10.0, 100.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Variants that differ in one field only, by rising ``values`` of it; ``label`` tells what they share."""

    label: str
    values: Array
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Ablation:
    """One numeric config field, by dotted name, that was varied within a setting."""

    setting: Setting
    field: str
    series: tuple[Series, ...]


def find_ablations(settings: Sequence[Setting]) -> list[Ablation]:
    """Every numeric field that alone sets two or more constrained variants of a setting apart."""
    found = []
    for setting in settings:
        variants = setting.of("constrained")
        configs = [identity(variant.runs[0]) for variant in variants]
        for field in sorted({key for config in configs for key in config}):
            series = _series(field, variants, configs)
            if series:
                found.append(Ablation(setting, field, series))
    return found


def ablation(settings: Sequence[Setting]) -> Figure | None:
    """Score and worst excess over a bound against every ablated field, a row a setting and field; None without one."""
    rows = find_ablations(settings)
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.3 + 3.6 * len(rows)), layout="constrained")
    for (left, right), row in zip(figure.subplots(len(rows), 2, squeeze=False), rows, strict=True):
        _draw_score(left, row)
        _draw_excess(right, row)
        for axes in (left, right):
            _finish(axes, row)
    return figure


def _series(field: str, variants: Sequence[Variant], configs: Sequence[dict]) -> tuple[Series, ...]:
    """Variants that are equal but for ``field``, where they hold two different numbers or more."""
    cells: dict[tuple, list[tuple[float, int]]] = {}
    for index, config in enumerate(configs):
        if is_number(config.get(field)):
            shared = tuple(sorted((key, str(value)) for key, value in config.items() if key != field))
            cells.setdefault(shared, []).append((float(config[field]), index))
    kept = {shared: sorted(cell) for shared, cell in cells.items() if len({value for value, _ in cell}) > 1}
    varying = {entry for shared in kept for entry in shared if not all(entry in other for other in kept)}
    return tuple(
        Series(
            label=", ".join(f"{key.split('.')[-1]} {value}" for key, value in shared if (key, value) in varying),
            values=np.array([value for value, _ in cell]),
            variants=tuple(variants[index] for _, index in cell),
        )
        for shared, cell in kept.items()
    )


def _draw_score(axes: Axes, row: Ablation) -> None:
    index = row.setting.training_index
    gammas = np.array([float(gamma) for gamma in row.setting.gammas])
    stronger = gammas > gammas[index]
    for colour, series in _coloured(row):
        at_training = [variant.scores()[:, index] for variant in series.variants]
        _points(axes, series, at_training, colour, "-", f"test gamma {gammas[index]:g} (training)")
        if stronger.any():
            averaged = [variant.scores()[:, stronger].mean(1) for variant in series.variants]
            span = f"mean over {gammas[stronger].min():g} to {gammas.max():g}"
            _points(axes, series, averaged, colour, "--", span if stronger.sum() > 1 else f"{gammas.max():g}")
    axes.set_ylabel(row.series[0].variants[0].runs[0].score.label)


def _draw_excess(axes: Axes, row: Ablation) -> None:
    """Largest violation / bound of all layers on held-out data, in percent, with the bound and the tolerance."""
    highest = 0.0
    for colour, series in _coloured(row):
        excess = [100 * _worst_excess(variant) for variant in series.variants]
        _points(axes, series, excess, colour, "-", "worst layer")
        highest = max([highest, *(value for values in excess for value in values)])
    axes.axhline(0.0, color=GUIDE, linewidth=1.0, label="bound")
    for tolerance in sorted({variant.scalar("tolerance") for series in row.series for variant in series.variants}):
        axes.axhline(100 * tolerance, color=GUIDE, linestyle=":", linewidth=1.4, label=f"tolerance {tolerance:.0%}")
    if highest > WHOLE_BOUND:
        axes.set_yscale("symlog", linthresh=WHOLE_BOUND / 10)
    axes.set_ylabel("worst excess over a bound (% of it)")


def _worst_excess(variant: Variant) -> Array:
    """Largest violation / bound over the layers, one for every seed; NaN where no layer has a bound."""
    violations, bounds = variant.stack("violations"), variant.stack("bounds")
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(bounds > 0, violations / bounds, np.nan)
    return np.array([np.nan if np.isnan(row).all() else np.nanmax(row) for row in excess])


def _points(axes: Axes, series: Series, scores: Sequence[Array], colour: str, style: str, label: str) -> None:
    """Mean over the seeds at every value as a line; bars from the smallest to the largest seed."""
    means, lows, highs = (np.array([reduce(score) for score in scores]) for reduce in (np.mean, np.min, np.max))
    label = f"{label}; {series.label}" if series.label else label
    filled = colour if style == "-" else "white"
    axes.plot(
        series.values, means, style, color=colour, marker=MARKERS["constrained"], markerfacecolor=filled, label=label
    )
    if any(len(score) > 1 for score in scores):
        axes.vlines(series.values, lows, highs, color=colour, linewidth=3, alpha=0.4)


def _finish(axes: Axes, row: Ablation) -> None:
    values = np.concatenate([series.values for series in row.series])
    if values.min() > 0 and values.max() > DECADE * values.min():
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(row.field)
    tidy(axes, row.setting.title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))


def _coloured(row: Ablation) -> list[tuple[str, Series]]:
    return [(SERIES_COLOURS[index % len(SERIES_COLOURS)], series) for index, series in enumerate(row.series)]
