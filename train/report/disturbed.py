"""Scores with disturbed layers (noise on them, or one lost) and disturbed inputs, as a table."""

from typing import Any

import numpy as np

from ..system.terminal import Table
from .groups import Setting
from .read import ACCURACY, CODES, RMSE, Score
from .tables import capital, ranged, with_seeds

# What stands beside disturbed networks: its name, and the prefix of its figures.
DISTURBED = {CODES: (("ISTA", "ista"),), RMSE: (("input", "input"),)}
NOTE = "All at the noise of training on the input; disturbed inputs have that besides."


def disturbed_table(setting: Setting) -> list[Table]:
    """The score by disturbance, with layers lost the mean and the worst layer; "-" where a run was not tried so."""
    score = setting.score
    named = [(with_seeds(one), "", [run.evaluation for run in one.runs]) for one in setting.variants]
    first = [setting.first.evaluation]
    cells = {
        title: [_disturbed(one, prefix, score) for one in evaluations]
        for title, prefix, evaluations in (
            *(
                (name, f"{key}_", first)
                for name, key in DISTURBED.get(score, ())
                if _disturbed(first[0], f"{key}_", score)
            ),
            *named,
        )
    }
    rows = list(dict.fromkeys(row for series in cells.values() for one in series for row in one))
    columns = {
        title: [
            ranged(np.array([one[row] for one in series]), score.digits) if all(row in one for one in series) else "-"
            for row in rows
        ]
        for title, series in cells.items()
    }
    title = f"{capital(score.title)} with disturbed layers or inputs, {setting.title}"
    table = Table(title, ("disturbed by", *columns), tuple(zip(rows, *columns.values(), strict=True)), NOTE)
    return [table] if rows else []


def _disturbed(evaluation: dict[str, Any], prefix: str, score: Score) -> dict[str, float]:
    """The disturbed figures that an evaluation holds, by what was done to layers or inputs."""
    noisy = evaluation.get(f"{prefix}layer_noise_{score.name}", {})
    lost = list(evaluation.get(f"{prefix}lost_layer_{score.name}", {}).values())
    figures = {f"layer noise {level}": float(value) for level, value in noisy.items()}
    figures |= {"one layer lost, mean": float(np.mean(lost)), "one layer lost, worst": max(lost)} if lost else {}
    scale = 100.0 if score is ACCURACY else 1.0
    of_input = evaluation.get(f"{prefix}disturbed_{score.name}", {})
    return figures | {label: scale * float(value) for label, value in of_input.items()}
