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
    """The score with noise on layers and with layers lost (mean and worst layer); "-" where a run was not tried so."""
    score = setting.score
    named = [(with_seeds(one), "", [run.evaluation for run in one.runs]) for one in setting.variants]
    first = [setting.first.evaluation]
    cells = {
        title: [_disturbed(one, prefix, score) for one in evaluations]
        for title, prefix, evaluations in (
            *((name, f"{key}_", first) for name, key in DISTURBED.get(score, ())),
            *named,
        )
    }
    rows = list(dict.fromkeys(row for found in cells.values() for one in found for row in one))
    columns = {
        title: [
            ranged(np.array([one[row] for one in found]), score.digits) if all(row in one for one in found) else "-"
            for row in rows
        ]
        for title, found in cells.items()
    }
    title = f"{capital(score.title)} with disturbed layers, {setting.title}"
    table = Table(title, ("layers", *columns), tuple(zip(rows, *columns.values(), strict=True)))
    return [table] if rows else []


def _disturbed(evaluation: dict[str, Any], prefix: str, score: Score) -> dict[str, float]:
    """The figures of disturbed layers that an evaluation holds, by what was done to the layers."""
    noisy = evaluation.get(f"{prefix}layer_noise_{score.name}", {})
    lost = list(evaluation.get(f"{prefix}lost_layer_{score.name}", {}).values())
    found = {f"noise {level}": float(value) for level, value in noisy.items()}
    return found | ({"one lost, mean": float(np.mean(lost)), "one lost, worst": max(lost)} if lost else {})
