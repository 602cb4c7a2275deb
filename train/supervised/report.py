"""The report on supervised runs: one table of networks, curves of training, summary.json and a page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.errors import UserError
from train.metrics import read_metrics
from train.report.files import check_folders, flat, read_object, write_files
from train.report.html import figure_html, page_html, table_html
from train.report.panels import MARKERS, WIDTH, png, tidy
from train.report.tables import Table, as_text
from train.supervised.pictures import draw_predictions, read_predictions

__all__ = ["Measure", "write_supervised_report"]


class Measure(NamedTuple):
    """A share of evaluation.json, and what the table calls it."""

    name: str
    title: str


class Run(NamedTuple):
    """One evaluated run."""

    folder: Path
    config: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]


def write_supervised_report(
    folders: Sequence[Path],
    out: Path,
    *,
    measures: Sequence[Measure],
    pictured: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compares evaluated runs; those that differ by the seed alone are one row, with the mean and the range.

    Args:
      folders: Run folders.
      out: Folder to write into.
      measures: What the table shows first; curves are of the first one.
      pictured: Whether runs keep `Predictions`: then those of each row's first run are drawn beside the labels.
      log: Called with the table, as text.

    Returns:
      The summary, as in summary.json.

    Raises:
      UserError: if a folder is not evaluated or damaged, or the runs were tested on other examples.
    """
    check_folders(folders)
    runs = [_read(folder) for folder in folders]
    _check_comparable(runs)
    rows = _grouped(runs)
    table = _table(rows, measures)
    pictures = {"curves": png(_curves(rows, measures[0]))}
    summary = {name: _summarise(group, measures) for name, group in rows.items()}
    parts = [figure_html(pictures["curves"], _caption(measures[0])), table_html(table)]
    if pictured:
        pictures["predictions"] = png(_predictions(rows))
        parts.append(figure_html(pictures["predictions"], "Scenes of the test split, their labels, and predictions."))
    write_files(out, pictures=pictures, page=page_html(_title(runs), parts), summary=summary)
    log(as_text(table))
    log(f"report: {out / 'index.html'}")
    return summary


def _read(folder: Path) -> Run:
    config, evaluation = (read_object(folder / name) for name in ("config.json", "evaluation.json"))
    return Run(folder, config, evaluation, read_metrics(folder / "metrics.jsonl"))


def _check_comparable(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what in ("num_examples", "class_names"):
            if run.evaluation[what] != first.evaluation[what]:
                raise UserError(f"{first.folder} and {run.folder} differ in {what} of their tests; report them apart")
        for what in ("source", "reduction"):
            one, other = (each.config["data"].get(what) for each in (first, run))
            if one != other:
                raise UserError(
                    f"{first.folder} and {run.folder} differ in data.{what}, {one} and {other}; report them apart"
                )


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what their configurations say but for the seed; named by experiment and what tells them apart."""
    found: dict[str, list[Run]] = {}
    configs = [{**flat(run.config), "seed": None, "out": None} for run in runs]
    for run, config in zip(runs, configs, strict=True):
        others = [other for other in configs if other["experiment"] == config["experiment"]]
        keys = {key for other in others for key in (*other, *config) if other.get(key) != config.get(key)}
        told = [f"{key.rpartition('.')[2]}={config.get(key)}" for key in sorted(keys)]
        found.setdefault(" ".join([config["experiment"], *told]), []).append(run)
    return found


def _summarise(group: Sequence[Run], measures: Sequence[Measure]) -> dict[str, Any]:
    names = [measure.name for measure in measures]
    names += ["loss", "residual", "iterations", "converged", "seconds_an_example", "train_seconds"]
    found = {name: _mean([run.evaluation[name] for run in group]) for name in names}
    ranges = {f"{name}_range": _range([run.evaluation[name] for run in group]) for name in names[: len(measures)]}
    norms = [norm for run in group for norm in run.evaluation["weight_norms"].values()]
    return {
        **found,
        **ranges,
        "parameters": group[0].evaluation["parameters"],
        "largest_weight_norm": max(norms, default=None),
        "seeds": [run.evaluation["seed"] for run in group],
    }


def _table(rows: dict[str, list[Run]], measures: Sequence[Measure]) -> Table:
    body = []
    for name, group in rows.items():
        found = _summarise(group, measures)
        shares = [_percent(found[measure.name], found[f"{measure.name}_range"]) for measure in measures]
        body.append((
            name, f"{found['parameters']:,}", str(len(group)), *shares, _number(found["loss"], ".3f"),
            _number(found["residual"], ".1e"), _number(found["iterations"], ".1f"),
            _number(found["largest_weight_norm"], ".2f"), _number(found["seconds_an_example"], ".2f", 1e3),
            _number(found["train_seconds"], ".0f"),
        ))  # fmt: skip
    titles = [measure.title for measure in measures]
    return Table(
        title=f"Test split, {next(iter(rows.values()))[0].evaluation['num_examples']:,} examples",
        header=(
            "run", "parameters", "seeds", *titles, "loss", "residual", "iterations", "largest |W|",
            "ms an example", "train s",
        ),
        rows=tuple(body),
        note="Means over seeds, smallest and largest in brackets. Loss in nats. Residual is relative, iterations are "
        "evaluations of the step, |W| is the largest spectral norm before max_norm scales it. Train s is on the clock.",
    )  # fmt: skip


def _curves(rows: dict[str, list[Run]], measure: Measure) -> Figure:
    solved = any(row["iterations"] is not None for group in rows.values() for run in group for row in _of(run, "train"))
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    panels = figure.subplots(1, 2 if solved else 1, squeeze=False)[0]
    tidy(panels[0], "Validation")
    panels[0].set_ylabel(measure.title)
    for place, (name, group) in enumerate(rows.items()):
        style = {"color": f"C{place}", "marker": list(MARKERS.values())[place % 2], "markersize": 3, "linewidth": 1.2}
        for number, run in enumerate(group):
            validation = _of(run, "validation")
            steps, shares = [row["step"] for row in validation], [100 * row[measure.name] for row in validation]
            panels[0].plot(steps, shares, label=name if number == 0 else None, **style)
    if solved:
        _iterations(panels[1], rows)
    for axes in panels:
        axes.set_xlabel("training step")
    figure.legend(loc="outside lower center", ncols=1 if max(map(len, rows)) > 50 else 3, fontsize="small")
    return figure


def _iterations(axes: Axes, rows: dict[str, list[Run]]) -> None:
    tidy(axes, "Iterations of the equilibrium, training")
    axes.set_ylabel("evaluations of the step, mean of the batch")
    for place, group in enumerate(rows.values()):
        for run in group:
            train = [row for row in _of(run, "train") if row["iterations"] is not None]
            axes.plot([row["step"] for row in train], [row["iterations"] for row in train], color=f"C{place}", lw=0.8)


def _of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [row for row in run.metrics if row["kind"] == kind]


def _predictions(rows: dict[str, list[Run]]) -> Figure:
    found = {name: read_predictions(group[0].folder) for name, group in rows.items()}
    (name, first), *others = found.items()
    for other, predictions in others:
        if not np.array_equal(predictions.images, first.images):
            raise UserError(f"{name} and {other} were tested on other scenes; report them apart")
    return draw_predictions(found, next(iter(rows.values()))[0].evaluation["class_names"])


def _title(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(run.config["experiment"] for run in runs))


def _caption(measure: Measure) -> str:
    return f"{measure.title} on the validation split, and how long the equilibrium took, against training steps."


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def _percent(mean: float, ends: Sequence[float]) -> str:
    several = f" [{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]" if ends[0] != ends[1] else ""
    return f"{100 * mean:.2f}{several}"


def _number(value: float | None, digits: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(scale * value, digits)
