"""Parallel coordinates: every trial of a search a line through its values, its excess over a bound and its metric."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from train.report.panels import COLOURS, GUIDE, LOG_RATIO, WIDTH
from train.search.outcomes import Outcome
from train.search.space import NONE, Parameter
from train.tuning import Tuning

__all__ = ["parallel_coordinates"]

INCHES_AN_AXIS = 1.7
# Okabe-Ito.
BEST, FEASIBLE, INFEASIBLE, FAILED = "#E69F00", COLOURS["constrained"], "#8C8C8C", COLOURS["erm"]
# Percent of a bound: excesses up to the first are told apart as on a linear axis, larger ones as on a log axis; those
# of collapsed models may have any size, and are all drawn at the second.
LINEAR_EXCESS, LARGEST_EXCESS = 10.0, 1000.0
EXCESS_TICKS = (-100.0, -30.0, -10.0, 0.0, 10.0, 30.0, 100.0, 300.0, LARGEST_EXCESS)


class Scale(NamedTuple):
    """One axis: its label, ``value -> place`` in [0, 1], and its ticks as (place, text)."""

    label: str
    place: Callable[[float | None], float]
    ticks: list[tuple[float, str]]


class Style(NamedTuple):
    """How a group of trials is drawn."""

    label: str
    colour: str
    line: str
    width: float
    end: str = ""


def parallel_coordinates(outcomes: Sequence[Outcome], parameters: Sequence[Parameter], tuning: Tuning) -> Figure:
    """The figure of ranked outcomes, at least one; lines of trials that failed end where their results would begin."""
    scales = [_parameter_scale(parameter) for parameter in parameters]
    results = [*_excess_scale(outcomes), *_metric_scale(outcomes, tuning)]
    count = len(scales) + len(results)
    figure = Figure(figsize=(max(WIDTH, INCHES_AN_AXIS * count), 5.0), layout="constrained")
    axes = figure.subplots()
    for style, group in _groups(outcomes):
        for index, outcome in enumerate(reversed(group)):
            _draw_trial(axes, _heights(outcome, parameters, scales, results), style, first=index == 0)
    for index, scale in enumerate((*scales, *results)):
        _draw_scale(axes, index, scale)
    _tidy(axes, [scale.label for scale in (*scales, *results)])
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _groups(outcomes: Sequence[Outcome]) -> list[tuple[Style, list[Outcome]]]:
    """Worst first, so that better ones are drawn above; outcomes are ranked, so the best is the first."""
    bounded = any(one.judgement and one.judgement.excess is not None for one in outcomes)
    judged = [one for one in outcomes if one.judgement]
    best, others = judged[:1], judged[1:]
    feasible = [one for one in others if one.judgement and one.judgement.feasible]
    infeasible = others[len(feasible) :]
    failed = outcomes[len(judged) :]
    met = bool(best and best[0].judgement and best[0].judgement.feasible)
    said = f" ({'feasible' if met else 'not feasible'})" if bounded else ""
    less = "other " if best and not met else ""
    groups = [
        (Style(f"failed ({len(failed)})", FAILED, ":", 1.6, "x"), failed),
        (Style(f"{less}not feasible ({len(infeasible)})", INFEASIBLE, "--", 1.1), infeasible),
        (Style(f"other {'feasible' if bounded else 'trials'} ({len(feasible)})", FEASIBLE, "-", 1.3), feasible),
        (Style(f"best, trial {outcomes[0].number}{said}", BEST, "-" if met else "--", 3.0), best),
    ]
    return [(style, list(group)) for style, group in groups if group]


def _draw_trial(axes: Axes, heights: list[float], style: Style, *, first: bool) -> None:
    places = list(map(float, range(len(heights))))
    if style.end:  # beyond the last value, where it does not hide that it belongs to one
        places, heights = [*places, places[-1] + 0.2], [*heights, heights[-1]]
    label = style.label if first else None
    axes.plot(
        places, heights, style.line, color=style.colour, linewidth=style.width, alpha=0.85, label=label,
        marker=style.end or None, markevery=[len(places) - 1], markersize=8, markeredgewidth=2,
    )  # fmt: skip


def _heights(
    outcome: Outcome, parameters: Sequence[Parameter], scales: Sequence[Scale], results: Sequence[Scale]
) -> list[float]:
    heights = [scale.place(outcome.values[one.name]) for scale, one in zip(scales, parameters, strict=True)]
    if outcome.judgement is not None:
        found = [outcome.judgement.metric]
        if len(results) == 2:
            found = [100 * (outcome.judgement.excess or 0.0), *found]
        heights += [scale.place(value) for scale, value in zip(results, found, strict=True)]
    return heights


def _parameter_scale(parameter: Parameter) -> Scale:
    unit = f"\n({parameter.tunable.unit})" if parameter.tunable.unit else ""
    if parameter.choices:
        places = {value: index / (len(parameter.choices) - 1) for index, value in enumerate(parameter.choices)}
        ticks = [(place, NONE if value is None else f"{value:g}") for value, place in places.items()]
        return Scale(f"{parameter.name}\nvalues tried{unit}", places.__getitem__, ticks)
    kind = "log scale" if parameter.tunable.log else "linear scale"
    return _continuous(f"{parameter.name}\n{kind}{unit}", parameter.low, parameter.high, log=parameter.tunable.log)


def _excess_scale(outcomes: Sequence[Outcome]) -> list[Scale]:
    values = [100 * one.judgement.excess for one in outcomes if one.judgement and one.judgement.excess is not None]
    if not values:
        return []
    if max(np.abs(values)) <= 10 * LINEAR_EXCESS:
        return [_continuous("worst excess\nlinear scale\n(% of its bound)", *_room(values), log=False)]
    low, high = _room([_squeezed(value) for value in values])

    def place(value: float | None) -> float:
        assert value is not None
        return (_squeezed(value) - low) / (high - low)

    ticks = [(place(value), f"{value:g}") for value in EXCESS_TICKS if 0.0 <= place(value) <= 1.0]
    if max(values) > LARGEST_EXCESS:
        ticks[-1] = (ticks[-1][0], f"≥ {LARGEST_EXCESS:g}")
    return [Scale("worst excess\nlog scale beyond ±10\n(% of its bound)", place, ticks)]


def _squeezed(excess: float) -> float:
    return float(np.arcsinh(min(excess, LARGEST_EXCESS) / LINEAR_EXCESS))


def _metric_scale(outcomes: Sequence[Outcome], tuning: Tuning) -> list[Scale]:
    values = [one.judgement.metric for one in outcomes if one.judgement]
    if not values:
        return []
    way = "larger is better" if tuning.larger_is_better else "smaller is better"
    log = min(values) > 0.0 and max(values) > LOG_RATIO * min(values)
    low, high = np.exp(_room(np.log(values))) if log else _room(values)
    label = tuning.metric.replace(" (", "\n(")
    label = f"{label}\n{'log' if log else 'linear'} scale, {way}"
    return [_continuous(label, float(low), float(high), log=log)]


def _continuous(label: str, low: float, high: float, *, log: bool) -> Scale:
    """An axis from low to high; every tick is a plain number."""
    shaped = np.log10 if log else float

    def place(value: float | None) -> float:
        assert value is not None
        return float((shaped(value) - shaped(low)) / (shaped(high) - shaped(low)))

    wide = log and high > 3 * low
    locator = (
        LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,))
        if wide
        else MaxNLocator(6, steps=[1, 2, 5, 10])
    )
    inside = [value for value in locator.tick_values(low, high) if low <= value <= high]
    return Scale(label, place, [(place(float(value)), f"{value:.6g}") for value in inside])


def _room(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Smallest and largest value with some room around them."""
    low, high = float(min(values)), float(max(values))
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + room


def _draw_scale(axes: Axes, index: int, scale: Scale) -> None:
    axes.axvline(index, color=GUIDE, linewidth=1.0)
    for height, text in scale.ticks:
        axes.plot([index - 0.02, index], [height, height], color=GUIDE, linewidth=1.0)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
        axes.text(index - 0.03, height, text, ha="right", va="center", fontsize="small", bbox=box, zorder=5)


def _tidy(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.set_xlim(-0.35, len(labels) - 0.85)
    axes.set_ylim(-0.03, 1.03)
