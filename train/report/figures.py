"""The figures of reports on layered runs: each function returns a `Figure`, or None where there is nothing to draw."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from .groups import METHOD_NAMES, Setting, Variant
from .page import GUIDE, WIDTH, tidy
from .records import METHODS, Array

# Okabe-Ito: told apart with every common colour blindness.
COLOURS = {"erm": "#D55E00", "deep_supervision": "#009E73", "constrained": "#0072B2"}
MARKERS = {"erm": "o", "deep_supervision": "^", "constrained": "s"}
LINE_STYLES = ("-", "--", ":", "-.")
# Of scores without a network; no method has them.
FLOOR_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")
NOISY, BOUND = "#6E6E6E", "#004166"
MOST_COLUMNS = 3
LETTERS_PER_INCH = 11
LEGEND_ENTRY = 0.45  # inches that a variant's two lines take in the legend under a panel
LOG_RATIO = 4.0  # a log axis once the largest value is this many times the smallest
SMOOTHING = 1 / 60  # of the steps: the fraction that curves are smoothed over


def score_curve(settings: Sequence[Setting]) -> Figure | None:
    """The score against test gamma, one panel per setting, with floors; the training gamma is marked."""
    spec = settings[0].spec
    if len(settings[0].gammas) < 2:
        return None
    figure, panels = _panels(settings, spec.gamma, spec.label, percent=spec.percent)
    for axes, setting in zip(panels, settings, strict=True):
        colours = itertools.cycle(FLOOR_COLOURS)
        for name, scores in setting.floors().items():
            colour, style = (NOISY, "--x") if name == "noisy input" else (next(colours), "--")
            axes.plot(setting.gammas, scores, style, color=colour, markersize=5, label=name)
        for variant, style in _styled(setting):
            _draw_band(axes, setting.gammas, variant.scores(), variant, style, marked=True)
        axes.axvline(setting.train_gamma, color=GUIDE, linestyle=":", linewidth=1.2, label="training gamma")
        axes.margins(x=0.03)
        if not spec.percent:
            axes.set_ylim(0, _top(setting))
    _shared_legend(figure, panels)
    return figure


def frontier(settings: Sequence[Setting]) -> Figure | None:
    """The score at the largest test gamma against that at the training gamma, a point a variant of several a method."""
    shown = [setting for setting in settings if len(setting.variants) > len(METHODS)]
    if not shown:
        return None
    title = settings[0].spec.title
    figure, panels = _panels(shown, f"{title} at the training gamma", f"{title} at the largest test gamma")
    for axes, setting in zip(panels, shown, strict=True):
        for variant in setting.variants:
            x, y = variant.scores()[:, setting.training_index], variant.scores()[:, -1]
            colour = COLOURS[variant.method]
            axes.errorbar(
                x.mean(),
                y.mean(),
                xerr=_reach(x),
                yerr=_reach(y),
                color=colour,
                marker=MARKERS[variant.method],
                linestyle="",
                markerfacecolor=colour if variant.feasible else "white",
                label=METHOD_NAMES[variant.method],
            )
    _shared_legend(figure, panels)
    return figure


def layer_losses(settings: Sequence[Setting]) -> Figure:
    """Mean held-out loss after every layer, one panel per setting, with the bounds of the constrained variants."""
    figure, panels = _by_layer(settings, "layer_losses", settings[0].spec.loss)
    for axes, setting in zip(panels, settings, strict=True):
        for variant in setting.of("constrained"):
            axes.plot(setting.layers, variant.mean("bounds"), "_", color=BOUND, markersize=18, markeredgewidth=2)
        axes.margins(x=0.08)
    if any(setting.of("constrained") for setting in settings):
        panels[0].plot([], [], "_", color=BOUND, markersize=14, markeredgewidth=2, label="bound (constrained)")
    _log_if_wide(panels, [v.stack("layer_losses") for s in settings for v in s.variants])
    _shared_legend(figure, panels)
    return figure


def error_rates(settings: Sequence[Setting]) -> Figure | None:
    """Share of held-out samples that each layer gets wrong, one panel per setting."""
    if not _all_have(settings, "error_rates"):
        return None
    figure, panels = _by_layer(settings, "error_rates", "error rate", percent=True)
    _shared_legend(figure, panels)
    return figure


def acceptance(settings: Sequence[Setting]) -> Figure | None:
    """Share of tokens that a layer names as the last one does, by layer, at the lowest strength of noise."""
    if not _all_have(settings, "acceptance"):
        return None
    figure, panels = _panels(settings, "layer that drafts (0: embedded input)", "acceptance", percent=True)
    for axes, setting in zip(panels, settings, strict=True):
        axes.set_xticks(setting.layers)
        for variant, style in _styled(setting):
            lowest = variant.stack("acceptance")[:, 0]
            _draw_band(axes, np.asarray(setting.layers), lowest, variant, style, marked=True)
    _shared_legend(figure, panels)
    return figure


def ratios(settings: Sequence[Setting]) -> Figure:
    """Distribution of the per-sample ratios f_l / f_{l-1} over all layers, one panel per setting."""
    most = max(len(setting.variants) for setting in settings)
    x, y, height = "per-sample ratio  f$_l$ / f$_{l-1}$", "share of steps (% per bin)", 2.8 + LEGEND_ENTRY * most
    figure, panels = _panels(settings, x, y, height=height)
    for axes, setting in zip(panels, settings, strict=True):
        for variant, style in _styled(setting):
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


def early_exit(settings: Sequence[Setting]) -> Figure | None:
    """Accuracy against mean depth over all thresholds; the threshold chosen on validation data is marked."""
    if not _all_have(settings, "early_exit"):
        return None
    figure, panels = _panels(settings, "mean depth (layers run)", settings[0].spec.label, percent=True)
    for axes, setting in zip(panels, settings, strict=True):
        grid = np.linspace(0.0, setting.num_layers, 200)
        for variant, style in _styled(setting):
            exits = [run.evaluation["early_exit"] for run in variant.runs]
            _draw_band(axes, grid, np.stack([_on_grid(one["curve"], grid) for one in exits]), variant, style)
            depths, accuracies = ([one[name] for one in exits] for name in ("mean_depth", "accuracy"))
            label = f"{METHOD_NAMES[variant.method]}: threshold chosen on validation data"
            axes.plot(depths, accuracies, MARKERS[variant.method], color=COLOURS[variant.method], label=label)
    _shared_legend(figure, panels)
    return figure


def multipliers(settings: Sequence[Setting]) -> Figure | None:
    """Multiplier and violation of every layer against step, a row per constrained variant, means over the seeds."""
    rows = [(s, v) for s in settings for v in s.of("constrained") if len(v.curves("multipliers")[0])]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.5 + 3.1 * len(rows)), layout="constrained")
    for (left, right), (setting, variant) in zip(figure.subplots(len(rows), 2, squeeze=False), rows, strict=True):
        shades = colormaps["viridis"](np.linspace(0.0, 0.88, setting.num_layers + 1))
        for axes, name in ((left, "multipliers"), (right, "violations")):
            steps, curves = variant.curves(name)
            for layer, shade, curve in zip(setting.layers, shades, curves.mean(0).T, strict=True):
                if not np.isnan(variant.mean("bounds")[setting.layers.index(layer)]):  # no bound, no constraint
                    axes.plot(*_smooth(steps, curve), color=shade, label=f"layer {layer}")
            axes.axhline(0.0, color=GUIDE, linewidth=1.0)
            axes.set_xlabel("training step")
            tidy(axes, setting.title + (f"\n{variant.label}" if variant.label else ""))
        left.set_ylabel("multiplier λ (smoothed)")
        right.set_ylabel("violation of the tightened bound\n(smoothed; ≤ 0 holds)")
        right.set_yscale("symlog", linthresh=0.1, linscale=0.7)
        _plain_ticks(right.yaxis)
        right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _panels(
    settings: Sequence[Setting], x: str, y: str, *, percent: bool = False, height: float = 3.9
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with one titled panel per setting; the first of every row has the y label."""
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


def _log_if_wide(panels: Sequence[Axes], values: Sequence[Array]) -> None:
    """Makes the y axes logarithmic where the values are positive and span more than `LOG_RATIO`."""
    finite = np.concatenate([value[np.isfinite(value)] for value in values])
    if not len(finite) or finite.min() <= 0 or finite.max() < LOG_RATIO * finite.min():
        return
    for axes in panels:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        _plain_ticks(axes.yaxis)
        axes.yaxis.set_minor_formatter(NullFormatter())


def _plain_ticks(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend under all panels."""
    entries = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    longest = max(map(len, entries)) + 8  # The line of a label is about 8 letters wide.
    columns = int(np.clip(figure.get_figwidth() * LETTERS_PER_INCH // longest, 1, min(4, len(entries))))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _styled(setting: Setting) -> list[tuple[Variant, str]]:
    """Variants with line styles: colour tells the method, the style tells variants of one method apart."""
    return [(v, LINE_STYLES[setting.of(v.method).index(v) % len(LINE_STYLES)]) for v in setting.variants]


def _draw_band(axes: Axes, x: NDArray, values: Array, variant: Variant, style: str, *, marked: bool = False) -> None:
    """Mean over the first axis as a line; smallest to largest as a band where there are several seeds."""
    colour, marker = COLOURS[variant.method], MARKERS[variant.method] if marked else ""
    axes.plot(x, values.mean(0), color=colour, linestyle=style, marker=marker, markersize=5, label=variant.title)
    if len(values) > 1:
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)


def _top(setting: Setting) -> float | None:
    """Returns the end of the axis; the noisy input may lie beyond it, to tell models apart; None: anywhere."""
    floors = [scores for name, scores in setting.floors().items() if name != "noisy input"]
    highest = float(np.max([*(one.scores().max() for one in setting.variants), *map(np.max, floors)]))
    return 1.3 * highest if setting.spec.baseline is not None and np.isfinite(highest) and highest > 0 else None


def _by_layer(settings: Sequence[Setting], key: str, label: str, *, percent: bool = False) -> tuple[Figure, list[Axes]]:
    figure, panels = _panels(settings, "layer (0: embedded input)", label, percent=percent)
    for axes, setting in zip(panels, settings, strict=True):
        for variant, style in _styled(setting):
            _draw_band(axes, np.asarray(setting.layers), variant.stack(key), variant, style, marked=True)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, panels


def _all_have(settings: Sequence[Setting], key: str) -> bool:
    return all(variant.has(key) for setting in settings for variant in setting.variants)


def _smooth(steps: Array, values: Array) -> tuple[Array, Array]:
    """Running mean over a window of `SMOOTHING` of the curve, without made-up ends."""
    window = max(1, round(len(values) * SMOOTHING))
    kernel = np.full(window, 1 / window)
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")


def _histogram(variant: Variant) -> tuple[Array, Array, bool]:
    """Returns bin edges, the share of all ratios in each bin, and whether the last bin has no end."""
    histograms = [run.evaluation["ratio_histogram"] for run in variant.runs]
    edges = np.asarray(histograms[0]["edges"], np.float64)
    counts = np.sum([one["counts"] for one in histograms], axis=(0, 1), dtype=np.float64)
    open_ended = not np.isfinite(edges[-1])
    if open_ended:
        edges[-1] = 2 * edges[-2] - edges[-3]
    return edges, np.asarray(counts / max(1.0, counts.sum())), open_ended


def _on_grid(curve: dict[str, list[float]], grid: Array) -> Array:
    order = np.argsort(curve["mean_depths"], kind="stable")
    return np.interp(grid, np.array(curve["mean_depths"])[order], np.array(curve["accuracies"])[order])


def _reach(values: Array) -> Array:
    return np.array([[values.mean() - values.min()], [values.max() - values.mean()]])
