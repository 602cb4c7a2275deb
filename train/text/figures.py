"""The figures of reports on text, beside those that all constrained training shares."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from train.report.ablation import ablation
from train.report.groups import METHOD_NAMES, Setting
from train.report.panels import (
    COLOURS,
    GUIDE,
    MARKERS,
    draw_band,
    label_rows,
    padded,
    setting_panels,
    shared_legend,
    styled,
)
from train.report.plots import layer_losses, multipliers, ratios, training_loss

__all__ = ["accuracy_curve", "draw_text", "early_exit", "error_rates"]


def draw_text(settings: Sequence[Setting]) -> dict[str, Figure]:
    """Every figure by file name (without the ending), in the order of the page."""
    figures = {
        "accuracy_curve": accuracy_curve(settings),
        "layer_losses": layer_losses(settings, "cross entropy (nats)"),
        "error_rates": error_rates(settings),
        "ratios": ratios(settings),
        "early_exit": early_exit(settings),
        "ablation": ablation(settings),
        "multipliers": multipliers(settings),
        "training_loss": training_loss(settings, "last layer's cross entropy (nats)"),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def accuracy_curve(settings: Sequence[Setting]) -> Figure:
    """Accuracy against test gamma, one panel per setting; the training gamma is marked."""
    figure, panels = setting_panels(settings, share_y=True)
    for axes, setting in zip(panels, settings, strict=True):
        gammas = np.array([float(gamma) for gamma in setting.gammas])
        for variant, style in styled(setting):
            draw_band(axes, gammas, variant.scores(), variant, style, marker=MARKERS[variant.method])
        axes.axvline(setting.train_gamma, color=GUIDE, linestyle=":", linewidth=1.2, label="training gamma")
        axes.set(xlabel="test gamma")
        axes.set_xlim(*padded(gammas))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    label_rows(panels, "accuracy on held-out texts")
    shared_legend(figure, panels)
    return figure


def error_rates(settings: Sequence[Setting]) -> Figure:
    """Share of held-out texts that each layer is wrong about, one panel per setting."""
    figure, panels = setting_panels(settings, share_y=True)
    for axes, setting in zip(panels, settings, strict=True):
        layers = np.arange(setting.num_layers + 1)
        for variant, style in styled(setting):
            draw_band(axes, layers, variant.stack("error_rates"), variant, style, marker=MARKERS[variant.method])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlabel="layer (0: embedded input)")
    label_rows(panels, "error rate")
    shared_legend(figure, panels)
    return figure


def early_exit(settings: Sequence[Setting]) -> Figure:
    """Accuracy against mean depth over all thresholds; the threshold chosen on validation data is marked."""
    figure, panels = setting_panels(settings, share_y=True)
    for axes, setting in zip(panels, settings, strict=True):
        grid = np.linspace(0.0, setting.num_layers, 200)
        for variant, style in styled(setting):
            found = [run.evaluation["early_exit"] for run in variant.runs]
            curves = np.stack([_on_grid(one["curve"], grid) for one in found])
            draw_band(axes, grid, curves, variant, style)
            chosen = [[one["mean_depth"] for one in found], [one["accuracy"] for one in found]]
            look: dict[str, Any] = {
                "color": COLOURS[variant.method],
                "marker": MARKERS[variant.method],
                "linestyle": "none",
            }
            axes.plot(*chosen, **look, label=f"{METHOD_NAMES[variant.method]}: threshold chosen on validation data")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlabel="mean depth (layers run)")
    label_rows(panels, "accuracy on held-out texts")
    shared_legend(figure, panels)
    return figure


def _on_grid(curve: dict[str, list[float]], grid: np.ndarray) -> np.ndarray:
    """Accuracy at depths between those of thresholds, along the line that joins them."""
    order = np.argsort(curve["mean_depths"], kind="stable")
    return np.interp(grid, np.array(curve["mean_depths"])[order], np.array(curve["accuracies"])[order])
