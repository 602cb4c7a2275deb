"""Accuracy in distribution against accuracy out of it: paired differences over seeds, and the frontier of settings."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from ..system.terminal import Table
from .groups import METHOD_NAMES, Setting, Variant
from .panels import COLOURS, MARKERS, setting_panels, shared_legend
from .record import Array
from .tables import number

LEVEL = 0.95  # of the intervals
FEWEST = 3  # variants of a setting that make a frontier


def paired_table(settings: Sequence[Setting]) -> list[Table]:
    """Returns the gain or loss of every constrained variant, paired by seed, at the training noise and beyond."""
    rows = []
    for setting in settings:
        for method in ("erm", "deep_supervision"):
            for constrained, other in setting.duels(method):
                ratios = _ratios(constrained, other)
                if len(ratios):
                    titles = setting.title, constrained.title, other.title, str(len(ratios))
                    rows.append((*titles, *(_interval(column) for column in _columns(setting, ratios))))
    if not rows:
        return []
    note = (
        f"Differences of {settings[0].score.title} in percent of the other's, of runs with the same seed; below 0 the "
        f"constrained model is better. Brackets: {LEVEL:.0%} interval of the mean over seeds (Student's t). Stronger "
        "noise: the mean over all test gammas above that of training."
    )
    header = ("setting", "constrained", "against", "seeds", "training gamma %", "stronger noise %", "largest gamma %")
    return [Table("Constraints against the same runs without", header, tuple(rows), note)]


def frontier(settings: Sequence[Setting]) -> Figure | None:
    """The score at the largest test gamma against that at the training gamma, a point a variant; None for few."""
    shown = [setting for setting in settings if len(setting.variants) >= FEWEST]
    if not shown:
        return None
    figure, panels = setting_panels(
        shown, *(f"{settings[0].score.title} at the {gamma} gamma" for gamma in ("training", "largest test"))
    )
    for axes, setting in zip(panels, shown, strict=True):
        for variant in setting.variants:
            x, y = variant.scores()[:, setting.training_index], variant.scores()[:, -1]
            axes.errorbar(
                x.mean(),
                y.mean(),
                xerr=_reach(x),
                yerr=_reach(y),
                color=COLOURS[variant.method],
                marker=MARKERS[variant.method],
                linestyle="",
                markerfacecolor=COLOURS[variant.method] if variant.feasible else "white",
                label=METHOD_NAMES[variant.method],
            )
    shared_legend(figure, panels)
    return figure


def _ratios(constrained: Variant, other: Variant) -> Array:
    """Relative differences of scores, (seeds, gammas), of the seeds that both have."""
    mine, theirs = (
        {run.evaluation["seed"]: run.values(run.score.name) for run in one.runs} for one in (constrained, other)
    )
    shared = sorted(set(mine) & set(theirs))
    return np.array([mine[seed] / theirs[seed] - 1.0 for seed in shared])


def _columns(setting: Setting, ratios: Array) -> list[Array]:
    """Returns three columns over seeds: at the training gamma, the mean over larger ones, and at the largest."""
    stronger = setting.gammas > setting.gammas[setting.training_index]
    beyond = ratios[:, stronger].mean(axis=1) if stronger.any() else np.full(len(ratios), np.nan)
    return [100 * column for column in (ratios[:, setting.training_index], beyond, ratios[:, -1])]


def _interval(values: Array) -> str:
    """The mean, and where there are several values the interval of it."""
    mean = number(values.mean(), 1, sign=True)
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * stats.sem(values)
    return f"{mean} [{number(values.mean() - reach, 1, sign=True)}, {number(values.mean() + reach, 1, sign=True)}]"


def _reach(values: Array) -> Array:
    return np.array([[values.mean() - values.min()], [values.max() - values.mean()]])
