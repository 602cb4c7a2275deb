"""The report on supervised runs: one table of networks, curves of training, summary.json and a page."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from train.errors import UserError
from train.metrics import read_metrics, write_json
from train.report.html import figure_html, page_html, table_html
from train.report.panels import DPI, MARKERS, WIDTH, tidy
from train.report.tables import Table, as_text

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
    folders: Sequence[Path], out: Path, *, measures: Sequence[Measure], log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Compares evaluated runs; those that differ by the seed alone are one row, with the mean and the range.

    Returns:
      The summary, as in summary.json.

    Raises:
      UserError: if a folder is not evaluated or damaged, or the runs were tested on other examples.
    """
    runs = [_read(Path(folder)) for folder in folders]
    _check_comparable(runs)
    rows = _grouped(runs)
    table = _table(rows, measures)
    pictures = {"curves.png": _png(_curves(rows, measures[0]))}
    summary = {name: _summarise(group, measures) for name, group in rows.items()}
    parts = [figure_html(pictures["curves.png"], _caption(measures[0])), table_html(table)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            (out / name).write_bytes(picture)
        (out / "index.html").write_text(page_html(_title(runs), parts), encoding="utf-8")
        write_json(out / "summary.json", summary)
    except OSError as error:
        raise UserError(f"cannot write the report to {out} ({error.strerror}); choose another folder") from None
    log(as_text(table))
    log(f"report: {out / 'index.html'}")
    return summary


def _read(folder: Path) -> Run:
    config, evaluation = (_read_object(folder / name) for name in ("config.json", "evaluation.json"))
    return Run(folder, config, evaluation, read_metrics(folder / "metrics.jsonl"))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(
            f"run {path.parent} has no {path.name}; run `python -m train evaluate {path.parent}` first"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); evaluate or train the run again") from None


def _check_comparable(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what in ("num_examples", "class_names"):
            if run.evaluation[what] != first.evaluation[what]:
                raise UserError(f"{first.folder} and {run.folder} differ in {what} of their tests; report them apart")


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what their configurations say but for the seed; named by experiment and what tells them apart."""
    found: dict[str, list[Run]] = {}
    configs = [{**_flat(run.config), "seed": None, "out": None} for run in runs]
    for run, config in zip(runs, configs, strict=True):
        others = [other for other in configs if other["experiment"] == config["experiment"]]
        keys = {key for other in others for key in (*other, *config) if other.get(key) != config.get(key)}
        told = [f"{key.rpartition('.')[2]}={config.get(key)}" for key in sorted(keys)]
        found.setdefault(" ".join([config["experiment"], *told]), []).append(run)
    return found


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    items: dict[str, Any] = {}
    for key, value in config.items():
        items.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return items


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
        note="Means over seeds, smallest and largest in brackets. Loss in nats; relative residual; |W| before scaling.",
    )  # fmt: skip


def _curves(rows: dict[str, list[Run]], measure: Measure) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    tidy(left, "Validation")
    tidy(right, "Iterations of the equilibrium, training")
    for place, (name, group) in enumerate(rows.items()):
        style = {"color": f"C{place}", "marker": list(MARKERS.values())[place % 2], "markersize": 3, "linewidth": 1.2}
        for number, run in enumerate(group):
            label = name if number == 0 else None
            validation = [row for row in run.metrics if row["kind"] == "validation"]
            steps = [row["step"] for row in validation]
            left.plot(steps, [100 * row[measure.name] for row in validation], label=label, **style)
            train = [row for row in run.metrics if row["kind"] == "train" and row["iterations"] is not None]
            right.plot([row["step"] for row in train], [row["iterations"] for row in train], color=f"C{place}", lw=0.8)
    left.set_ylabel(measure.title)
    right.set_ylabel("evaluations of the step, mean of the batch")
    for axes in (left, right):
        axes.set_xlabel("training step")
    figure.legend(loc="outside lower center", ncols=1 if max(map(len, rows)) > 50 else 3, fontsize="small")
    return figure


def _title(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(run.config["experiment"] for run in runs))


def _caption(measure: Measure) -> str:
    return f"{measure.title} on the validation split, and how long the equilibrium took, against training steps."


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


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
