"""What came of the trials of a search: read from their run folders, ranked, and written as tables."""

import csv
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.config import to_json
from train.errors import UserError
from train.metrics import read_metrics
from train.recipe import INFEASIBLE
from train.report.files import flat, read_object
from train.report.tables import Table
from train.search.space import NONE, Values
from train.search.study import Trial
from train.tuning import Judgement, Tuning

__all__ = ["Outcome", "as_csv", "as_options", "as_table", "ranked", "read_outcome", "score", "to_json_rows"]


class Outcome(NamedTuple):
    """One trial that has ended.

    Attributes:
      number: of the trial; run folders are named after it.
      values: what it tried.
      state: of its run: finished, stopped, failed.
      judgement: of its best checkpoint; None if it failed.
      step: of that checkpoint.
      seconds: of training.
      message: the last thing its run complained about, or "".
    """

    number: int
    values: Values
    state: str
    judgement: Judgement | None
    step: int | None
    seconds: float
    message: str


def read_outcome(trial: Trial, folder: Path, config: Any, tuning: Tuning) -> Outcome:
    """What came of a trial, from the status and the validations of its run.

    Raises:
      UserError: if they are missing or damaged.
    """
    status = read_object(folder / "status.json")
    judged = [
        (tuning.judge(config, row), row["step"])
        for row in read_metrics(folder / "metrics.jsonl")
        if row["kind"] == "validation"
    ]
    state, messages = status["state"], status["messages"]
    judgement = step = None
    if state != "failed":
        if not judged:
            raise UserError(f"{folder} has lost its metrics.jsonl; restore it, or search into another --out")
        judgement, step = max(judged, key=lambda pair: score(pair[0], tuning))
    return Outcome(
        trial.number, trial.values, state, judgement, step, status["train_seconds"], messages[-1] if messages else ""
    )


def score(judgement: Judgement, tuning: Tuning) -> float:
    """One number to rank by: feasible ones by the metric, all others below them by their excess over a bound."""
    if not judgement.feasible:
        return INFEASIBLE - (judgement.excess or 0.0)
    return judgement.metric if tuning.larger_is_better else -judgement.metric


def ranked(outcomes: Sequence[Outcome], tuning: Tuning) -> list[Outcome]:
    """The best first; those that failed last; of equals the earlier one."""

    def place(outcome: Outcome) -> tuple[bool, float, int]:
        worth = 0.0 if outcome.judgement is None else score(outcome.judgement, tuning)
        return outcome.judgement is None, -worth, outcome.number

    return sorted(outcomes, key=place)


def as_table(outcomes: Sequence[Outcome], tuning: Tuning) -> Table:
    """Ranked outcomes as the terminal shows them."""
    bounded = any(outcome.judgement and outcome.judgement.excess is not None for outcome in outcomes)
    names = list(outcomes[0].values)
    rows = []
    for rank, one in enumerate(outcomes, start=1):
        said = one.judgement
        constraints = (_feasible(one), "-" if said is None or said.excess is None else f"{100 * said.excess:+.3g}")
        rows.append(
            (str(rank), str(one.number), *(_text(one.values[name]) for name in names))
            + (constraints if bounded else ())
            + ("-" if said is None else f"{said.metric:.4g}", _text(one.step), one.state)
        )
    return Table(
        title="Trials, ranked on the validation split",
        header=("rank", "trial", *names, *(("feasible", "worst excess %") if bounded else ()), "metric", "step", "run"),
        rows=tuple(rows),
        note=f"metric: {tuning.metric} of the best checkpoint, {_way(tuning)}."
        + (" Worst excess: over a bound, in percent of it; each trial by its own bounds." if bounded else ""),
    )


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """Ranked outcomes, every figure unrounded."""
    file = io.StringIO()
    rows = to_json_rows(outcomes)
    writer = csv.DictWriter(file, list(outcomes[0].values) + [name for name in rows[0] if name != "values"])
    writer.writeheader()
    for row in rows:
        values = {name: NONE if value is None else value for name, value in row.pop("values").items()}
        writer.writerow(values | row)
    return file.getvalue()


def to_json_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Ranked outcomes as search.json has them."""
    return [
        {
            "rank": rank,
            "trial": one.number,
            "values": dict(one.values),
            "feasible": one.judgement.feasible if one.judgement else None,
            "worst_excess": one.judgement.excess if one.judgement else None,
            "metric": one.judgement.metric if one.judgement else None,
            "step": one.step,
            "state": one.state,
            "train_seconds": one.seconds,
            "message": one.message,
        }
        for rank, one in enumerate(outcomes, start=1)
    ]


def as_options(config: Any, default: Any) -> str:
    """The options of the command line that make a configuration of the experiment's own."""
    usual, parts = flat(to_json(default)), []
    for name, value in flat(to_json(config)).items():
        group, _, field = name.replace("_", "-").rpartition(".")
        prefix = f"--{group}." if group else "--"
        if name == "out" or value == usual.get(name):
            continue
        if isinstance(value, bool):
            parts.append(f"{prefix}{field}" if value else f"{prefix}no-{field}")
        else:
            values = value if isinstance(value, list) else [value]
            parts.append(" ".join([f"{prefix}{field}", *(shlex.quote(str(one)) for one in values)]))
    return " ".join(parts)


def _way(tuning: Tuning) -> str:
    return "larger is better" if tuning.larger_is_better else "smaller is better"


def _feasible(outcome: Outcome) -> str:
    return "-" if outcome.judgement is None else "yes" if outcome.judgement.feasible else "no"


def _text(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
