"""Results of the cells: rows of the table, whose seeds are one figure, and how often constraints are better."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..report.groups import METHOD_NAMES, Variant
from ..report.read import ACCURACY, METHODS, Run, Score, read_runs
from ..report.record import Array
from ..report.tables import capital, number, ranged
from ..system.terminal import Table
from .axes import Cell, Plan
from .cells import State, place_of

APART = ("method", "seed")  # axes that are no rows: columns, and what is averaged over
DAGGER = "†"


class Line(NamedTuple):
    """A row of the table: runs that differ in the method and the seed alone, by method."""

    experiment: str
    values: dict[str, str]
    variants: dict[str, Variant]

    @property
    def title(self) -> str:
        """Its experiment and values."""
        return ", ".join([self.experiment, *(f"{name} {text}" for name, text in self.values.items())])


class Figures(NamedTuple):
    """Means of a score over test gammas: those asked for, that of training, and those above it; NaN where none is."""

    mean: Array
    training: Array
    stronger: Array


class Wins(NamedTuple):
    """The number of rows in which constraints are better, and the median share of the plain score that they gain."""

    better: int
    rows: int
    median: float

    @property
    def words(self) -> str:
        """Describes the wins, as in "4 of 6 rows, by 3.1% in the median"."""
        if not self.rows:
            return "0 of 0 rows"
        way = "by" if self.median >= 0.0 else "worse by"
        return f"{self.better} of {self.rows} rows, {way} {abs(self.median):.1%} in the median"


def read_lines(plan: Plan, states: Mapping[str, State]) -> list[Line]:
    """The rows of the table, in the order of its cells."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Run]] = {}
    for cell in plan.cells:
        kept = tuple((name, text) for name, text in cell.values.items() if name not in APART)
        runs = groups.setdefault((cell.experiment, kept), [])
        if states[cell.name].evaluated:
            runs += read_runs([place_of(plan.folder, cell)])
    lines = []
    for (experiment, values), runs in groups.items():
        by_method = {method: tuple(run for run in runs if run.method == method) for method in METHODS}
        variants = {method: Variant(method, "", members) for method, members in by_method.items() if members}
        lines.append(Line(experiment, dict(values), variants))
    return lines


def figures(runs: Sequence[Run]) -> Figures:
    """The means of every run, shape (runs,) each; the level of training counts among the others where it was asked."""
    first = runs[0]
    gammas, training = np.array(list(map(float, first.gammas))), float(first.values("train_gamma"))
    scores = np.stack([run.values(run.score.name) for run in runs])
    requested = np.isin(gammas, first.evaluation["test_gammas"])

    def mean(chosen: NDArray[np.bool_]) -> Array:
        return scores[:, chosen].mean(axis=1) if chosen.any() else np.full(len(runs), np.nan)

    return Figures(mean(requested), mean(gammas == training), mean(requested & (gammas > training)))


def differences(line: Line) -> tuple[Figures, Figures] | None:
    """Constrained less plain, and the share of the plain score that constraints gain, by the seeds that both have."""
    constrained, plain = (line.variants.get(method) for method in ("constrained", "erm"))
    if constrained is None or plain is None:
        return None
    mine, theirs = ({run.evaluation["seed"]: run for run in one.runs} for one in (constrained, plain))
    if not (shared := [seed for seed in mine if seed in theirs]):
        return None
    pairs = list(zip(*(figures([runs[seed] for seed in shared]) for runs in (mine, theirs)), strict=True))
    sign = 1.0 if constrained.runs[0].score is ACCURACY else -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return Figures(*(one - two for one, two in pairs)), Figures(*(sign * (one / two - 1.0) for one, two in pairs))


def wins(lines: Sequence[Line]) -> dict[str, Wins]:
    """For every mean of `Figures`, how many rows constraints win: by the mean over the seeds that both methods have."""
    compared = [both[1] for line in lines if (both := differences(line))]
    result = {}
    for name in Figures._fields:
        gains = np.array([getattr(one, name).mean() for one in compared])
        gains = gains[~np.isnan(gains)]  # rows without such a gamma; an infinite error counts as a loss
        median = float(np.median(gains)) if len(gains) else float("nan")
        result[name] = Wins(int(np.sum(gains > 0.0)), len(gains), median)
    return result


def wins_words(lines: Sequence[Line]) -> str:
    """The count in a sentence."""
    tallies = wins(lines)
    if not tallies["mean"].rows:
        return "No row has runs of both methods with one seed, plain and constrained."
    return (
        f"Constrained better out of distribution (test gamma above training) in {tallies['stronger'].words}; at the "
        f"training noise in {tallies['training'].words}."
    )


def over_bounds(run: Run) -> list[str]:
    """The layers of a run that exceed their bounds by more than the tolerance, and by which share of the bound."""
    (margins,) = Variant(run.method, "", (run,)).margins()
    tolerance = float(run.values("tolerance"))
    return [f"layer {layer}: {-margin:.1%}" for layer, margin in enumerate(margins) if -margin > tolerance]


def main_table(plan: Plan, lines: Sequence[Line]) -> Table:
    """Rows by experiment and axes, a column a method, and beside them what constraints change, paired by seed."""
    shown = [line for line in lines if line.variants]
    methods = [method for method in METHODS if any(method in line.variants for line in shown)]
    score = shown[0].variants[next(iter(shown[0].variants))].runs[0].score
    axes = list(shown[0].values)
    paired = ("difference", "stronger noise %") if {"erm", "constrained"} <= set(methods) else ()
    header = ("experiment", *axes, "seeds", *(METHOD_NAMES[method] for method in methods), *paired)
    rows = tuple(
        (line.experiment, *line.values.values(), _seeds(line), *(_score(line, method) for method in methods))
        + (_paired(line, score) if paired else ())
        for line in shown
    )
    marks = any(DAGGER in text for row in rows for text in row)
    note = (
        "Of several seeds mean [smallest, largest]."
        + (f" {DAGGER} not feasible on held-out data, of how many seeds; table.csv says at which layers." * marks)
        + (
            " Difference: constrained less plain, paired by seed. Stronger noise: what constraints gain of the plain "
            "score at test gammas above that of training, in percent; below 0 they lose."
            if paired
            else ""
        )
    )
    return Table(f"{capital(score.title)} of {plan.name}, mean over the test gammas", header, rows, note)


def floor_table(lines: Sequence[Line]) -> Table | None:
    """Returns scores without a network, a row for each training noise and data; None where no run has any."""
    means, title = list[tuple[Run, dict[str, float]]](), ""
    for run in (next(iter(line.variants.values())).runs[0] for line in lines if line.variants):
        requested = np.isin(np.array(list(map(float, run.gammas))), run.evaluation["test_gammas"])
        without = {"noisy input": run.values(run.score.baseline)} if run.score.baseline else {}
        means.append((run, {name: float(scores[requested].mean()) for name, scores in (without | run.floors).items()}))
        title = capital(run.score.title)
    names = list(dict.fromkeys(name for _, mean in means for name in mean))
    if not names:
        return None
    rows: dict[tuple[str, ...], list[str]] = {}
    for run, mean in means:
        numbers = (number(mean.get(name, np.nan), run.score.digits) for name in names)
        of = rows.setdefault((f"{float(run.values('train_gamma')):g}", *numbers), [])
        of += [run.evaluation["experiment"]] if run.evaluation["experiment"] not in of else []
    return Table(
        "Without a network",
        ("training gamma", *names, "experiments"),
        tuple((*row, ", ".join(of)) for row, of in rows.items()),
        f"{title}, mean over the test gammas.",
    )


def row_of(plan: Plan, cell: Cell, state: State) -> dict[str, Any]:
    """A cell as table.csv and table.json have it: every figure unrounded."""
    row: dict[str, Any] = {"cell": cell.name, "experiment": cell.experiment, **cell.values}
    row |= {"state": state.kind, "message": state.message}
    if not state.evaluated:
        return row
    (run,) = read_runs([place_of(plan.folder, cell)])
    name, evaluation = run.score.name, run.evaluation
    means = {f"{name}_{key}": float(value[0]) for key, value in figures([run])._asdict().items()}
    row |= {"method": run.method, "seed": evaluation["seed"], "feasible": evaluation["feasible"], **means}
    row |= {"over_bounds": "; ".join(over_bounds(run))}
    row |= {f"{name}@{gamma}": float(value) for gamma, value in zip(run.gammas, run.values(name), strict=True)}
    return row | {"best_step": evaluation["best_step"], "train_seconds": evaluation["train_seconds"]}


def _seeds(line: Line) -> str:
    counts = [str(len(variant.runs)) for variant in line.variants.values()]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def _score(line: Line, method: str) -> str:
    """The mean of a method, marked where it enforces bounds and some seed is over one."""
    if (variant := line.variants.get(method)) is None:
        return "-"
    score, runs = variant.runs[0].score, len(variant.runs)
    values = figures(variant.runs).mean * (100.0 if score is ACCURACY else 1.0)
    failed = runs - variant.feasible_runs
    mark = f" {DAGGER}{failed}/{runs}" if method == "constrained" and failed else ""
    return ranged(values, score.digits) + mark


def _paired(line: Line, score: Score) -> tuple[str, str]:
    """Difference and gain beyond the training noise."""
    if (both := differences(line)) is None:
        return "-", "-"
    change, gain = both[0].mean * (100.0 if score is ACCURACY else 1.0), 100.0 * both[1].stronger
    return _signed(change, score.digits), _signed(gain, 1)


def _signed(values: Array, digits: int) -> str:
    mean = number(values.mean(), digits, sign=True)
    if len(values) == 1 or not np.isfinite(values).all():
        return mean
    return f"{mean} [{number(values.min(), digits, sign=True)}, {number(values.max(), digits, sign=True)}]"
