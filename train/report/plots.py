"""The figures of a report: one function a figure, each returns an explicit `Figure` (no pyplot state)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from train.report.ablation import ablation
from train.report.groups import Setting, Variant
from train.report.panels import (
    COLOURS,
    GUIDE,
    MARKERS,
    NOISY,
    WIDTH,
    draw_band,
    label_rows,
    log_if_wide,
    padded,
    setting_panels,
    shared_legend,
    styled,
    tidy,
)
from train.report.read import Curves

__all__ = ["draw_all", "layer_losses", "multipliers", "ood_curve", "ratios", "training_loss"]

BOUND = "#004166"
# Inches that a variant's two lines take in the legend under a panel.
LEGEND_ENTRY = 0.45
# Curves are smoothed over this fraction of the steps.
SMOOTHING = 1 / 60

Array = NDArray[np.float64]


def draw_all(settings: Sequence[Setting]) -> dict[str, Figure]:
    """Every figure by file name (without the ending), in the order of the page."""
    figures = {
        "ood_curve": ood_curve(settings),
        "layer_losses": layer_losses(settings),
        "ablation": ablation(settings),
        "multipliers": multipliers(settings),
        "ratios": ratios(settings),
        "training_loss": training_loss(settings),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def ood_curve(settings: Sequence[Setting]) -> Figure:
    """RMSE against test gamma, one panel per setting; the training gamma is marked."""
    figure, panels = setting_panels(settings, share_y=True)
    for axes, setting in zip(panels, settings, strict=True):
        gammas = np.array([float(gamma) for gamma in setting.gammas])
        axes.plot(gammas, setting.noisy_rmse(), "--x", color=NOISY, markersize=5, label="noisy input")
        for variant, style in styled(setting):
            draw_band(axes, gammas, variant.scores(), variant, style, marker=MARKERS[variant.method])
        axes.axvline(setting.train_gamma, color=GUIDE, linestyle=":", linewidth=1.2, label="training gamma")
        axes.set(xlabel="test gamma (variance / data std)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(*padded(gammas))
    label_rows(panels, "RMSE (0-255 scale)")
    shared_legend(figure, panels)
    return figure


def layer_losses(settings: Sequence[Setting], label: str = "loss  ½|x − Φ|²  (pixels in [0, 1])") -> Figure:
    """Mean held-out loss after every layer, one panel per setting, with the bounds of the constrained variants."""
    figure, panels = setting_panels(settings, share_y=True)
    for axes, setting in zip(panels, settings, strict=True):
        layers = np.arange(setting.num_layers + 1)
        for variant, style in styled(setting):
            draw_band(axes, layers, variant.stack("layer_losses"), variant, style, marker=MARKERS[variant.method])
            if variant.method == "constrained":
                bounds = variant.mean("bounds")
                axes.plot(layers, bounds, "_", color=BOUND, markersize=18, markeredgewidth=2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.08)
        axes.set(xlabel="layer (0: embedded input)")
    if any(setting.of("constrained") for setting in settings):
        panels[0].plot([], [], "_", color=BOUND, markersize=14, markeredgewidth=2, label="bound (constrained)")
    label_rows(panels, label)
    log_if_wide(panels, [v.stack("layer_losses") for s in settings for v in s.variants])
    shared_legend(figure, panels)
    return figure


def multipliers(settings: Sequence[Setting]) -> Figure | None:
    """Multiplier and violation of every layer against step, a row per constrained variant; None without one."""
    rows = [(s, v) for s in settings for v in s.of("constrained") if len(_common_steps(v)[0])]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.5 + 3.1 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for (left, right), (setting, variant) in zip(grid, rows, strict=True):
        steps, curves = _common_steps(variant)
        shades = colormaps["viridis"](np.linspace(0.0, 0.88, setting.num_layers + 1))
        for layer, shade in enumerate(shades):
            multiplier = np.mean([curve.multipliers[:, layer] for curve in curves], axis=0)
            violation = np.mean([curve.violations[:, layer] for curve in curves], axis=0)
            left.plot(*_smooth(steps, multiplier), color=shade)
            right.plot(*_smooth(steps, violation), color=shade, label=f"layer {layer}")
        right.set_yscale("symlog", linthresh=0.1, linscale=0.7)
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
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
    figure, panels = setting_panels(settings, share_y=True, height=2.8 + LEGEND_ENTRY * most)
    for axes, setting in zip(panels, settings, strict=True):
        for variant, style in styled(setting):
            edges, shares, open_ended = _histogram(variant)
            if open_ended:
                _mark_open_bin(axes, edges)
            mean, share = variant.scalar("mean_ratio_all"), variant.scalar("share_descending")
            label = f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend"
            colour = COLOURS[variant.method]
            axes.stairs(100 * shares, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(100 * shares, edges, color=colour, linestyle=style, linewidth=1.6, label=label)
        axes.axvline(1.0, color=GUIDE, linestyle=":", linewidth=1.4, label="1: no change")
        axes.set(xlabel="per-sample ratio  f$_l$ / f$_{l-1}$")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    label_rows(panels, "share of steps (% per bin)")
    return figure


def training_loss(settings: Sequence[Setting], label: str = "last layer's loss  ½|x − Φ$_L$|²") -> Figure | None:
    """Loss of the last layer against training step (smoothed) with the validation values; None without metrics."""
    if not any(len(_common_steps(variant)[0]) for setting in settings for variant in setting.variants):
        return None
    figure, panels = setting_panels(settings, share_y=True)
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
                colour = COLOURS[variant.method]
                axes.plot(run.curves.validation_steps, run.curves.validation_loss, ".", color=colour, markersize=5)
        axes.set(xlabel="training step")
    panels[0].plot([], [], ".", color=GUIDE, label="validation")
    label_rows(panels, label)
    log_if_wide(panels, drawn)
    shared_legend(figure, panels)
    return figure


def _common_steps(variant: Variant) -> tuple[NDArray[np.int64], list[Curves]]:
    """Steps that all seeds logged, and every seed's curves at these."""
    steps = variant.runs[0].curves.steps
    for run in variant.runs[1:]:
        steps = np.intersect1d(steps, run.curves.steps)
    return steps, [_at(run.curves, steps) for run in variant.runs]


def _at(curves: Curves, steps: NDArray[np.int64]) -> Curves:
    kept = np.isin(curves.steps, steps)
    validation = (curves.validation_steps, curves.validation_loss)
    return Curves(steps, curves.loss[kept], curves.violations[kept], curves.multipliers[kept], *validation)


def _smooth(steps: NDArray, values: Array) -> tuple[Array, Array]:
    """Running mean over a window of `SMOOTHING` of the curve, without made-up ends."""
    window = max(1, round(len(values) * SMOOTHING))
    kernel = np.full(window, 1 / window)
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")


def _histogram(variant: Variant) -> tuple[Array, Array, bool]:
    """Bin edges, share of all ratios in each bin, and whether the last bin holds everything above its left edge."""
    edges = np.asarray(variant.runs[0].evaluation["ratio_histogram"]["edges"], np.float64)
    counts = np.sum(
        [run.evaluation["ratio_histogram"]["counts"] for run in variant.runs], axis=(0, 1), dtype=np.float64
    )
    open_ended = not np.isfinite(edges[-1])
    if open_ended:
        edges[-1] = 2 * edges[-2] - edges[-3]
    shares = np.asarray(counts / max(1.0, counts.sum()))
    return edges, shares, open_ended


def _mark_open_bin(axes: Axes, edges: Array) -> None:
    start = edges[-2]
    ticks = np.linspace(0.0, start, 5)
    axes.set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {start:g}"])
