"""Exits from a language model at each of its layers: right tokens, and drafts that are accepted."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..system.terminal import Table
from .groups import Setting, Variant
from .panels import draw_band, setting_panels, shared_legend, styled
from .record import Array, floats
from .tables import number, with_seeds


def exit_layers_table(settings: Sequence[Setting]) -> list[Table]:
    """The share of right tokens where a model is left at each layer that is read, by test gamma, a table a variant."""
    tables = []
    for setting in settings:
        layers = setting.first.evaluation["layers"]
        for variant in setting.variants:
            accuracies = [[run.evaluation["layer_accuracies"][gamma] for gamma in run.gammas] for run in variant.runs]
            shares = 100 * np.asarray(accuracies).mean(axis=0)
            cells = [[number(share, 2) for share in row] for row in shares]
            rows = [(f"{gamma:g}", *row) for gamma, row in zip(setting.gammas, cells, strict=True)]
            title = f"Accuracy (%) of every layer that is read, {with_seeds(variant)}, {setting.title}"
            words = "By the number of the layer in the model; 0 is the embedded input."
            tables.append(Table(title, ("test gamma", *(f"layer {layer}" for layer in layers)), tuple(rows), words))
    return tables


def acceptance_table(settings: Sequence[Setting]) -> list[Table]:
    """The share of tokens at which a layer names what the last one does, a row a variant and strength of noise.

    The strengths are the lowest, that of training and the highest. Nothing for evaluations that do not say.
    """
    tables = []
    for setting in _accepting(settings):
        layers, places = setting.first.evaluation["layers"], (0, setting.training_index, len(setting.gammas) - 1)
        rows = [
            (with_seeds(variant), f"{setting.gammas[place]:g}", *(number(100 * share, 1) for share in shares))
            for variant in setting.variants
            for place in dict.fromkeys(places)
            for shares in [_acceptance(variant)[:, place].mean(axis=0)]
        ]
        header = ("method", "test gamma", *(f"layer {layer}" for layer in layers))
        words = "On the answers of the test split. A draft of d tokens stands as long as each of its tokens does."
        title = f"Acceptance (%): tokens that a layer names as the last one does, {setting.title}"
        tables.append(Table(title, header, tuple(rows), words))
    return tables


def acceptance_curve(settings: Sequence[Setting]) -> Figure | None:
    """Acceptance by layer at the lowest strength of noise, one panel a setting; None where no evaluation says."""
    shown = _accepting(settings)
    if not shown:
        return None
    figure, panels = setting_panels(shown, "layer that drafts (0: embedded input)", "acceptance", percent=True)
    for axes, setting in zip(panels, shown, strict=True):
        layers = np.asarray(setting.first.evaluation["layers"])
        axes.set_xticks(layers)
        for variant, style in styled(setting):
            draw_band(axes, layers, _acceptance(variant)[:, 0], variant, style, marked=True)
    shared_legend(figure, panels)
    return figure


def _accepting(settings: Sequence[Setting]) -> list[Setting]:
    def says(setting: Setting) -> bool:
        return all("acceptance" in run.evaluation for variant in setting.variants for run in variant.runs)

    return [setting for setting in settings if says(setting)]


def _acceptance(variant: Variant) -> Array:
    """(seeds, gammas, layers)."""
    return floats([[run.evaluation["acceptance"][gamma] for gamma in run.gammas] for run in variant.runs])
