"""The tables of reports: rows of text by column, of each setting."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from ..config.options import flat
from ..system.files import without_folders
from ..system.terminal import Table
from .groups import Setting, Variant
from .records import Array, Run

LEVEL = 0.95  # of intervals over seeds
LOST = {"mean": np.mean, "worst": max}
# Of layers: title, figure, scale and format. A column of zeros says nothing and is left
# out.
LAYERS = (
    ("loss", "layer_losses", 1, ".3f"),
    ("error %", "error_rates", 100, ".1f"),
    ("bound", "bounds", 1, ".3f"),
    ("violation", "violations", 1, "+.3f"),
    ("margin %", "margins", 100, "+.1f"),
    ("multiplier", "multipliers", 1, ".3f"),
    ("slack", "slacks", 1, ".3f"),
    ("descends %", "descend_share", 100, ".1f"),
)
SHOWN = 16  # numbers of a list that a cell holds
# of an evaluation, shown by pictures
DRAWN = ("confusion", "class_names", "certified_curve", "smallest_radii")

Row = dict[str, str]  # a cell by the title of its column
Made = tuple[str, list[Row], str]  # title, rows and note of a table
Maker = Callable[[Setting], Iterator[Made]]


def make_tables(maker: Maker, settings: Sequence[Setting]) -> list[Table]:
    """Returns the tables of all settings. Those of one title are one table."""
    made: dict[str, tuple[list[Row], str]] = {}
    for setting in settings:
        for title, rows, note in maker(setting):
            made.setdefault(title, ([], note))[0].extend(rows)
    return [as_table(title, rows, note) for title, (rows, note) in made.items() if rows]


def as_table(title: str, rows: Sequence[Mapping[str, str]], note: str = "") -> Table:
    """Returns a table of rows by column, with a dash where a row lacks one."""
    header = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(row.get(name, "-") for name in header) for row in rows)
    return Table(title, header, cells, note)


def scores(setting: Setting) -> Iterator[Made]:
    """The score at every test gamma without a network and of every variant; below,
    its mean or the area under it."""
    spec = setting.spec
    columns = {name: floor[None] for name, floor in setting.floors().items()}
    columns |= {variant.title: variant.scores() for variant in setting.variants}
    places: dict[str, Any] = {}
    for place, gamma in enumerate(setting.gammas):
        mark = " *" if gamma == setting.train_gamma else ""
        places[f"{gamma:g}{mark}"] = [place]
    tested = np.isin(setting.gammas, setting.first.evaluation["test_gammas"])
    if tested.sum() > 1:
        places["mean"] = tested
    rows = []
    for name, place in places.items():
        rows.append({"test gamma": name})
        for title, values in columns.items():
            rows[-1][title] = ranged(spec.scale * values[:, place].mean(1), spec.form)
    areas = [variant for variant in setting.variants if variant.has("area")]
    if areas:
        rows.append({"test gamma": "area"})
    for one in areas:
        rows[-1][one.title] = ranged(one.stack("area"), ".3f")

    against, notes = "", [spec.note]
    if spec.gamma:
        against = f" against {spec.gamma}"
        notes.append("* training gamma.")
    for name, share in setting.first.evaluation.get("floor_shares", {}).items():
        if share < 1:
            notes.append(f"{name} is of {share:.0%} of the test split.")
    yield f"{spec.heading}{against}, {setting.title}", rows, " ".join(notes)


def comparison(setting: Setting) -> Iterator[Made]:
    """Every constrained variant against the same runs without constraints, at the
    training noise and beyond."""
    spec = setting.spec
    unit = "points" if spec.percent else "%"
    places = ("training gamma", "stronger noise", "largest gamma")
    rows = []
    for one, other in setting.pairs():
        gaps = differences(setting, one, other)
        row: Row = {"setting": setting.title, "constrained": one.title}
        row |= {"against": other.title, "seeds": str(len(gaps))}
        for place, gap in zip(
            places if spec.gamma else places[:1], gaps.T, strict=False
        ):
            row[f"{place} {unit}"] = interval(gap)
        if len(gaps):
            rows.append(row)
    better = "above" if spec.higher_is_better else "below"
    note = (
        f"Differences of {spec.title}, paired by seed, in percent of the other score,"
        f" or in points of a percentage; {better} 0 the constrained model is better."
        " Stronger noise: mean of the differences over larger gammas. Brackets:"
        f" {LEVEL:.0%} interval over seeds (Student's t)."
    )
    yield "Constraints against the same runs without", rows, note


def differences(setting: Setting, one: Variant, other: Variant) -> Array:
    """Score differences of two variants paired by seed, (seeds, 3): at the training
    gamma, their mean over larger test gammas, and at the largest. In percent of the
    other's score, for shares in percentage points.
    """
    theirs = {run.evaluation["seed"]: run for run in other.runs}
    pairs = [
        (run.values(setting.spec.metric), theirs[seed].values(setting.spec.metric))
        for seed, run in zip(one.seeds, one.runs, strict=True)
        if seed in theirs
    ]
    stronger = setting.gammas > setting.gammas[setting.training_index]
    gaps = []
    for mine, base in pairs:
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = 100.0 * (mine - base) / (1.0 if setting.spec.percent else base)
        beyond = gap[stronger].mean() if stronger.any() else np.nan
        gaps.append([gap[setting.training_index], beyond, gap[-1]])
    return np.array(gaps)


def disturbed(setting: Setting) -> Iterator[Made]:
    """The score of every variant with noise on layers, with a layer lost, or of
    disturbed inputs."""
    columns = {}
    if setting.spec.reference:
        name, prefix = setting.spec.reference
        columns[name] = [_disturbed(setting.first, prefix)]
    for variant in setting.variants:
        columns[variant.title] = [_disturbed(run) for run in variant.runs]
    title = "at the training noise, with layers or inputs disturbed"
    yield f"{setting.spec.heading} {title}, {setting.title}", by_name(columns), ""


def layers(setting: Setting) -> Iterator[Made]:
    """Every layer of a variant on the test split: loss, bound, multiplier, descent."""
    for variant in setting.variants:
        rows = [{"layer": str(layer)} for layer in setting.layers]
        margins = np.mean([run.margins() for run in variant.runs], axis=0)
        for title, key, scale, form in LAYERS:
            if key == "margins" or variant.has(key):
                values = margins if key == "margins" else variant.mean(key)
                texts = [number(value, form) for value in scale * values]
                # a layer's step has no figure at the input
                texts = ["-"] * (len(rows) - len(texts)) + texts
                if any(text.strip("-0.") for text in texts):
                    for row, text in zip(rows, texts, strict=True):
                        row[title] = text
        form = setting.first.evaluation.get("form", "difference").replace("_", " ")
        note = (
            f"{variant.feasible()} runs feasible (tolerance"
            f" {variant.mean('tolerance'):.0%} of the bound; positive margin: room"
            " left). A bound of layer 0 is the reference loss."
            f" Violations and margins are of the mean over samples, as a {form}."
        )
        free = "" if variant.method == "constrained" else " (bounds not enforced)"
        title = f"Layers on the test split, {variant.title}{free}, {setting.title}"
        yield title, rows, note


def constraints(setting: Setting) -> Iterator[Made]:
    """The library's report on the constraints, of every run under them."""
    for run in [run for one in setting.of("constrained") for run in one.runs]:
        *lines, verdict = run.evaluation.get("constraint_report", [""])
        header, *cells = [re.split("  +", line) for line in lines] or [[]]
        rows = [dict(zip(header, row, strict=False)) for row in cells]
        yield f"Constraints on the test split, {run.name}", rows, verdict


def exits(setting: Setting) -> Iterator[Made]:
    """Early exit at the threshold chosen on validation data, a row a variant, means
    over seeds."""
    keys = ("mean_depth", "accuracy", "full_accuracy", "standard_error")
    rows = []
    for one in filter(lambda one: one.has("early_exit"), setting.variants):
        figures = [
            [run.evaluation["early_exit"][key] for key in keys] for run in one.runs
        ]
        depth, accuracy, full, error = np.mean(figures, axis=0) * [1, 100, 100, 100]
        rows.append({
            "model": f"{one.title}, {setting.title}",
            "mean depth": f"{depth:.2f} of {setting.num_layers}",
            "accuracy %": number(accuracy, ".2f"),
            "full depth": number(full, ".2f"),
            "points": f"{number(accuracy - full, '+.2f')} ({number(error, '.2f')})",
        })  # fmt: skip
    note = (
        "Thresholds cost at most half a point on validation data. Points: cost on the"
        " test split (standard error)."
    )
    yield "Early exit on the test split, at the training noise", rows, note


def acceptance(setting: Setting) -> Iterator[Made]:
    """Share of tokens that a layer predicts as the last does, a row a variant and
    test gamma."""
    rows = []
    for one in filter(lambda one: one.has("acceptance"), setting.variants):
        for gamma, shares in zip(setting.gammas, one.mean("acceptance"), strict=True):
            rows.append({"method": one.title, "test gamma": f"{gamma:g}"})
            for layer, share in zip(setting.layers, shares, strict=True):
                rows[-1][f"layer {layer}"] = number(100 * share, ".1f")
    title = f"Acceptance (%): tokens that a layer names as the last, {setting.title}"
    yield title, rows, ""


def evaluation_table(rows: Mapping[str, Sequence[Run]]) -> Table:
    """Returns every figure of evaluations, a column for all seeds of a model."""
    columns: dict[str, list[dict[str, Any]]] = {}
    for title, runs in rows.items():
        columns[title] = [_in_words(run) for run in runs]
    return as_table("Figures of the evaluation", by_name(columns))


def _in_words(run: Run) -> dict[str, Any]:
    """Returns the figures that no picture shows, by their names in words."""
    titles = {run.spec.metric: run.spec.title}
    return {
        titles.get(name, name.replace("_", " ").replace(".", " ", 1)): value
        for name, value in flat(run.evaluation).items()
        if value is not None and not name.startswith(DRAWN)
    }


def by_name(columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Returns a row of each figure by its name, with a column for all seeds of a
    model."""
    every = [figures for column in columns.values() for figures in column]
    rows = []
    for name in dict.fromkeys(name for figures in every for name in figures):
        rows.append({"": name})
        for model, column in columns.items():
            rows[-1][model] = text_of([figures.get(name) for figures in column])
    return rows


def number(value: float, form: str) -> str:
    """A number by its format, a dash for NaN and infinities, never a negative zero."""
    text = format(value, form) if np.isfinite(value) else "-"
    return text.lstrip("+-") if not text.strip("+-0.") and text != "-" else text


def ranged(values: Array, form: str) -> str:
    """The mean over seeds and, where there are several, the smallest and the
    largest."""
    return _with_ends([values.mean(), values.min(), values.max()], len(values), form)


def interval(values: Array) -> str:
    """The mean, and where there are several values its interval over seeds
    (Student's t)."""
    mean, count = np.mean(values), len(values)
    freedom = max(count - 1, 1)
    reach = special.stdtrit(freedom, 0.5 + LEVEL / 2) * np.std(values)
    reach /= freedom**0.5  # np.std divides by the count, not by one less
    return _with_ends([mean, mean - reach, mean + reach], count, "+.1f")


def text_of(values: Sequence[Any]) -> str:
    """The text of a figure of every seed: its mean and range where these are
    numbers, else the first seed's."""
    first = values[0] if values else None
    numbers = all(isinstance(value, int | float) for value in values)
    if isinstance(first, list):
        texts = [text_of([one]) for one in first]
        return ", ".join(texts) if len(texts) <= SHOWN else f"{len(texts)} values"
    if numbers and (isinstance(first, float) or len(values) > 1):
        return ranged(np.array(values, float), ".4g")
    return "-" if first is None else str(without_folders(first))


def _with_ends(numbers: Sequence[Any], count: int, form: str) -> str:
    texts = [number(one, form) for one in numbers]
    if count == 1 or "-" in texts:
        return texts[0]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _disturbed(run: Run, prefix: str = "") -> dict[str, float]:
    noisy, lost, inputs = (
        run.evaluation.get(f"{prefix}{kind}_{run.spec.metric}", {})
        for kind in ("layer_noise", "lost_layer", "disturbed")
    )
    named = {f"layer noise {level}": score for level, score in noisy.items()}
    for words, of in LOST.items() if lost else ():
        named[f"one layer lost, {words}"] = of([*lost.values()])
    named |= inputs
    return {name: score * run.spec.scale for name, score in named.items()}
