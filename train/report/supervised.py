"""Reports on supervised runs: one table of networks, curves of training, and predictions for scenes beside labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..config.errors import UserError
from ..config.run import FREE
from ..data.pictures import NOT_COUNTED
from ..metrics import Predictions, read_predictions
from ..system.terminal import Table
from . import Block, Picture, Report
from .panels import MARKERS, WIDTH, tidy
from .record import Run, flat, read_runs

UNCOUNTED = (0.0, 0.0, 0.0)


class Measure(NamedTuple):
    """A share of evaluation.json, and what the table calls it."""

    name: str
    title: str


ACCURACY = (Measure("accuracy", "accuracy %"),)
SEGMENTATION = (
    Measure("intersection_over_union", "mIoU %"),
    Measure("class_accuracy", "mAcc %"),
    Measure("accuracy", "aAcc %"),
)
# Shares of evaluation.json by level, and what the table calls a level; disturbances have names of their own.
DISTURBED = {
    "disturbed_accuracy": "",
    "disturbed_intersection_over_union": "mIoU, ",
    "noise_accuracy": "noise ",
    "attack_accuracy": "attack ",
    "certified_accuracy": "certified ",
}
Rows = Mapping[str, Sequence[Run]]  # of the table, by name: runs that differ by the seed alone


def images(folders: Sequence[Path]) -> Report:
    """The report on runs on images: accuracies, and curves of training."""
    return _report(folders, ACCURACY)


def scenes(folders: Sequence[Path]) -> Report:
    """The same on scenes, by three measures; predictions of each row's first run are drawn beside the labels."""
    return _report(folders, SEGMENTATION, pictured=True)


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


def _report(folders: Sequence[Path], measures: Sequence[Measure], *, pictured: bool = False) -> Report:
    """A table of the measures, and curves of the first one."""
    runs = read_runs(folders)
    _check_comparable(runs)
    rows = _grouped(runs)
    summary = {name: _summarise(group, measures) for name, group in rows.items()}
    table = _table(summary, measures, runs[0].evaluation["num_examples"])
    how = f"{measures[0].title} on the validation split, and how long the equilibrium took, against training steps."
    tables = [table, *_disturbed_table(summary)]
    blocks: list[Block] = [Picture("curves", how, _curves(rows, measures[0])), *tables]
    if pictured:
        shown = "Scenes of the test split, their labels, and predictions."
        blocks.append(Picture("predictions", shown, _predictions(rows)))
    title = ", ".join(dict.fromkeys(run.config["experiment"] for run in runs))
    return Report(title, [("", blocks)], summary, tables=tables, floor=_floor(runs[0], measures))


def _floor(run: Run, measures: Sequence[Measure]) -> str:
    """The measures of always the commonest class of the test split."""
    counts = np.sum(run.evaluation["confusion"], axis=1)
    share, classes = counts.max() / max(counts.sum(), 1), max(np.count_nonzero(counts), 1)
    floors = {"accuracy": share, "class_accuracy": 1 / classes, "intersection_over_union": share / classes}
    figures = ", ".join(f"{one.title.removesuffix(' %')} {floors[one.name]:.2%}" for one in measures)
    return f"{figures}, of always the commonest class."


def _check_comparable(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        pair = f"{first.folder} and {run.folder} differ in"
        for what in ("num_examples", "class_names"):
            if run.evaluation[what] != first.evaluation[what]:
                raise UserError(f"{pair} {what} of their tests; report them apart")
        for what in ("source", "reduction"):
            one, other = (each.config["data"].get(what) for each in (first, run))
            if one != other:
                raise UserError(f"{pair} data.{what}, {one} and {other}; report them apart")


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what their configurations say but for the seed; named by experiment and what tells them apart."""
    groups: dict[str, list[Run]] = {}
    configs = [{**flat(run.config), **FREE, "seed": None} for run in runs]
    for run, config in zip(runs, configs, strict=True):
        others = [other for other in configs if other["experiment"] == config["experiment"]]
        keys = {key for other in others for key in (*other, *config) if other.get(key) != config.get(key)}
        told = [f"{key.rpartition('.')[2]}={config.get(key)}" for key in sorted(keys)]
        groups.setdefault(" ".join([config["experiment"], *told]), []).append(run)
    return groups


def _summarise(group: Sequence[Run], measures: Sequence[Measure]) -> dict[str, Any]:
    shares = [measure.name for measure in measures]
    others = ("loss", "residual", "iterations", "converged", "seconds_an_example", "train_seconds")
    values = {name: [run.evaluation[name] for run in group] for name in (*shares, *others)}
    known = {name: [value for value in column if value is not None] for name, column in values.items()}
    return {
        **{name: float(np.mean(column)) if column else None for name, column in known.items()},
        **{f"{name}_range": [min(values[name]), max(values[name])] for name in shares},
        **{name: levels for name in DISTURBED if (levels := _by_level(group, name))},
        "parameters": group[0].evaluation["parameters"],
        "largest_weight_norm": max(
            (norm for run in group for norm in run.evaluation["weight_norms"].values()), default=None
        ),
        "seeds": [run.evaluation["seed"] for run in group],
    }


def _table(summary: Mapping[str, dict[str, Any]], measures: Sequence[Measure], tested: int) -> Table:
    columns = (
        ("loss", "loss", ".3f", 1.0), ("residual", "residual", ".1e", 1.0), ("iterations", "iterations", ".1f", 1.0),
        ("largest |W|", "largest_weight_norm", ".2f", 1.0), ("ms an example", "seconds_an_example", ".2f", 1e3),
        ("train s", "train_seconds", ".0f", 1.0),
    )  # fmt: skip
    rows = []
    for name, figures in summary.items():
        shares = [_percent(figures[one.name], *figures[f"{one.name}_range"]) for one in measures]
        numbers = [
            "-" if figures[key] is None else format(scale * figures[key], form) for _, key, form, scale in columns
        ]
        rows.append((name, f"{figures['parameters']:,}", str(len(figures["seeds"])), *shares, *numbers))
    titles = (*(measure.title for measure in measures), *(title for title, *_ in columns))
    return Table(
        title=f"Test split, {tested:,} examples",
        header=("run", "parameters", "seeds", *titles),
        rows=tuple(rows),
        note="Means over seeds, smallest and largest in brackets. Loss in nats. Residual is relative, iterations are "
        "evaluations of the step, |W| is the largest spectral norm before max_norm scales it. Train s is on the clock.",
    )


def _by_level(group: Sequence[Run], name: str) -> dict[str, list[float]]:
    """Mean, smallest and largest accuracy at every level that a run of the group has, in rising order."""
    shares: dict[str, list[float]] = {}
    for run in group:
        for level, share in run.evaluation.get(name, {}).items():
            shares.setdefault(level, []).append(share)
    return {
        level: [float(np.mean(shares[level])), min(shares[level]), max(shares[level])]
        for level in sorted(shares, key=_order)
    }


def _disturbed_table(summary: Mapping[str, dict[str, Any]]) -> list[Table]:
    """Accuracies with disturbed pixels, where a run has any."""
    columns = [
        (name, level)
        for name in DISTURBED
        for level in sorted({level for figures in summary.values() for level in figures.get(name, {})}, key=_order)
    ]
    rows = [
        (
            row,
            *(
                "-" if level not in figures.get(name, {}) else _percent(*figures[name][level])
                for name, level in columns
            ),
        )
        for row, figures in summary.items()
    ]
    note = (
        "Accuracies (of scenes mIoU) in percent, pixels in [0, 1]. Salt and pepper: by the share of values that are 0 "
        "or 1. Blur: by its deviation in pixels. Noise: by its deviation. Attack: by the radius of a projected-"
        "gradient attack, on examples evenly spread over the split. Certified: no attack of this radius changes these "
        "answers, by a Lipschitz constant of the network."
    )
    header = ("run", *(f"{DISTURBED[name]}{level}" for name, level in columns))
    return [Table("Test split with disturbed pixels", header, tuple(rows), note)] if columns else []


def _order(level: str) -> tuple[str, float]:
    """A level, or the label of a disturbance, in rising order."""
    name, _, size = level.rpartition("=")
    return name, float(size)


def _curves(rows: Rows, measure: Measure) -> Figure:
    panelled = any(
        row["iterations"] is not None for group in rows.values() for run in group for row in run.rows("train")
    )
    figure = Figure(figsize=(WIDTH, 7.2 if panelled else 3.8), layout="constrained")
    panels = figure.subplots(2 if panelled else 1, 2 if panelled else 1, squeeze=False).ravel()
    tidy(panels[0], "Validation")
    panels[0].set_ylabel(measure.title)
    for place, (name, group) in enumerate(rows.items()):
        style = {"color": f"C{place}", "marker": list(MARKERS.values())[place % 2], "markersize": 3, "linewidth": 1.2}
        for number, run in enumerate(group):
            steps, shares = _curve(run.rows("validation"), measure.name)
            panels[0].plot(steps, [100 * share for share in shares], label=name if number == 0 else None, **style)
    if panelled:
        _draw_solves(panels[1:], rows)
    for axes in panels:
        axes.set_xlabel("training step")
    figure.legend(loc="outside lower center", ncols=1 if max(map(len, rows)) > 50 else 3, fontsize="small")
    return figure


def _draw_solves(panels: np.ndarray, rows: Rows) -> None:
    """Iterations and residuals of the equilibria over training, and the norms of W with their bounds."""
    for axes, title, unit, scale in zip(
        panels,
        ("Iterations of the equilibrium, training", "Residual of the equilibrium, training", "Norms of W as trained"),
        ("evaluations of the step, mean of the batch", "relative, mean of the batch", "solid: norm; dashed: bound"),
        ("linear", "log", "log"),
        strict=True,
    ):
        tidy(axes, title)
        axes.set_ylabel(unit)
        axes.set_yscale(scale)
    for place, group in enumerate(rows.values()):
        for run in group:
            train = [row for row in run.rows("train") if row["iterations"] is not None]
            for axes, name in zip(panels, ("iterations", "residual"), strict=False):
                axes.plot(*_curve(train, name), color=f"C{place}", lw=0.8)
            for name, style in (("weight_norms", "-"), ("weight_norm_bounds", "--")):
                if known := [row for row in run.rows("validation") if name in row]:
                    panels[2].plot(*_curve(known, name), color=f"C{place}", ls=style, lw=1.2)
    panels[2].set_visible(panels[2].has_data())  # monotone operator networks have no W to bound


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[Any]]:
    return [row["step"] for row in rows], [row[name] for row in rows]


def _predictions(rows: Rows) -> Figure:
    by_name = {name: read_predictions(group[0].folder) for name, group in rows.items()}
    (name, first), *others = by_name.items()
    for other, predictions in others:
        if not np.array_equal(predictions.images, first.images):
            raise UserError(f"{name} and {other} were tested on other scenes; report them apart")
    return draw_predictions(by_name, next(iter(rows.values()))[0].evaluation["class_names"])


def _percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.2f}" + (f" [{100 * low:.2f}, {100 * high:.2f}]" if low != high else "")


def _colour(place: int) -> tuple[float, float, float]:
    """Returns a colour of tab20, which has pairs of a strong and a pale one: the ten strong ones come first."""
    return colormaps["tab20"](2 * place % 20 + place // 10 % 2)[:3]


def _coloured(labels: np.ndarray) -> np.ndarray:
    colours = np.zeros((NOT_COUNTED + 1, 3))
    colours[:NOT_COUNTED] = [_colour(place) for place in range(NOT_COUNTED)]
    colours[NOT_COUNTED] = UNCOUNTED
    return colours[labels]
