"""The tables of reports, as rows of text that the terminal and the page share."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ..system.files import without_folders
from ..system.terminal import Table
from .groups import Setting, Variant
from .records import Array, Run, flat
from .specs import ReportSpec

LEVEL = 0.95  # of intervals over seeds
LOST = {"mean": np.mean, "worst": max}
SHOWN = 16  # numbers of a list that a cell holds


def score_table(setting: Setting) -> list[Table]:
    """The score at every test gamma without a network and of every variant; below,
    its mean or the area under it."""
    spec, scale = setting.spec, 100.0 if setting.spec.percent else 1.0
    columns = {name: scores[None] for name, scores in setting.floors().items()}
    columns |= {variant.title: variant.scores() for variant in setting.variants}
    places = {
        f"{gamma:g}{' *' if gamma == setting.train_gamma else ''}": [i]
        for i, gamma in enumerate(setting.gammas)
    }
    tested = np.flatnonzero(
        np.isin(setting.gammas, setting.first.evaluation["test_gammas"])
    ).tolist()
    places |= {"mean": tested} if len(tested) > 1 else {}
    rows = [
        {
            "test gamma": name,
            **{
                key: ranged(scale * x[:, place].mean(1), spec.digits)
                for key, x in columns.items()
            },
        }
        for name, place in places.items()
    ]
    areas = {
        one.title: ranged(one.stack("area"), 3)
        for one in setting.variants
        if one.has("area")
    }
    rows += [{"test gamma": "area", **areas}] if areas else []
    shares = setting.first.evaluation.get("floor_shares", {})
    notes = [spec.note, "* training gamma." * bool(spec.gamma)]
    notes += [
        f"{name} is of {share:.0%} of the test split."
        for name, share in shares.items()
        if share < 1
    ]
    title = capital(spec.title)
    if spec.percent:
        title += " (%)"
    if spec.gamma:
        title += f" against {spec.gamma}"
    return _table(f"{title}, {setting.title}", rows, " ".join(filter(None, notes)))


def layers_table(setting: Setting, variant: Variant) -> list[Table]:
    """Every layer of a variant on the test split: loss, bound, multiplier, descent."""
    mean = variant.mean
    columns = {
        "layer": [str(layer) for layer in setting.layers],
        "loss": _numbers(mean("layer_losses"), 3),
        **(
            {"error %": _numbers(100 * mean("error_rates"), 1)}
            if variant.has("error_rates")
            else {}
        ),
        **{
            name: _numbers(values, digits, sign=sign)
            for name, values, digits, sign in (
                ("bound", mean("bounds"), 3, False),
                ("violation", mean("violations"), 3, True),
                ("margin %", 100 * variant.margins().mean(0), 1, True),
                ("multiplier", mean("multipliers"), 3, False),
                ("slack", mean("slacks"), 3, False),
            )
            # a column of zeros says nothing
            if np.any(np.nan_to_num(np.round(values, digits)))
        },
        "descends %": ["-", *_numbers(100 * mean("descend_share"), 1)],
    }
    form = setting.first.evaluation.get("form", "difference").replace("_", " ")
    reference = " Layer 0: bound is the reference loss." * bool(
        np.isfinite(mean("bounds")[0])
    )
    note = (
        f"{variant.feasible_runs} of {len(variant.runs)} runs feasible (tolerance"
        f" {mean('tolerance'):.0%} of the bound; positive margin: room"
        f" left).{reference} Violations and margins are of the mean over samples, as a"
        f" {form}."
    )
    free = " (bounds not enforced)" * (variant.method != "constrained")
    title = f"Layers on the test split, {variant.title}{free}, {setting.title}"
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    return _table(title, rows, note)


def constraint_tables(setting: Setting) -> list[Table]:
    """The library's report on the constraints, of every run under them."""
    tables = []
    for run in [run for one in setting.of("constrained") for run in one.runs]:
        # an evaluation of an earlier version has other lines
        lines = run.evaluation.get("constraint_report", [])
        cells = [tuple(re.split("  +", line)) for line in lines[:-1]]
        if cells and all(len(row) == len(cells[0]) for row in cells):
            title = f"Constraints on the test split, {run.name}"
            tables.append(Table(title, cells[0], tuple(cells[1:]), lines[-1]))
    return tables


def differences(setting: Setting, one: Variant, other: Variant) -> Array:
    """Score differences of two variants paired by seed, (seeds, 3): at the training
    gamma, their mean over larger test gammas, and at the largest. In percent of the
    other's score; of shares, in percentage points.
    """
    scores = [
        {run.evaluation["seed"]: run.values(run.spec.metric) for run in each.runs}
        for each in (one, other)
    ]
    shared = sorted(set(scores[0]) & set(scores[1]))
    ours, theirs = (
        np.array([each[seed] for seed in shared]).reshape(-1, len(setting.gammas))
        for each in scores
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = 100.0 * (ours - theirs if setting.spec.percent else ours / theirs - 1.0)
    stronger, training = (
        setting.gammas > setting.gammas[setting.training_index],
        gaps[:, setting.training_index],
    )
    beyond = gaps[:, stronger].mean(1) if stronger.any() else np.full(len(gaps), np.nan)
    return np.stack([training, beyond, gaps[:, -1]], axis=1)


def comparison_table(settings: Sequence[Setting]) -> list[Table]:
    """Every constrained variant against the same runs without constraints, at the
    training noise and beyond."""
    rows, spec = [], settings[0].spec
    unit = "points" if spec.percent else "%"
    places = (
        ("training gamma", "stronger noise", "largest gamma")
        if spec.gamma
        else ("difference",)
    )
    for setting, (one, other) in (
        (each, pair) for each in settings for pair in each.pairs()
    ):
        if len(gaps := differences(setting, one, other)):
            titles = {
                "setting": setting.title,
                "constrained": one.title,
                "against": other.title,
            }
            gap = {
                f"{place} {unit}": interval(column)
                for place, column in zip(places, gaps.T, strict=False)
            }
            rows.append({**titles, "seeds": str(len(gaps)), **gap})
    note = (
        f"Differences of {spec.title}"
        f" {'in percentage points' if spec.percent else 'in percent of the other'},"
        f" paired by seed; {'above' if spec.higher_is_better else 'below'} 0 the"
        " constrained model is better. Stronger noise: mean of the differences over"
        f" larger gammas. Brackets: {LEVEL:.0%} interval over seeds (Student's t)."
    )
    return _table("Constraints against the same runs without", rows, note)


def disturbed_table(setting: Setting) -> list[Table]:
    """The score of every variant with noise on layers, with a layer lost, or of
    disturbed inputs."""
    spec, name = (
        setting.spec,
        f"{capital(setting.spec.title)}{' (%)' * setting.spec.percent}",
    )
    columns = {
        variant.title: [_disturbed(run, spec) for run in variant.runs]
        for variant in setting.variants
    }
    if spec.reference:
        columns = {
            spec.reference[0]: [_disturbed(setting.first, spec, spec.reference[1])],
            **columns,
        }
    return _by_name(
        f"{name} at the training noise, with layers or inputs disturbed,"
        f" {setting.title}",
        columns,
    )


def figures_table(rows: Mapping[str, Sequence[Run]]) -> list[Table]:
    """Every figure of evaluations, a column for all seeds of a model."""

    def shown(run: Run) -> dict[str, Any]:  # the confusion matrix has a picture
        return {
            name: value
            for name, value in flat(run.evaluation).items()
            if not name.startswith("confusion")
        }

    columns = {name: [shown(run) for run in runs] for name, runs in rows.items()}
    return _by_name("Figures of the evaluation", columns)


def exit_table(settings: Sequence[Setting]) -> list[Table]:
    """Early exit at the threshold chosen on validation data, a row a variant, means
    over seeds."""
    rows, keys = [], ("mean_depth", "accuracy", "full_accuracy", "standard_error")
    for setting, variant in (
        (each, one)
        for each in settings
        for one in each.variants
        if one.has("early_exit")
    ):
        depth, *shares = (
            np.mean([run.evaluation["early_exit"][key] for run in variant.runs])
            for key in keys
        )
        accuracy, full, error = (100 * float(share) for share in shares)
        rows.append({
            "model": f"{variant.title}, {setting.title}",
            "mean depth": f"{depth:.2f} of {setting.num_layers}",
            "accuracy %": number(accuracy, 2),
            "full depth": number(full, 2),
            "points": f"{number(accuracy - full, 2, sign=True)} ({number(error, 2)})",
        })  # fmt: skip
    note = (
        "Thresholds cost at most half a point on validation data. Points: cost on the"
        " test split (standard error)."
    )
    return _table("Early exit on the test split, at the training noise", rows, note)


def acceptance_table(setting: Setting) -> list[Table]:
    """Share of tokens that a layer predicts as the last does, a row a variant and
    test gamma."""
    layers = [f"layer {layer}" for layer in setting.layers]
    rows = [
        {
            "method": one.title,
            "test gamma": f"{gamma:g}",
            **dict(zip(layers, _numbers(100 * shares, 1), strict=True)),
        }
        for one in setting.variants
        if one.has("acceptance")
        for gamma, shares in zip(setting.gammas, one.mean("acceptance"), strict=True)
    ]
    return _table(
        f"Acceptance (%): tokens that a layer names as the last, {setting.title}", rows
    )


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Fixed decimals, a dash for NaN and infinities; never a negative zero."""
    if not np.isfinite(value):
        return "-"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def ranged(values: Array, digits: int) -> str:
    """The mean over seeds and, where there are several, the smallest and the
    largest."""
    ends = f" [{number(values.min(), digits)}, {number(values.max(), digits)}]"
    return number(values.mean(), digits) + ends * (
        len(values) > 1 and bool(np.isfinite(values).all())
    )


def text_of(values: Sequence[Any]) -> str:
    """The text of a figure of every seed: its mean and range where these are
    numbers, else the first seed's."""
    if not values or values[0] is None:
        return "-"
    if len(values) > 1 and all(isinstance(value, int | float) for value in values):
        return "{} [{}, {}]".format(
            *(
                text_of([float(one)])
                for one in (np.mean(values), min(values), max(values))
            )
        )
    if isinstance(value := values[0], list):
        return (
            ", ".join(text_of([one]) for one in value)
            if len(value) <= SHOWN
            else f"{len(value)} values"
        )
    # -0.0 + 0.0 is 0.0
    return (
        f"{value + 0.0:.4g}"
        if isinstance(value, float)
        else str(without_folders(value))
    )


def interval(values: Array) -> str:
    """The mean, and where there are several values its interval over seeds
    (Student's t)."""
    mean, reach = np.mean(values), np.nan
    if len(values) > 1:
        reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * stats.sem(values)
    texts = [
        re.sub(r"^[+-](?=[0.]+$)", "", f"{one:+.1f}")
        for one in (mean, mean - reach, mean + reach)
    ]
    ends = f" [{texts[1]}, {texts[2]}]" if np.isfinite(reach) else ""
    return f"{texts[0]}{ends}" if np.isfinite(mean) else "-"


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def _table(
    title: str, rows: Sequence[Mapping[str, str]], note: str = ""
) -> list[Table]:
    """A table of rows by column; none without rows."""
    header = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(row.get(name, "-") for name in header) for row in rows)
    return [Table(title, header, cells, note)] if rows else []


def _by_name(
    title: str, columns: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Table]:
    """A table of figures by name, a column for all seeds of a model; none without
    figures."""
    names = dict.fromkeys(
        name for column in columns.values() for one in column for name in one
    )
    texts = {
        model: {name: text_of([one.get(name) for one in column]) for name in names}
        for model, column in columns.items()
    }
    return _table(
        title,
        [
            {"": name, **{model: text[name] for model, text in texts.items()}}
            for name in names
        ],
    )


def _disturbed(run: Run, spec: ReportSpec, prefix: str = "") -> dict[str, float]:
    kinds = (
        f"{prefix}{kind}_{spec.metric}"
        for kind in ("layer_noise", "lost_layer", "disturbed")
    )
    noisy, lost, inputs = (run.evaluation.get(key, {}) for key in kinds)
    named = {f"layer noise {level}": value for level, value in noisy.items()}
    named |= {
        f"one layer lost, {words}": of(list(lost.values()))
        for words, of in LOST.items()
        if lost
    }
    return {
        name: value * (100.0 if spec.percent else 1.0)
        for name, value in (named | inputs).items()
    }


def _numbers(
    values: Sequence[float] | Array, digits: int, *, sign: bool = False
) -> list[str]:
    return [number(value, digits, sign=sign) for value in values]
