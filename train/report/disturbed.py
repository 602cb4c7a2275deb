"""What scores come to with noise on layers and with layers lost, as a table."""

from typing import Any

import numpy as np

from ..system.terminal import Table
from .groups import Setting
from .read import CODES, Score
from .tables import capital, ranged, with_seeds

# What stands beside networks with disturbed layers: its name, and the prefix of its figures.
DISTURBED = {CODES: (("ISTA", "ista"),)}


def disturbed_table(setting: Setting) -> list[Table]:
    """The score with noise on layers and with layers lost, as far as all runs have it; lost: mean and worst layer."""
    score, columns = setting.score, dict[str, list[str]]()
    named = [(with_seeds(one), "", [run.evaluation for run in one.runs]) for one in setting.variants]
    first = [setting.first.evaluation]
    rows: list[str] = []
    for title, prefix, evaluations in (*((name, f"{key}_", first) for name, key in DISTURBED.get(score, ())), *named):
        cells = [_disturbed(one, prefix, score) for one in evaluations]
        rows = rows or list(cells[0])
        if any(list(cell) != rows for cell in cells):
            return []
        columns[title] = [ranged(np.array([cell[row] for cell in cells]), score.digits) for row in rows]
    title = f"{capital(score.title)} with disturbed layers, {setting.title}"
    table = Table(title, ("layers", *columns), tuple(zip(rows, *columns.values(), strict=True)))
    return [table] if rows else []


def _disturbed(evaluation: dict[str, Any], prefix: str, score: Score) -> dict[str, float]:
    """The figures of disturbed layers that an evaluation holds, by what was done to the layers."""
    noisy = evaluation.get(f"{prefix}layer_noise_{score.name}", {})
    lost = list(evaluation.get(f"{prefix}lost_layer_{score.name}", {}).values())
    found = {f"noise {level}": float(value) for level, value in noisy.items()}
    return found | ({"one lost, mean": float(np.mean(lost)), "one lost, worst": max(lost)} if lost else {})
