"""The figures of reports on constrained training: one function a figure, each returns an explicit `Figure`."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from .groups import METHOD_NAMES, Ablation, Series, Setting, Variant, find_ablations
from .panels import (
    COLOURS,
    GUIDE,
    MARKERS,
    NOISY,
    WIDTH,
    draw_band,
    log_if_wide,
    log_ticks,
    padded,
    plain_ticks,
    setting_panels,
    shared_legend,
    styled,
    tidy,
)
from .read import ACCURACY, CODES, RMSE, Curves
from .record import Array

BOUND = "#004166"
LEGEND_ENTRY = 0.45  # inches that a variant's two lines take in the legend under a panel
# Okabe-Ito again; the first is the constrained method's own.
SERIES_COLOURS = (COLOURS["constrained"], "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Of what needs no network: of the same table, and of no method.
FLOOR_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")
# A log axis for field values that span more than a decade, and for an excess above the bound itself.
DECADE, WHOLE_BOUND = 10.0, 100.0
GAMMAS = {RMSE: " (variance / data std)", CODES: " (deviation / data std)"}
SMOOTHING = 1 / 60  # of the steps: the fraction that curves are smoothed over


def score_curve(settings: Sequence[Setting]) -> Figure:
    """The score against test gamma, one panel per setting, with what needs no training; training gamma is marked."""
    score = settings[0].score
    x = f"test gamma{GAMMAS.get(score, '')}"
    y = "accuracy on held-out texts" if score is ACCURACY else score.label
    figure, panels = setting_panels(settings, x, y, percent=score is ACCURACY)
    for axes, setting in zip(panels, settings, strict=True):
        if score.baseline is not None:
            axes.plot(setting.gammas, setting.of_input(), "--x", color=NOISY, markersize=5, label="noisy input")
        for colour, (name, scores) in zip(itertools.cycle(FLOOR_COLOURS), setting.floors().items(), strict=False):
            axes.plot(setting.gammas, scores, "--", color=colour, label=name)
        for variant, style in styled(setting):
            draw_band(axes, setting.gammas, variant.scores(), variant, style, marked=True)
        axes.axvline(setting.train_gamma, color=GUIDE, linestyle=":", linewidth=1.2, label="training gamma")
        axes.set_xlim(padded(setting.gammas))
        if score is not ACCURACY:
            axes.set_ylim(0, _top(setting))
    shared_legend(figure, panels)
    return figure


def layer_losses(settings: Sequence[Setting], label: str = "loss  ½|x − Φ|²  (pixels in [0, 1])") -> Figure:
    """Mean held-out loss after every layer, one panel per setting, with the bounds of the constrained variants."""
    figure, panels = _by_layer(settings, "layer_losses", label, bounded=True)
    if any(setting.of("constrained") for setting in settings):
        panels[0].plot([], [], "_", color=BOUND, markersize=14, markeredgewidth=2, label="bound (constrained)")
    log_if_wide(panels, [v.stack("layer_losses") for s in settings for v in s.variants])
    shared_legend(figure, panels)
    return figure


def error_rates(settings: Sequence[Setting]) -> Figure:
    """Share of held-out texts that each layer is wrong about, one panel per setting."""
    figure, panels = _by_layer(settings, "error_rates", "error rate", percent=True)
    shared_legend(figure, panels)
    return figure


def multipliers(settings: Sequence[Setting]) -> Figure | None:
    """Multiplier and violation of every layer against step, a row per constrained variant; None without one."""
    rows = [(s, v) for s in settings for v in s.of("constrained") if len(_common_steps(v)[0])]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.5 + 3.1 * len(rows)), layout="constrained")
    for (left, right), (setting, variant) in zip(figure.subplots(len(rows), 2, squeeze=False), rows, strict=True):
        steps, curves = _common_steps(variant)
        shades = colormaps["viridis"](np.linspace(0.0, 0.88, setting.num_layers + 1))
        for place, (layer, shade) in enumerate(zip(setting.layers, shades, strict=True)):
            multiplier = np.mean([curve.multipliers[:, place] for curve in curves], axis=0)
            violation = np.mean([curve.violations[:, place] for curve in curves], axis=0)
            if np.all(np.isnan(violation)):  # layer 0 without a reference loss has no constraint
                continue
            left.plot(*_smooth(steps, multiplier), color=shade)
            right.plot(*_smooth(steps, violation), color=shade, label=f"layer {layer}")
        right.set_yscale("symlog", linthresh=0.1, linscale=0.7)
        plain_ticks(right.yaxis)
        title = setting.title + (f"\n{variant.label}" if variant.label else "")
        tightened = "violation of the tightened bound\n(smoothed; ≤ 0 holds)"
        for axes, label in ((left, "multiplier λ (smoothed)"), (right, tightened)):
            axes.axhline(0.0, color=GUIDE, linewidth=1.0)
            axes.set(xlabel="training step", ylabel=label)
            tidy(axes, title)
        right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def ratios(settings: Sequence[Setting]) -> Figure:
    """Distribution of the per-sample ratios f_l / f_{l-1} over all layers, one panel per setting."""
    most = max(len(setting.variants) for setting in settings)
    x, y, height = "per-sample ratio  f$_l$ / f$_{l-1}$", "share of steps (% per bin)", 2.8 + LEGEND_ENTRY * most
    figure, panels = setting_panels(settings, x, y, height=height)
    for axes, setting in zip(panels, settings, strict=True):
        for variant, style in styled(setting):
            edges, shares, open_ended = _histogram(variant)
            if open_ended:  # the last bin holds everything above its left edge
                ticks = np.linspace(0.0, edges[-2], 5)
                axes.set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:g}"])
            mean, share = variant.mean("mean_ratio_all"), variant.mean("share_descending")
            label = f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend"
            colour = COLOURS[variant.method]
            axes.stairs(100 * shares, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(100 * shares, edges, color=colour, linestyle=style, linewidth=1.6, label=label)
        axes.axvline(1.0, color=GUIDE, linestyle=":", linewidth=1.4, label="1: no change")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def early_exit(settings: Sequence[Setting]) -> Figure:
    """Accuracy against mean depth over all thresholds; the threshold chosen on validation data is marked."""
    figure, panels = setting_panels(settings, "mean depth (layers run)", "accuracy on held-out texts", percent=True)
    for axes, setting in zip(panels, settings, strict=True):
        grid = np.linspace(0.0, setting.num_layers, 200)
        for variant, style in styled(setting):
            exits = [run.evaluation["early_exit"] for run in variant.runs]
            draw_band(axes, grid, np.stack([_on_grid(one["curve"], grid) for one in exits]), variant, style)
            depths, accuracies = ([one[name] for one in exits] for name in ("mean_depth", "accuracy"))
            label = f"{METHOD_NAMES[variant.method]}: threshold chosen on validation data"
            axes.plot(depths, accuracies, MARKERS[variant.method], color=COLOURS[variant.method], label=label)
    shared_legend(figure, panels)
    return figure


def training_loss(settings: Sequence[Setting], label: str) -> Figure | None:
    """Loss of the last layer against training step (smoothed) with the validation values; None without metrics."""
    if not any(len(_common_steps(variant)[0]) for setting in settings for variant in setting.variants):
        return None
    figure, panels = setting_panels(settings, "training step", label)
    drawn = []
    for axes, setting in zip(panels, settings, strict=True):
        for variant, style in styled(setting):
            steps, curves = _common_steps(variant)
            if not len(steps):
                continue
            smoothed = [_smooth(steps, curve.loss) for curve in curves]
            drawn.append(np.stack([loss for _, loss in smoothed]))
            draw_band(axes, smoothed[0][0], drawn[-1], variant, style)
            for run in variant.runs:
                dots = {"color": COLOURS[variant.method], "markersize": 5}
                axes.plot(run.curves.validation_steps, run.curves.validation_loss, ".", **dots)
    panels[0].plot([], [], ".", color=GUIDE, label="validation")
    log_if_wide(panels, drawn)
    shared_legend(figure, panels)
    return figure


def ablation(settings: Sequence[Setting]) -> Figure | None:
    """Score and worst excess over a bound against every ablated field, a row a setting and field; None without one."""
    rows = find_ablations(settings)
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.3 + 3.6 * len(rows)), layout="constrained")
    for (left, right), row in zip(figure.subplots(len(rows), 2, squeeze=False), rows, strict=True):
        _draw_scores(left, row)
        _draw_excess(right, row)
        values = np.concatenate([series.values for series in row.series])
        for axes in (left, right):
            if values.min() > 0 and values.max() > DECADE * values.min():
                axes.set_xscale("log")
                log_ticks(axes.xaxis)
            else:
                axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
                plain_ticks(axes.xaxis)
            axes.set_xlabel(row.field)
            tidy(axes, row.setting.title)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


def _top(setting: Setting) -> float | None:
    """Returns the end of the axis; the noisy input may lie beyond it, to tell models apart; None: anywhere."""
    cleaned = [*(one.scores().max() for one in setting.variants), *map(np.max, setting.floors().values())]
    highest = float(np.max(cleaned))
    return 1.3 * highest if setting.score.baseline is not None and np.isfinite(highest) and highest > 0 else None


def _by_layer(
    settings: Sequence[Setting], key: str, label: str, *, percent: bool = False, bounded: bool = False
) -> tuple[Figure, list[Axes]]:
    """A number of every layer on held-out data, for every variant, and the bounds of those that have any."""
    figure, panels = setting_panels(settings, "layer (0: embedded input)", label, percent=percent)
    for axes, setting in zip(panels, settings, strict=True):
        layers = np.asarray(setting.layers)
        for variant, style in styled(setting):
            draw_band(axes, layers, variant.stack(key), variant, style, marked=True)
            if bounded and variant.method == "constrained":
                axes.plot(layers, variant.mean("bounds"), "_", color=BOUND, markersize=18, markeredgewidth=2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if bounded:
            axes.margins(x=0.08)
    return figure, panels


def _common_steps(variant: Variant) -> tuple[NDArray[np.int64], list[Curves]]:
    """Steps that all seeds logged, and every seed's curves at these."""
    steps = variant.runs[0].curves.steps
    for run in variant.runs[1:]:
        steps = np.intersect1d(steps, run.curves.steps)
    return steps, [_at(run.curves, steps) for run in variant.runs]


def _at(curves: Curves, steps: NDArray[np.int64]) -> Curves:
    kept = np.isin(curves.steps, steps)
    loss, violations, multipliers = (part[kept] for part in (curves.loss, curves.violations, curves.multipliers))
    return replace(curves, steps=steps, loss=loss, violations=violations, multipliers=multipliers)


def _smooth(steps: NDArray, values: Array) -> tuple[Array, Array]:
    """Running mean over a window of `SMOOTHING` of the curve, without made-up ends."""
    window = max(1, round(len(values) * SMOOTHING))
    kernel = np.full(window, 1 / window)
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")


def _histogram(variant: Variant) -> tuple[Array, Array, bool]:
    """Bin edges, share of all ratios in each bin, and whether the last bin has no end."""
    histograms = [run.evaluation["ratio_histogram"] for run in variant.runs]
    edges = np.asarray(histograms[0]["edges"], np.float64)
    counts = np.sum([one["counts"] for one in histograms], axis=(0, 1), dtype=np.float64)
    open_ended = not np.isfinite(edges[-1])
    if open_ended:
        edges[-1] = 2 * edges[-2] - edges[-3]
    return edges, np.asarray(counts / max(1.0, counts.sum())), open_ended


def _on_grid(curve: dict[str, list[float]], grid: Array) -> Array:
    """Accuracy at depths between those of thresholds, along the line that joins them."""
    order = np.argsort(curve["mean_depths"], kind="stable")
    return np.interp(grid, np.array(curve["mean_depths"])[order], np.array(curve["accuracies"])[order])


def _draw_scores(axes: Axes, row: Ablation) -> None:
    """The score at the training gamma, and its mean over the stronger ones."""
    gammas, index = row.setting.gammas, row.setting.training_index
    stronger = gammas > gammas[index]
    for colour, series in zip(itertools.cycle(SERIES_COLOURS), row.series, strict=False):
        at_training = [variant.scores()[:, index] for variant in series.variants]
        _points(axes, series, at_training, colour, "-", f"test gamma {gammas[index]:g} (training)")
        if stronger.any():
            averaged = [variant.scores()[:, stronger].mean(1) for variant in series.variants]
            span = f"mean over {gammas[stronger].min():g} to {gammas.max():g}"
            _points(axes, series, averaged, colour, "--", span if stronger.sum() > 1 else f"{gammas.max():g}")
    axes.set_ylabel(row.setting.score.label)


def _draw_excess(axes: Axes, row: Ablation) -> None:
    """Largest violation / bound of all layers on held-out data, in percent, with the bound and the tolerance."""
    highest = 0.0
    for colour, series in zip(itertools.cycle(SERIES_COLOURS), row.series, strict=False):
        excess = [100 * _worst_excess(variant) for variant in series.variants]
        _points(axes, series, excess, colour, "-", "worst layer")
        highest = max([highest, *(value for values in excess for value in values)])
    axes.axhline(0.0, color=GUIDE, linewidth=1.0, label="bound")
    variants = [variant for series in row.series for variant in series.variants]
    for tolerance in sorted({float(variant.mean("tolerance")) for variant in variants}):
        axes.axhline(100 * tolerance, color=GUIDE, linestyle=":", linewidth=1.4, label=f"tolerance {tolerance:.0%}")
    if highest > WHOLE_BOUND:
        axes.set_yscale("symlog", linthresh=WHOLE_BOUND / 10)
    axes.set_ylabel("worst excess over a bound (% of it)")


def _worst_excess(variant: Variant) -> Array:
    """Largest share of a bound that it is exceeded by, one for every seed; NaN where no layer has a bound."""
    excess = -variant.margins()
    return np.array([np.nan if np.isnan(row).all() else np.nanmax(row) for row in excess])


def _points(axes: Axes, series: Series, scores: Sequence[Array], colour: str, style: str, label: str) -> None:
    """Mean over the seeds at every value as a line; bars from the smallest to the largest seed."""
    means, lows, highs = (np.array([reduce(score) for score in scores]) for reduce in (np.mean, np.min, np.max))
    label = f"{label}; {series.label}" if series.label else label
    face, marker = colour if style == "-" else "white", MARKERS["constrained"]
    axes.plot(series.values, means, style, color=colour, marker=marker, markerfacecolor=face, label=label)
    if any(len(score) > 1 for score in scores):
        axes.vlines(series.values, lows, highs, color=colour, linewidth=3, alpha=0.4)
