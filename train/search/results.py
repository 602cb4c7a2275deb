"""Results of the trials of a search: read from their run folders, ranked, as tables and as parallel coordinates.

The picture is ours and not Optuna's, which has one axis for one objective and leaves out what failed: here trials that
are not feasible and those that failed are told apart from the others, and the excess over a bound has its own axis.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from ..config.errors import UserError
from ..config.run import Judgement, RunConfig
from ..constraints import INFEASIBLE
from ..metrics import read_metrics
from ..report.panels import COLOURS, GUIDE, LOG_RATIO, WIDTH
from ..system.files import read_object
from ..system.terminal import Table
from .space import NONE, Parameter, Values

INCHES_AN_AXIS = 1.7
# Okabe-Ito.
BEST, FEASIBLE, NOT_FEASIBLE, FAILED = "#E69F00", COLOURS["constrained"], "#8C8C8C", COLOURS["erm"]
# Percent of a bound: excesses up to the first are told apart as on a linear axis, larger ones as on a log axis; those
# of collapsed models may have any size, and are all drawn at the second.
LINEAR_EXCESS, LARGEST_EXCESS = 10.0, 1000.0
EXCESS_TICKS = (-100.0, -30.0, -10.0, 0.0, 10.0, 30.0, 100.0, 300.0, LARGEST_EXCESS)


class Outcome(NamedTuple):
    """A row of search.json: a trial that has ended, and its best checkpoint, of which one that failed has none."""

    trial: int
    values: Values
    feasible: bool | None
    worst_excess: float | None
    metric: float | None
    step: int | None
    state: str
    train_seconds: float
    message: str


def read_outcome(number: int, values: Values, folder: Path, config: RunConfig) -> Outcome:
    """Reads the outcome of a trial from the status and the validations of its run."""
    status, validation, step = read_object(folder / "status.json"), None, None
    if status["state"] != "failed":
        rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "validation"]
        if not rows:
            raise UserError(f"{folder} has lost its metrics.jsonl; restore it, or search into another --out")
        judged = [(config.judge(row), row["step"]) for row in rows]
        validation, step = max(judged, key=lambda pair: _checkpoint_score(pair[0], config))
    message = status["messages"][-1] if status["messages"] else ""
    figures = (None, None, None) if validation is None else (validation.feasible, validation.excess, validation.metric)
    return Outcome(number, dict(values), *figures, step, status["state"], status["train_seconds"], message)


def score(outcome: Outcome, tuning: RunConfig) -> float | None:
    """One number to rank by: feasible ones by the metric, all others below them by their excess over a bound."""
    if outcome.metric is None:
        return None
    return _score(Judgement(bool(outcome.feasible), outcome.worst_excess, outcome.metric), tuning)


def ranked(outcomes: Sequence[Outcome], tuning: RunConfig) -> list[Outcome]:
    """The best first; those that failed last; of equals the earlier one."""

    def place(outcome: Outcome) -> tuple[float, int]:
        worth = score(outcome, tuning)
        return np.inf if worth is None else -worth, outcome.trial

    return sorted(outcomes, key=place)


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """Ranked outcomes, a column a parameter; every figure unrounded."""
    file = io.StringIO()
    others = [name for name in Outcome._fields if name != "values"]
    writer = csv.DictWriter(file, [*outcomes[0].values, "rank", *others], extrasaction="ignore")
    writer.writeheader()
    for rank, one in enumerate(outcomes, start=1):
        values = {name: NONE if value is None else value for name, value in one.values.items()}
        writer.writerow({**values, "rank": rank, **one._asdict()})
    return file.getvalue()


def as_table(outcomes: Sequence[Outcome], tuning: RunConfig) -> Table:
    """Ranked outcomes as the terminal shows them."""
    bounded, names, rows = _bounded(outcomes), list(outcomes[0].values), []
    for rank, one in enumerate(outcomes, start=1):
        excess = "-" if one.worst_excess is None else f"{100 * one.worst_excess:+.3g}"
        constraints = ({None: "-", True: "yes", False: "no"}[one.feasible], excess) if bounded else ()
        values = (_text(one.values[name]) for name in names)
        metric = "-" if one.metric is None else f"{one.metric:.4g}"
        rows.append((str(rank), str(one.trial), *values, *constraints, metric, _text(one.step), one.state))
    return Table(
        title="Trials, ranked on the validation split",
        header=("rank", "trial", *names, *(("feasible", "worst excess %") if bounded else ()), "metric", "step", "run"),
        rows=tuple(rows),
        note=f"metric: {tuning.metric} of the best checkpoint, {_way(tuning)}."
        + (" Worst excess: over a bound, in percent of it; each trial by its own bounds." if bounded else ""),
    )


class Scale(NamedTuple):
    """One axis: its label, ``value -> place`` in [0, 1], and its ticks by their text."""

    label: str
    place: Callable[[Any], float]
    ticks: Mapping[str, float | None]


def parallel_coordinates(outcomes: Sequence[Outcome], parameters: Sequence[Parameter], tuning: RunConfig) -> Figure:
    """The figure of ranked outcomes, at least one; lines of trials that failed end where their results would begin."""
    scales = [*map(_parameter_scale, parameters), *_excess_scale(outcomes), *_metric_scale(outcomes, tuning)]
    figure = Figure(figsize=(max(WIDTH, INCHES_AN_AXIS * len(scales)), 5.0), layout="constrained")
    axes = figure.subplots()
    for look, group in _groups(outcomes):
        for one in reversed(group):
            coordinates = [one.values[parameter.name] for parameter in parameters]
            coordinates += [] if one.worst_excess is None else [100 * one.worst_excess]
            coordinates += [] if one.metric is None else [one.metric]
            heights = [scale.place(value) for scale, value in zip(scales, coordinates, strict=False)]
            places = list(map(float, range(len(heights))))
            if one.metric is None:  # a cross beyond the last value, where it does not hide that it belongs to one
                places, heights = [*places, places[-1] + 0.2], [*heights, heights[-1]]
            axes.plot(places, heights, **look, alpha=0.85, markevery=[-1], markersize=8, markeredgewidth=2)
            look["label"] = None  # which the first of a group has
    for index, scale in enumerate(scales):
        _draw_scale(axes, index, scale)
    axes.set_xticks(range(len(scales)), [scale.label for scale in scales], fontsize="small")
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.set(xlim=(-0.35, len(scales) - 0.85), ylim=(-0.03, 1.03))
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _groups(outcomes: Sequence[Outcome]) -> list[tuple[dict[str, Any], Sequence[Outcome]]]:
    """Looks of ranked trials, the worst first, so that better ones are drawn above."""
    bounded, met = _bounded(outcomes), bool(outcomes[0].feasible)
    failed = [one for one in outcomes if one.metric is None]
    best, *others = [one for one in outcomes if one.metric is not None] or [None]
    feasible, infeasible = ([one for one in others if one and one.feasible == wanted] for wanted in (True, False))
    verdict = f" ({'feasible' if met else 'not feasible'})" if bounded else ""
    groups = (
        (f"failed ({len(failed)})", FAILED, ":", 1.6, "x", failed),
        (f"{'' if met else 'other '}not feasible ({len(infeasible)})", NOT_FEASIBLE, "--", 1.1, "", infeasible),
        (f"other {'feasible' if bounded else 'trials'} ({len(feasible)})", FEASIBLE, "-", 1.3, "", feasible),
        (f"best, trial {outcomes[0].trial}{verdict}", BEST, "-" if met else "--", 3.0, "", [best] if best else []),
    )
    names = ("label", "color", "linestyle", "linewidth", "marker")
    return [(dict(zip(names, look, strict=True)), group) for *look, group in groups if group]


def _draw_scale(axes: Axes, index: int, scale: Scale) -> None:
    axes.axvline(index, color=GUIDE, linewidth=1.0)
    for text, value in scale.ticks.items():
        height = scale.place(value)
        axes.plot([index - 0.02, index], [height, height], color=GUIDE, linewidth=1.0)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
        axes.text(index - 0.03, height, text, ha="right", va="center", fontsize="small", bbox=box, zorder=5)


def _parameter_scale(parameter: Parameter) -> Scale:
    unit = f"\n({parameter.tunable.unit})" if parameter.tunable.unit else ""
    if parameter.choices:
        places = {value: index / (len(parameter.choices) - 1) for index, value in enumerate(parameter.choices)}
        ticks = {NONE if value is None else f"{value:g}": value for value in places}
        return Scale(f"{parameter.name}\nvalues tried{unit}", places.__getitem__, ticks)
    kind = "log scale" if parameter.tunable.log else "linear scale"
    return _continuous(f"{parameter.name}\n{kind}{unit}", parameter.low, parameter.high, log=parameter.tunable.log)


def _excess_scale(outcomes: Sequence[Outcome]) -> list[Scale]:
    values = [100 * one.worst_excess for one in outcomes if one.worst_excess is not None]
    if not values:
        return []
    if max(np.abs(values)) <= 10 * LINEAR_EXCESS:
        return [_continuous("worst excess\nlinear scale\n(% of its bound)", *_room(values), log=False)]
    ends = _room(np.arcsinh(np.minimum(values, LARGEST_EXCESS) / LINEAR_EXCESS))
    norm = AsinhNorm(LINEAR_EXCESS, *(LINEAR_EXCESS * np.sinh(ends)))
    ticks = {f"{value:g}": value for value in EXCESS_TICKS if 0.0 <= norm(value) <= 1.0}
    if max(values) > LARGEST_EXCESS:
        ticks[f"≥ {LARGEST_EXCESS:g}"] = ticks.pop(f"{LARGEST_EXCESS:g}")
    place = lambda value: float(norm(min(value, LARGEST_EXCESS)))  # noqa: E731
    return [Scale("worst excess\nlog scale beyond ±10\n(% of its bound)", place, ticks)]


def _metric_scale(outcomes: Sequence[Outcome], tuning: RunConfig) -> list[Scale]:
    values = [one.metric for one in outcomes if one.metric is not None]
    if not values:
        return []
    log = min(values) > 0.0 and max(values) > LOG_RATIO * min(values)
    low, high = np.exp(_room(np.log(values))) if log else _room(values)
    name = tuning.metric.replace(" (", "\n(")
    return [_continuous(f"{name}\n{'log' if log else 'linear'} scale, {_way(tuning)}", low, high, log=log)]


def _continuous(label: str, low: float, high: float, *, log: bool) -> Scale:
    """An axis from low to high; every tick is a plain number."""
    norm = LogNorm(low, high) if log else Normalize(low, high)
    locator = MaxNLocator(6, steps=[1, 2, 5, 10])
    if log and high > 3 * low:
        locator = LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,))
    ticks = [float(value) for value in locator.tick_values(low, high) if low <= value <= high]
    return Scale(label, lambda value: float(norm(value)), {f"{value:.6g}": value for value in ticks})


def _room(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Smallest and largest value with some room around them."""
    low, high = float(min(values)), float(max(values))
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + room


def _bounded(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.worst_excess is not None for outcome in outcomes)


def _way(tuning: RunConfig) -> str:
    return "larger is better" if tuning.larger_is_better else "smaller is better"


def _text(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _score(judgement: Judgement, tuning: RunConfig) -> float:
    if not judgement.feasible:
        return INFEASIBLE - (judgement.excess or 0.0)
    return judgement.metric if tuning.larger_is_better else -judgement.metric


def _checkpoint_score(judgement: Judgement, tuning: RunConfig) -> float:
    """That of the run itself, which under resilience is of no use between trials: these may differ in its cost."""
    if judgement.feasible or judgement.relaxed is None:
        return _score(judgement, tuning)
    return INFEASIBLE - judgement.relaxed
