"""What leaving a language model at one of its layers gives."""

from collections.abc import Sequence

import numpy as np

from ..system.terminal import Table
from .groups import Setting
from .tables import number, with_seeds


def exit_layers_table(settings: Sequence[Setting]) -> list[Table]:
    """The share of right tokens where a model is left at each layer that is read, by test gamma, a table a variant."""
    tables = []
    for setting in settings:
        layers = setting.first.evaluation["layers"]
        for variant in setting.variants:
            found = [[run.evaluation["layer_accuracies"][gamma] for gamma in run.gammas] for run in variant.runs]
            shares = 100 * np.asarray(found).mean(axis=0)
            cells = [[number(share, 2) for share in row] for row in shares]
            rows = [(f"{gamma:g}", *row) for gamma, row in zip(setting.gammas, cells, strict=True)]
            title = f"Accuracy (%) of every layer that is read, {with_seeds(variant)}, {setting.title}"
            words = "By the number of the layer in the model; 0 is the embedded input."
            tables.append(Table(title, ("test gamma", *(f"layer {layer}" for layer in layers)), tuple(rows), words))
    return tables
