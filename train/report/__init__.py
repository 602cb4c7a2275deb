"""Reports on evaluated run folders, of each kind of task. `records` and `groups` read
and group runs. `tables`, `figures` and `words` are the content, which `page` writes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config.errors import UserError
from ..config.options import to_json
from ..core.folder import read_config, read_recorded
from ..core.metrics import read_predictions
from ..registry import TASKS
from ..system.files import PARTIAL
from ..system.terminal import Table, as_text
from . import figures, tables, words
from .groups import by_config, group
from .page import SUMMARY, Picture, Report, write_files
from .records import METHODS, ReportSpec, Run, errors_of, read_runs

# The sections on runs whose layers have losses: figures by name, and tables.
SECTIONS: dict[str, Sequence[str | tables.Maker]] = {
    "Score": (
        "layer_losses",
        "score_curve",
        "frontier",
        tables.scores,
        tables.comparison,
        tables.disturbed,
    ),
    "Layer by layer": ("ratios", tables.layers),
    "Constraints": (tables.constraints,),
    "Early exit": ("early_exit", tables.exits),
    "Drafts by the first layers": ("acceptance", tables.acceptance),
    "Training": ("multipliers", "violations"),
}

PRINTED = "Constraints"  # the section that evaluations have printed


def write_report(
    folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Compares evaluated runs of one kind of task. Writes a page and returns its
    summary."""
    return write(make_report(folders, log=log), out, log=log)


def write(
    report: Report, out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Writes the files of a report and logs its tables and verdict. Returns its
    summary."""
    held = [path for path in out.glob("*") if path.suffix != PARTIAL]
    if held and not (out / SUMMARY).exists():
        raise UserError(
            f"--out {out} holds files of something else; pass an empty or a new folder"
        )
    summary = write_files(out, report)
    for heading, blocks in report.sections:
        for block in blocks if heading != PRINTED else ():
            if isinstance(block, Table):
                log(as_text(block) + "\n")
    for text in (*report.verdict, *report.warnings, f"report: {out / 'index.html'}"):
        log(text)
    return summary


def make_report(
    folders: Sequence[Path], *, log: Callable[[str], None] = print
) -> Report:
    """Returns the report on runs. Files and reports are passed over: `runs/sweep/*` and
    `runs/demo/*` have some."""
    places = [Path(folder) for folder in folders]
    others = [one for one in places if one.is_file() or (one / SUMMARY).is_file()]
    if others:
        log(f"passed over, as no runs: {', '.join(map(str, others))}")
    runs = read_runs([folder for folder in places if folder not in others])
    for place, run in enumerate(runs):
        if run.config.get("task") not in TASKS:
            read_recorded(run.folder)  # raises if it was changed
            continue
        # options that its version lacked have their defaults
        _, options = read_config(run.folder)
        runs[place] = dataclasses.replace(run, config=run.config | to_json(options))
    return layered_report(runs) if runs[0].layered else _other_report(runs)


@errors_of("evaluation.json of a run")
def layered_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs of a task whose layers have losses."""
    settings = group(runs)
    methods = [
        title
        for method, title in METHODS.items()
        if any(setting.of(method) for setting in settings)
    ]
    sections = []
    for heading, parts in SECTIONS.items():
        blocks: list[Picture | Table] = []
        for part in parts:
            if isinstance(part, str):
                blocks += figures.pictures(part, settings)
            else:
                blocks += tables.make_tables(part, settings)
        if blocks:
            sections.append((heading, blocks))
    return Report(
        title=f"{runs[0].experiment}: {' against '.join(methods)} training",
        introduction=words.introduction(settings),
        verdict=[words.verdict(setting) for setting in settings],
        warnings=words.warnings(settings),
        sections=sections,
        runs=runs,
    )


def _other_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs without losses of layers: every figure, and of
    classifiers a sentence and pictures."""
    spec = runs[0].spec
    rows: dict[str, list[Run]] = {}
    names = {run.config["experiment"]: run.experiment for run in runs}
    for experiment, name in names.items():
        members = [run for run in runs if run.config["experiment"] == experiment]
        for label, cell in by_config(members).items():
            rows[f"{name} {label}".strip()] = cell
    blocks: list[Picture | Table] = [] if spec.layered else _pictures(spec, rows)
    blocks.append(tables.evaluation_table(rows))
    return Report(
        title=", ".join(names.values()),
        introduction=f"Networks were trained {spec.work}. {words.meaning(spec)}",
        sections=[("", blocks)],
        verdict=[] if spec.layered else _ranking(spec, rows),
        warnings=[line for item in rows.items() for line in words.on_runs(*item)],
        runs=runs,
    )


def _ranking(spec: ReportSpec, rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """Scores of classifiers, and of guesses: at random, and the most frequent class."""
    scores = {
        name: float(np.mean([run.evaluation[spec.metric] for run in each]))
        for name, each in rows.items()
    }
    notes = {name: ", ".join(words.not_final(each)) for name, each in rows.items()}
    first = next(iter(rows.values()))[0]
    counts = np.sum(first.evaluation["confusion"], axis=1)
    share = float(counts.max() / max(counts.sum(), 1))
    floors = {"majority class": share}
    if spec.metric == "accuracy":  # no guess at random is certified
        floors["chance"] = 1 / len(counts)
    if spec.metric == "intersection_over_union":
        floors["majority class"] /= max(np.count_nonzero(counts), 1)
    without = words.ranked(spec, floors, {}, " without a network")
    return [words.ranked(spec, scores, notes), without]


def _certified_pictures(
    rows: Mapping[str, Sequence[Run]], class_names: Sequence[str]
) -> list[Picture]:
    """Certified accuracy by radius, and of each network the test images that the
    smallest disturbances may change."""
    evaluations = {
        name: [run.evaluation for run in each] for name, each in rows.items()
    }
    caption = (
        "Share of the test images that no disturbance up to a radius can change, and"
        " dots: the share that attacks of that length leave right."
    )
    pictures = [
        Picture("certified", caption, figures.certified(evaluations), wide=True)
    ]
    caption = (
        "Right answers with the smallest radii, of the first seed: label and radius."
    )
    for place, (name, each) in enumerate(rows.items(), start=1):
        first = each[0]
        radii = [*first.evaluation["smallest_radii"].values()]
        shown = read_predictions(first.folder)
        drawn = figures.nearest(name, shown, radii, class_names)
        file = f"nearest_{place}" if place > 1 else "nearest"
        pictures.append(Picture(file, caption, drawn, wide=True))
    return pictures


def _pictures(spec: ReportSpec, rows: Mapping[str, Sequence[Run]]) -> list[Any]:
    """Confusion matrices, and of scenes the predictions of each network."""
    names = next(iter(rows.values()))[0].evaluation["class_names"]
    pictures = []
    if spec.metric == "intersection_over_union":
        predicted = {
            name: read_predictions(each[0].folder) for name, each in rows.items()
        }
        first, *others = (one.images for one in predicted.values())
        if not all(np.array_equal(images, first) for images in others):
            raise UserError(
                f"{', '.join(rows)} were tested on different scenes; report them"
                " separately"
            )
        scenes = figures.scenes(predicted, names)
        caption = "Test scenes, labels, predictions."
        pictures.append(Picture("predictions", caption, scenes, wide=True))
    if spec.metric == "certified":
        pictures += _certified_pictures(rows, names)
    caption = (
        "Share of the test data of each class predicted as each class, in percent."
    )
    for place, (name, each) in enumerate(rows.items(), start=1):
        counts = np.sum([run.evaluation["confusion"] for run in each], axis=0)
        file = f"confusion_{place}" if place > 1 else "confusion"
        pictures.append(Picture(file, caption, figures.confusion(name, counts, names)))
    return pictures
