"""The tables of reports on text: accuracy against gamma, areas as in the paper's Table 4, and early exit."""

from collections.abc import Sequence

import numpy as np

from train.report.groups import METHOD_NAMES, Setting, Variant
from train.report.tables import Table, number, set_apart, with_seeds

__all__ = ["accuracy_table", "area_table", "areas", "exit_table"]


def areas(variant: Variant) -> np.ndarray:
    """The area under the accuracy of every seed; NaN where one gamma was tested, over which there is none."""
    return np.array([run.scalar("area") if len(run.evaluation["test_gammas"]) > 1 else np.nan for run in variant.runs])


def accuracy_table(setting: Setting) -> Table:
    """Accuracy against test gamma for every variant; mean and range where there are several seeds; and the area."""
    columns = [[_ranged(100 * column, 2) for column in variant.scores().T] for variant in setting.variants]
    rows = []
    for index, gamma in enumerate(setting.gammas):
        mark = " *" if float(gamma) == setting.train_gamma else ""
        rows.append((f"{float(gamma):g}{mark}", *(column[index] for column in columns)))
    note = "* training gamma."
    if len(_tested(setting)) > 1:
        rows.append(("area", *(_ranged(areas(variant), 3) for variant in setting.variants)))
        note += f" Area: under the accuracy over test gamma {_span(setting)}, by trapezoids, not divided by the range."
    return Table(
        title=f"Accuracy (%) against test gamma, {setting.title}",
        header=("test gamma", *(with_seeds(variant) for variant in setting.variants)),
        rows=tuple(rows),
        note=f"{note} Several seeds: mean [smallest, largest].",
    )


def area_table(settings: Sequence[Setting]) -> Table:
    """The paper's Table 4: areas of both methods by depth and training gamma, and what constraints cost in accuracy."""
    rows = [_area_row(setting, own, plain) for setting in settings for own, plain in setting.pairs()]
    smallest = settings[0].gammas[0]
    return Table(
        title=f"Area under the accuracy over test gamma {_span(settings[0])}",
        header=(
            "layers, training gamma",
            METHOD_NAMES["constrained"],
            METHOD_NAMES["erm"],
            "difference",
            f"points at gamma {float(smallest):g}",
            "feasible",
        ),
        rows=tuple(rows),
        note="Difference: constrained less plain, of means over seeds. Points: the same of the accuracy in percent. "
        "Of several plain models, the one whose configuration differs least is compared with.",
    )


def exit_table(settings: Sequence[Setting]) -> Table:
    """Early exit at the threshold chosen on validation data, one row a variant, means over seeds."""
    rows = []
    for setting in settings:
        for variant in setting.variants:
            found = [run.evaluation["early_exit"] for run in variant.runs]
            mean = {name: float(np.mean([one[name] for one in found])) for name in _EXIT}
            times = {name: float(np.mean([one["milliseconds"][name] for one in found])) for name in (*_TIMES, "depth")}
            rows.append(
                (
                    f"{variant.title}, {setting.title}",
                    f"{mean['mean_depth']:.2f} of {setting.num_layers}",
                    number(100 * mean["accuracy"], 2),
                    number(100 * mean["full_accuracy"], 2),
                    f"{number(100 * (mean['accuracy'] - mean['full_accuracy']), 2, sign=True)} "
                    f"({number(100 * mean['standard_error'], 2)})",
                    *(number(times[name], 2) for name in _TIMES),
                    f"{times['depth']:.2f}",
                    _speed(times["whole"], times["early_exit"]),
                )
            )
    return Table(
        title="Early exit on the test split, at the noise of training",
        header=(
            "model", "mean depth", "accuracy %", "full depth", "points", "ms whole", "ms by layers", "ms exit",
            "timed depth", "exit against whole",
        ),
        rows=tuple(rows),
        note="A text leaves at the first layer whose predicted improvement is under a threshold: the one of least "
        "depth that costs at most half a point on validation data, its standard error included. Points: what that "
        "costs on the test split, and its standard error. Times are of one text at a time, at the depth beside them: "
        "the whole network in one program, which reads every layer; layer by layer to the end; and layer by layer with "
        "early exit.",
    )  # fmt: skip


def _speed(whole: float, early_exit: float) -> str:
    """How much faster early exit is than the whole network, or slower."""
    if not (whole > 0.0 and early_exit > 0.0):
        return "-"
    ratio = f"{max(whole, early_exit) / min(whole, early_exit):.2f}"
    if ratio == "1.00":
        return "as fast"
    return f"{ratio}x {'faster' if early_exit < whole else 'slower'}"


def _area_row(setting: Setting, own: Variant | None, plain: Variant | None) -> tuple[str, ...]:
    difference = cost = np.nan
    if own and plain:
        difference = areas(own).mean() - areas(plain).mean()
        cost = 100 * (own.scores().mean(0)[0] - plain.scores().mean(0)[0])
    return (
        f"{setting.num_layers}, {setting.train_gamma:g}{set_apart(own, plain)}",
        _ranged(areas(own), 3) if own else "-",
        _ranged(areas(plain), 3) if plain else "-",
        number(difference, 3, sign=True),
        number(cost, 2, sign=True),
        f"{own.feasible_runs} of {len(own.runs)}" if own else "-",
    )


_EXIT = ("mean_depth", "accuracy", "full_accuracy", "standard_error")
_TIMES = ("whole", "by_layers", "early_exit")


def _tested(setting: Setting) -> list[float]:
    """The gammas that areas are over; that of training is tested too, and need not be one of them."""
    return setting.variants[0].runs[0].evaluation["test_gammas"]


def _span(setting: Setting) -> str:
    gammas = _tested(setting)
    return f"{gammas[0]:g} to {gammas[-1]:g}" if len(gammas) > 1 else f"{gammas[0]:g} alone"


def _ranged(values: np.ndarray, digits: int) -> str:
    mean = number(float(values.mean()), digits)
    if len(values) == 1 or not np.isfinite(values).all():
        return mean
    return f"{mean} [{number(float(values.min()), digits)}, {number(float(values.max()), digits)}]"
