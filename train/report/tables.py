"""The tables of reports on constrained training, as rows of text that the terminal and the page share."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..system.files import without_folders
from ..system.terminal import Table
from .floors import floor_note
from .groups import METHOD_NAMES, Setting, Variant
from .read import ACCURACY, CODES, LOSS, RMSE
from .record import Array, Run, flat

ENFORCED = (
    " Multipliers and slacks are those of the checkpoint's step; mult. x viol.: of the tightened bounds that training "
    "enforces, less the slack."
)
# What the note says where constraints bind something else than the mean over samples, by `bind` of evaluation.json.
BOUND = {
    "tail": " Violations and margins are of the mean over the worst samples.",
    "positive": " Violations and margins are of the mean over samples of what exceeds the bound, less the leeway.",
}
# What errors are, and that lower ones are better.
ERRORS = {
    RMSE: "RMSE on the 0-255 scale, lower is better",
    CODES: "Mean of |z − z*|² over that of |z*|², lower is better; of codes of zeros it is 1",
}
# The same by `form`.
FORM: dict[str, str] = dict.fromkeys(
    ("ratio", "log_ratio"),
    " Violations and margins are of ratios, taken sample by sample; losses and bounds are means.",
)
PLAIN, CONSTRAINED = METHOD_NAMES["erm"], METHOD_NAMES["constrained"]


def score_table(setting: Setting) -> Table:
    """Errors beside those without training, accuracy and the area below it, or the loss, for every variant."""
    if setting.score is LOSS:
        scores = [(variant.title, f"{variant.scores().mean():.4g}") for variant in setting.variants]
        return Table(f"Loss of the last layer, test split, {setting.title}", ("method", "loss"), tuple(scores))
    score, accuracy = setting.score, setting.score is ACCURACY
    without = {"noisy input": setting.of_input()} if score.baseline else {}
    unit, floors = 100 if accuracy else 1, without | setting.floors()
    columns = {name: _numbers(unit * scores, score.digits) for name, scores in floors.items()}
    for one in setting.variants:
        columns[with_seeds(one)] = [ranged(column, score.digits) for column in unit * one.scores().T]
    gammas = [f"{gamma:g}" + (" *" if gamma == setting.train_gamma else "") for gamma in setting.gammas]
    rows = list(zip(gammas, *columns.values(), strict=True))
    if accuracy and len(_tested(setting)) > 1:
        rows.append(("area", *("-" for _ in floors), *(ranged(variant.areas(), 3) for variant in setting.variants)))
    note = _accuracy_note(setting) if accuracy else _error_note(setting)
    return Table(
        f"{capital(score.title)} against test gamma, {setting.title}", ("test gamma", *columns), tuple(rows), note
    )


def feasibility_table(setting: Setting, variant: Variant) -> Table:
    """Every layer of a variant on held-out data: loss, bound, violation, margin, multiplier, slack, descent."""
    margins, several = 100 * variant.margins(), len(variant.runs) > 1
    columns: dict[str, list[str]] = {
        "layer": [str(layer) for layer in setting.layers],
        "loss": _numbers(variant.mean("layer_losses"), 3),
        "bound": _numbers(variant.mean("bounds"), 3),
        "violation": _numbers(variant.mean("violations"), 3, sign=True),
        "margin %": _numbers(margins.mean(0), 1, sign=True),
        **({"worst margin %": _numbers(margins.min(0), 1, sign=True)} if several else {}),
        "multiplier": _numbers(variant.mean("multipliers"), 3),
        "slack": _numbers(variant.mean("slacks"), 3),
        "mult. x viol.": _numbers(variant.mean("complementary_slackness"), 4, sign=True),
        "descends %": ["-", *_numbers(100 * variant.mean("descend_share"), 1)],
    }
    constrained = variant.method == "constrained"
    enforced = "" if constrained else " (bounds not enforced)"
    return Table(
        title=f"Feasibility on held-out data, {with_seeds(variant)}{enforced}, {setting.title}",
        header=tuple(columns),
        rows=tuple(zip(*columns.values(), strict=True)),
        note=f"{_feasible(variant)} runs feasible (tolerance {variant.mean('tolerance'):.0%} of the bound; positive "
        f"margin: room left). Layer 0: bound is the reference loss.{ENFORCED if constrained else ''}"
        + BOUND.get(variant.bind, "")
        + FORM.get(variant.form, ""),
    )


def cost_table(settings: Sequence[Setting]) -> list[Table]:
    """Returns the cost of feasibility in RMSE at the training gamma, a row per constrained variant in a pair."""
    rows = []
    for setting in settings:
        for constrained, plain in setting.duels():
            index = setting.training_index
            reached, usual = (float(one.scores().mean(0)[index]) for one in (constrained, plain))
            rows.append((
                setting.title + _set_apart(constrained, plain),
                number(setting.of_input()[index], 2),
                number(usual, 2),
                number(reached, 2),
                number(100 * (reached - usual) / usual if usual else np.nan, 1, sign=True),
                _feasible(constrained),
                number(100 * constrained.worst()[2], 1, sign=True),
                " / ".join(number(float(one.mean("train_seconds")), 0) for one in (plain, constrained)),
            ))  # fmt: skip
    table = Table(
        "What feasibility costs",
        ("setting", "noisy input", PLAIN, CONSTRAINED, "cost %", "feasible", "worst margin %", "seconds"),
        tuple(rows),
        "RMSE (0-255) at the training gamma, mean over seeds; cost: constrained over plain. "
        "Seconds of training: plain / constrained.",
    )
    return [table] if rows else []


def area_table(settings: Sequence[Setting]) -> Table:
    """Areas under the accuracy of both methods by depth and training gamma, as in the paper's Table 4."""
    rows = []
    for setting in settings:
        for constrained, plain in setting.pairs():
            difference = cost = np.nan
            if constrained and plain:
                difference = constrained.areas().mean() - plain.areas().mean()
                cost = 100 * (constrained.scores().mean(0)[0] - plain.scores().mean(0)[0])
            rows.append((
                f"{setting.num_layers}, {setting.train_gamma:g}{_set_apart(constrained, plain)}",
                *(ranged(one.areas(), 3) if one else "-" for one in (constrained, plain)),
                number(difference, 3, sign=True),
                number(cost, 2, sign=True),
                _feasible(constrained) if constrained else "-",
            ))  # fmt: skip
    points = f"points at gamma {settings[0].gammas[0]:g}"
    return Table(
        f"Area under the accuracy over test gamma {_span(settings[0])}",
        ("layers, training gamma", CONSTRAINED, PLAIN, "difference", points, "feasible"),
        tuple(rows),
        "Difference: constrained less plain, of means over seeds. Points: the same of the accuracy in percent. "
        "Of several plain models, the one whose configuration differs least is compared with.",
    )


def exit_table(settings: Sequence[Setting]) -> Table:
    """Early exit at the threshold chosen on validation data, one row a variant, means over seeds."""
    rows, times = [], ("whole", "by_layers", "early_exit")
    for setting in settings:
        for variant in setting.variants:
            mean = variant.mean_exit("mean_depth", "accuracy", "full_accuracy", "standard_error", *times, "depth")
            lost = number(100 * (mean["accuracy"] - mean["full_accuracy"]), 2, sign=True)
            rows.append((
                f"{variant.title}, {setting.title}",
                f"{mean['mean_depth']:.2f} of {setting.num_layers}",
                number(100 * mean["accuracy"], 2),
                number(100 * mean["full_accuracy"], 2),
                f"{lost} ({number(100 * mean['standard_error'], 2)})",
                *(number(mean[name], 2) for name in times),
                f"{mean['depth']:.2f}",
                _speed(mean["whole"], mean["early_exit"]),
            ))  # fmt: skip
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


def runs_table(runs: Sequence[Run]) -> Table:
    """A row per run with the config fields in which they differ; what is not the most common value is marked."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    configs = [{key: text(value) for key, value in flat(without_folders(run.config)).items()} for run in runs]
    fields = list(dict.fromkeys(key for config in configs for key in config))
    values = {field: [config.get(field, "not set") for config in configs] for field in fields}
    values = {field: column for field, column in values.items() if len(set(column)) > 1}
    usual = {field: Counter(column).most_common(1)[0][0] for field, column in values.items()}
    header = ("run", "state", "steps", "reported step", "feasible")
    rows = []
    for place, run in enumerate(runs):
        counts = (
            "-" if step is None else str(step) for step in (run.status.get("steps"), run.evaluation.get("best_step"))
        )
        verdict = run.evaluation.get("feasible")  # None of tasks without layers
        feasible = "-" if verdict is None else "yes" if verdict else "no"
        rows.append(
            (
                run.name,
                str(run.status.get("state", "unknown")),
                *counts,
                feasible,
                *(column[place] for column in values.values()),
            )
        )
    marked = {
        (place, len(header) + column)
        for column, field in enumerate(values)
        for place in range(len(runs))
        if values[field][place] != usual[field]
    }
    title = "Runs and the config fields in which they differ (marked: not the most common value)"
    return Table(title, (*header, *values), tuple(rows), words=True, marked=frozenset(marked))


def environment_table(runs: Sequence[Run], here: dict[str, str]) -> Table:
    """This report's own environment, and beside it every other environment that the runs recorded."""
    columns = {"this report": here}
    for run in runs:
        recorded = run.status.get("environment")
        if isinstance(recorded, dict) and recorded not in columns.values():
            columns[f"trained: {run.name}"] = recorded
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = tuple((name, *(str(column.get(name, "-")) for column in columns.values())) for name in names)
    return Table("Versions and machine", ("", *columns), rows, words=True)


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Fixed decimals, a dash for what is not a number; never a negative zero."""
    if not np.isfinite(value):
        return "-"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def ranged(values: Array, digits: int) -> str:
    """The mean over seeds and, where there are several, the smallest and the largest."""
    mean = number(values.mean(), digits)
    if len(values) == 1 or not np.isfinite(values).all():
        return mean
    return f"{mean} [{number(values.min(), digits)}, {number(values.max(), digits)}]"


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def with_seeds(variant: Variant) -> str:
    """A variant's title, and how many seeds it has where there are several."""
    seeds = len(variant.runs)
    return variant.title + (f", {seeds} seeds" if seeds > 1 else "")


def _error_note(setting: Setting) -> str:
    plain = " plain: method erm, no constraints." if setting.of("erm") else ""
    several = any(len(variant.runs) > 1 for variant in setting.variants)
    seeds = " Mean over the seeds, smallest and largest in brackets." if several else ""
    return f"{ERRORS[setting.score]}. * training gamma.{plain}{seeds}{floor_note(setting)}"


def _accuracy_note(setting: Setting) -> str:
    span = f" Area: under the accuracy over test gamma {_span(setting)}, by trapezoids, not divided by the range."
    area = span if len(_tested(setting)) > 1 else ""
    return f"* training gamma.{area} Several seeds: mean [smallest, largest].{floor_note(setting)}"


def _set_apart(constrained: Variant | None, plain: Variant | None) -> str:
    """Returns the words that tell a row of two variants from others of the setting; empty where there are no others."""
    if constrained is None:
        return f", {plain.title}" if plain and plain.label else ""
    words = f", {constrained.label}" if constrained.label else ""
    return words + (f" against {plain.title}" if plain and plain.label else "")


def _numbers(values: Array, digits: int, *, sign: bool = False) -> list[str]:
    return [number(value, digits, sign=sign) for value in values]


def _feasible(variant: Variant) -> str:
    return f"{variant.feasible_runs} of {len(variant.runs)}"


def _speed(whole: float, early_exit: float) -> str:
    """Returns the speed of early exit over that of the whole network, in words."""
    if not (whole > 0.0 and early_exit > 0.0):
        return "-"
    ratio = f"{max(whole, early_exit) / min(whole, early_exit):.2f}"
    if ratio == "1.00":
        return "as fast"
    return f"{ratio}x {'faster' if early_exit < whole else 'slower'}"


def _tested(setting: Setting) -> list[float]:
    """The gammas that areas are over; that of training is tested too, and need not be one of them."""
    return setting.first.evaluation["test_gammas"]


def _span(setting: Setting) -> str:
    gammas = _tested(setting)
    return f"{gammas[0]:g} to {gammas[-1]:g}" if len(gammas) > 1 else f"{gammas[0]:g} alone"
