"""Figures of the cells of a sweep, read from their run folders, and the number that ranks them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..config.run import Judgement, RunConfig
from ..constraints import INFEASIBLE
from ..metrics import read_metrics
from ..runs import read_status
from ..system.files import read_object
from .axes import Cell, Sweep

# The main figure of an evaluation, the first of these keys that evaluation.json has, and its name.
SCORES = {
    "rmse": "RMSE",
    "relative_error": "relative error",
    "intersection_over_union": "mIoU",
    "accuracy": "accuracy",
    "loss": "loss",
}


class Result(NamedTuple):
    """The figures of a cell.

    Attributes:
      cell: the cell.
      state: of its run, such as finished or failed; "" without a run.
      step: of the best checkpoint; None if there is none.
      validation: the judgement of that checkpoint on the validation split.
      test: figures of the test split by name: the score, or over noise its mean over the test gammas, that at the
        gamma of training, and the mean over the gammas above it.
    """

    cell: Cell
    state: str
    step: int | None
    validation: Judgement | None
    test: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns the figures by name, unrounded."""
        feasible, excess, metric, _ = self.validation or (None,) * 4
        figures = {"feasible": feasible, "excess": excess, "validation": metric, **self.test}
        return {"cell": self.cell.name, **self.cell.values, "state": self.state, "step": self.step, **figures}


def read_result(sweep: Sweep, cell: Cell) -> Result:
    """Reads the figures of a cell; its best checkpoint is the one that its validations rank first."""
    folder, state = sweep.folder / cell.name, read_status(sweep.folder / cell.name).get("state", "")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "validation"]
    judged = [(cell.config.judge(row), row["step"]) for row in rows] if state != "failed" else []
    validation, step = max(judged, key=lambda pair: score(pair[0], cell.config, within=True), default=(None, None))
    path = folder / "evaluation.json"
    return Result(cell, state, step, validation, _test_figures(read_object(path)) if path.exists() else {})


def score(judgement: Judgement | None, config: RunConfig, *, within: bool = False) -> float:
    """Returns the number that ranks models: feasible ones by the metric, all others below by their excess.

    Args:
      judgement: of a model; None for a run that failed, which is last.
      config: of its run.
      within: True to rank the checkpoints of one run, which under resilience have their cost in common.
    """
    if judgement is None:
        return -np.inf
    if not judgement.feasible:
        relaxed = judgement.relaxed if within else None
        return INFEASIBLE - ((judgement.excess or 0.0) if relaxed is None else relaxed)
    return judgement.metric if config.larger_is_better else -judgement.metric


def _test_figures(evaluation: Mapping[str, Any]) -> dict[str, float]:
    key = next((key for key in SCORES if key in evaluation), None)
    if key is None:
        return {}
    name, value = SCORES[key], evaluation[key]
    if not isinstance(value, dict):
        return {name: np.nan if value is None else value}
    by_gamma = {float(gamma): np.nan if figure is None else figure for gamma, figure in value.items()}
    training, tested = float(evaluation["train_gamma"]), list(map(float, evaluation["test_gammas"]))
    above = [gamma for gamma in tested if gamma > training]
    parts = {name: tested, f"{name} at training": [training], f"{name} above": above}
    return {part: float(np.mean([by_gamma[gamma] for gamma in gammas])) for part, gammas in parts.items() if gammas}
