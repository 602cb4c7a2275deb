"""The report on classifiers and segmenters: a table of networks, curves of training, predictions for scenes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..config.errors import UserError
from ..config.run import FREE
from ..data.pictures import NOT_COUNTED
from ..metrics import Predictions, read_predictions
from ..registry import ReportSpec
from ..system.terminal import Table
from .layered import MANY_SEEDS, ONE_SEED
from .page import WIDTH, Picture, Report, tidy
from .records import Run, flat, floats
from .tables import ranged, runs_table

# Shares by level under disturbed pixels, by key of evaluation.json, and the word before a level in the table.
DISTURBED = {
    "disturbed_accuracy": "",
    "disturbed_intersection_over_union": "mIoU, ",
    "noise_accuracy": "noise ",
    "attack_accuracy": "attack ",
    "certified_accuracy": "certified ",
}
# Columns of the table: title, key, format, and factor of the unit.
COLUMNS = (
    ("loss", "loss", ".3f", 1.0), ("residual", "residual", ".1e", 1.0), ("iterations", "iterations", ".1f", 1.0),
    ("largest |W|", "largest_weight_norm", ".2f", 1.0), ("ms an example", "seconds_an_example", ".2f", 1e3),
    ("train s", "train_seconds", ".0f", 1.0),
)  # fmt: skip
Rows = Mapping[str, Sequence[Run]]  # runs that differ by the seed alone, by name


def supervised_report(runs: Sequence[Run], spec: ReportSpec) -> Report:
    """The report on networks by shares such as accuracy, and of scenes the predictions of each row's first run."""
    _check_comparable(runs)
    rows, measures = _grouped(runs), dict(spec.measures or {})
    summary = {name: _summary(group, measures) for name, group in rows.items()}
    majority = _majority(runs[0], measures)
    floors = {"majority class": majority[spec.metric]}
    if spec.metric == "accuracy":
        floors = {"chance": 1 / max(len(runs[0].evaluation["class_names"]), 1), **floors}
    tables = [_table(rows, summary, measures), *_disturbed_table(rows)]
    caption = f"{spec.label} on the validation split, against training steps."
    blocks: list[Picture | Table] = [Picture("curves", caption, _curves(rows, spec)), *tables]
    if spec.metric == "intersection_over_union":
        blocks.append(Picture("predictions", "Test scenes, their labels, and predictions.", _predictions(rows)))
    return Report(
        title=", ".join(dict.fromkeys(run.config["experiment"] for run in runs)),
        sections=[("", blocks), ("Runs", [runs_table(runs)])],
        summary=summary,
        tables=tables,
        verdict=_verdict(rows, spec, floors),
        floor=f"{', '.join(f'{measures[key]} {100 * share:.2f}' for key, share in majority.items())}, of always the "
        "commonest class.",
    )


def draw_predictions(by_name: Mapping[str, Predictions], class_names: Sequence[str]) -> Figure:
    """Scenes, their labels, and a column of predictions of each network by its name; one colour a class."""
    scenes = next(iter(by_name.values()))
    columns = {"scene": scenes.images, "labels (black: not counted)": _coloured(scenes.labels)}
    columns |= {name: _coloured(predictions.predicted) for name, predictions in by_name.items()}
    rows, height, width = scenes.labels.shape
    figure = Figure(figsize=(WIDTH, WIDTH / len(columns) * height / width * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for axes, (title, pictures) in zip(grid.T, columns.items(), strict=True):
        axes[0].set_title(title, fontsize="medium")
        for place, picture in zip(axes, pictures, strict=True):
            place.imshow(picture, interpolation="nearest")
            place.set_axis_off()
    patches = [Patch(color=_colour(place), label=name) for place, name in enumerate(class_names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize="small")
    return figure


def _check_comparable(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        values = {what: [each.evaluation[what] for each in (first, run)] for what in ("num_examples", "class_names")}
        values |= {
            f"data.{what}": [each.config["data"].get(what) for each in (first, run)] for what in ("source", "reduction")
        }
        for what, (one, other) in values.items():
            if one != other:
                raise UserError(
                    f"{first.folder} and {run.folder} differ in {what}, {one} and {other}; report them separately"
                )


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by their configuration but for the seed; named by experiment and the fields that tell them apart."""
    groups: dict[str, list[Run]] = {}
    configs = [{**flat(run.config), **FREE, "seed": None} for run in runs]
    for run, config in zip(runs, configs, strict=True):
        others = [other for other in configs if other["experiment"] == config["experiment"]]
        keys = {key for other in others for key in (*other, *config) if other.get(key) != config.get(key)}
        told = [f"{key.rpartition('.')[2]}={config.get(key)}" for key in sorted(keys)]
        groups.setdefault(" ".join([config["experiment"], *told]), []).append(run)
    return groups


def _summary(group: Sequence[Run], measures: Mapping[str, str]) -> dict[str, Any]:
    """Means over the seeds, and mean, smallest and largest of shares under disturbances by level."""
    norms: list[Any] = [max(run.evaluation["weight_norms"].values(), default=None) for run in group]
    keys = [*measures, *(key for _, key, *_ in COLUMNS if key != "largest_weight_norm")]
    values = {key: [run.evaluation[key] for run in group] for key in keys} | {"largest_weight_norm": norms}
    known = {key: [value for value in column if value is not None] for key, column in values.items()}
    disturbed = {key: {} for key in DISTURBED}
    for (key, level), shares in _by_level(group).items():
        disturbed[key][level] = [float(np.mean(shares)), min(shares), max(shares)]
    return {
        **{key: float(np.mean(column)) if column else None for key, column in known.items()},
        **{f"{key}_range": [min(known[key]), max(known[key])] for key in measures},
        **{key: levels for key, levels in disturbed.items() if levels},
        "parameters": group[0].evaluation["parameters"],
        "seeds": [run.evaluation["seed"] for run in group],
    }


def _by_level(group: Sequence[Run]) -> dict[tuple[str, str], list[float]]:
    """The shares of the seeds by key of `DISTURBED` and level, which is a number or ends in one, in rising order."""
    levels = {(key, level) for run in group for key in DISTURBED for level in run.evaluation.get(key, {})}
    return {
        (key, level): [run.evaluation[key][level] for run in group if level in run.evaluation.get(key, {})]
        for key, level in sorted(levels, key=_order)
    }


def _order(column: tuple[str, str]) -> tuple[int, str, float]:
    name, _, size = column[1].rpartition("=")
    return list(DISTURBED).index(column[0]), name, float(size)


def _table(rows: Rows, summary: Mapping[str, dict[str, Any]], measures: Mapping[str, str]) -> Table:
    cells = []
    for name, group in rows.items():
        shares = [ranged(floats([100 * run.evaluation[key] for run in group]), 2) for key in measures]
        means = [(summary[name][key], form, factor) for _, key, form, factor in COLUMNS]
        numbers = ["-" if mean is None else format(factor * mean, form) for mean, form, factor in means]
        cells.append((name, f"{summary[name]['parameters']:,}", str(len(group)), *shares, *numbers))
    tested = next(iter(rows.values()))[0].evaluation["num_examples"]
    header = ("run", "parameters", "seeds", *measures.values(), *(title for title, *_ in COLUMNS))
    note = (
        "Means over seeds, smallest and largest in brackets. Loss in nats. Residual is relative, iterations are "
        "evaluations of the step, |W| is the largest spectral norm before max_norm scales it."
    )
    return Table(f"Test split, {tested:,} examples", header, tuple(cells), note)


def _disturbed_table(rows: Rows) -> list[Table]:
    """Accuracies with disturbed pixels, where a run has any."""
    by_level = {name: _by_level(group) for name, group in rows.items()}
    columns = sorted({column for levels in by_level.values() for column in levels}, key=_order)
    cells = [
        (name, *(ranged(100 * floats(levels.get(column, [np.nan])), 2) for column in columns))
        for name, levels in by_level.items()
    ]
    note = (
        "Shares in percent, pixels in [0, 1]. Salt and pepper: by the share of values that are 0 or 1. Blur: by its "
        "deviation in pixels. Noise: by its deviation. Attack: by the radius of a projected-gradient attack, on "
        "examples evenly spread over the split. Certified: no attack of this radius changes these answers, by a "
        "Lipschitz constant of the network."
    )
    header = ("run", *(f"{DISTURBED[key]}{level}" for key, level in columns))
    return [Table("Test split with disturbed pixels", header, tuple(cells), note)] if columns else []


def _majority(run: Run, measures: Mapping[str, str]) -> dict[str, float]:
    """The measures of always the commonest class of the test split."""
    counts = np.sum(run.evaluation["confusion"], axis=1)
    share, classes = float(counts.max() / max(counts.sum(), 1)), max(np.count_nonzero(counts), 1)
    figures = {"accuracy": share, "class_accuracy": 1 / classes, "intersection_over_union": share / classes}
    return {key: figures[key] for key in measures}


def _verdict(rows: Rows, spec: ReportSpec, floors: Mapping[str, float]) -> list[str]:
    """The best network, chance and majority class, and the seeds."""
    means = {name: float(np.mean([run.evaluation[spec.metric] for run in group])) for name, group in rows.items()}
    ranked = sorted(means.items(), key=lambda row: -row[1])
    unbeaten = [name for name, share in floors.items() if ranked[0][1] <= share]
    words = ", ".join(f"{name} {100 * share:.1f}%" for name, share in floors.items())
    judged = f"no network is better than {' or '.join(unbeaten)}" if unbeaten else "the best network is better"
    counts = sorted({len(group) for group in rows.values()})
    return [
        f"Best {spec.title} on the test split: {', '.join(f'{name} {100 * mean:.1f}%' for name, mean in ranked)}.",
        f"Without a network: {words}; {judged}.",
        ONE_SEED if counts == [1] else MANY_SEEDS.format(", ".join(map(str, counts))),
    ]


def _curves(rows: Rows, spec: ReportSpec) -> Figure:
    """Returns the metric on the validation split against the step, a curve a run."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    tidy(axes, "Validation")
    axes.set(xlabel="training step", ylabel=spec.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for place, (name, group) in enumerate(rows.items()):
        for run, label in zip(group, [name] + [None] * len(group), strict=False):
            known = [row for row in run.rows("validation") if row.get(spec.metric) is not None]
            shares = 100 * floats([row[spec.metric] for row in known])
            axes.plot([row["step"] for row in known], shares, "o-", color=f"C{place}", markersize=3, label=label)
    figure.legend(loc="outside lower center", ncols=1 if max(map(len, rows)) > 50 else 3, fontsize="small")
    return figure


def _predictions(rows: Rows) -> Figure:
    by_name = {name: read_predictions(group[0].folder) for name, group in rows.items()}
    (name, first), *others = by_name.items()
    for other, predictions in others:
        if not np.array_equal(predictions.images, first.images):
            raise UserError(f"{name} and {other} were tested on other scenes; report them separately")
    return draw_predictions(by_name, next(iter(rows.values()))[0].evaluation["class_names"])


def _colour(place: int) -> tuple[float, float, float]:
    """A colour of tab20, which has pairs of a strong and a pale one: the ten strong ones come first."""
    return colormaps["tab20"](2 * place % 20 + place // 10 % 2)[:3]


def _coloured(labels: np.ndarray) -> np.ndarray:
    """The colours of labels; those that are not counted are black."""
    colours = np.zeros((NOT_COUNTED + 1, 3))
    colours[:NOT_COUNTED] = [_colour(place) for place in range(NOT_COUNTED)]
    return colours[labels]
