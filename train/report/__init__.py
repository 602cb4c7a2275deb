"""Reports on evaluated run folders, of each kind of task. `records` and `groups` read
and group runs; `tables` and `figures` are the content, which `page` writes.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unroll_jax import constrained

from ..config.errors import UserError
from ..core.task import VALIDATED
from ..metrics import read_predictions
from ..registry import TASKS
from ..runs import read_config, read_recorded
from ..system.files import without_folders
from ..system.terminal import as_text
from . import figures, tables
from .groups import Setting, Variant, by_config, group, unlike
from .page import Picture, Report, write_files
from .records import METHODS, Run, read_runs
from .specs import ReportSpec

Models = Mapping[str, tuple[float, str]]  # score and remark by name
WAYS = {
    "plain": "Plain training lowers the loss after the last layer.",
    "deep_supervision": (
        "Deep supervision also lowers the losses after earlier layers, by fixed"
        " weights."
    ),
    "constrained": (
        "Constrained training lowers the last loss while it keeps the losses of layers"
        " below bounds."
    ),
}


def write_report(
    folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Compares evaluated runs of one kind of task; writes a page and returns its
    summary."""
    return write(make_report(folders), out, log=log)


def write(
    report: Report, out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Writes the files of a report and logs its tables and verdict; returns its
    summary."""
    write_files(out, report)
    for text in (
        *(as_text(table) + "\n" for table in report.tables),
        *report.verdict,
        *report.warnings,
    ):
        log(text)
    log(f"report: {out / 'index.html'}")
    return report.summary


def make_report(folders: Sequence[Path]) -> Report:
    """Returns the report on runs."""
    runs = read_runs([Path(folder) for folder in folders])
    for run in runs:  # raises if it was changed
        (
            read_config(run.folder)
            if run.config.get("task") in TASKS
            else read_recorded(run.folder)
        )
    return layered_report(runs) if runs[0].layered else _other_report(runs)


def layered_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs of a task whose layers have losses."""
    settings = group(runs)
    scores = [table for setting in settings for table in tables.score_table(setting)]
    scores += tables.comparison_table(settings)
    scores += [
        table for setting in settings for table in tables.disturbed_table(setting)
    ]
    by_method = {
        method: [
            table
            for each in settings
            for one in each.of(method)
            for table in tables.layers_table(each, one)
        ]
        for method in METHODS
    }
    exits, accepted = (
        tables.exit_table(settings),
        [one for each in settings for one in tables.acceptance_table(each)],
    )
    drawn = {name: figures.pictures(name, settings) for name in figures.FIGURES}
    sections = {
        "Score": [
            *drawn["layer_losses"],
            *drawn["score_curve"],
            *drawn["frontier"],
            *scores,
        ],
        "Layer by layer": [*drawn["ratios"], *itertools.chain(*by_method.values())],
        "Constraints": [
            table for each in settings for table in tables.constraint_tables(each)
        ],
        "Early exit": [*drawn["early_exit"], *exits],
        "Drafts by the first layers": [*drawn["acceptance"], *accepted],
        "Training": [*drawn["multipliers"], *drawn["violations"]],
    }
    methods = [METHODS[method] for method, made in by_method.items() if made]
    return Report(
        title=(
            f"{runs[0].evaluation['experiment']}: {' against '.join(methods)} training"
        ),
        introduction=_introduction(settings),
        verdict=[verdict(setting) for setting in settings],
        warnings=warnings(settings),
        sections=[section for section in sections.items() if section[1]],
        summary=_summary(settings),
        tables=[*scores, *by_method["constrained"], *exits, *accepted],
    )


def _introduction(settings: Sequence[Setting]) -> str:
    methods = [
        method for method in METHODS if any(setting.of(method) for setting in settings)
    ]
    depths, spec = (
        sorted({setting.num_layers for setting in settings}),
        settings[0].spec,
    )
    depth = f"{', '.join(map(str, depths))} layer{'s' * (depths != [1])}"
    seeds = max(len(one.runs) for setting in settings for one in setting.variants)
    sentences = [
        f"A network of {depth} was trained"
        f" {spec.work}{f', with {seeds} seeds' * (seeds > 1)}."
    ]
    sentences += [WAYS[method] for method in methods]
    for one in [one for setting in settings for one in setting.of("constrained")][:1]:
        allowed = f"{float(one.mean('tolerance')):.0%}"
        sentences += [
            "A run is feasible on a split of the data if it exceeds no bound there by"
            f" more than {allowed}."
        ]
    return " ".join([*sentences, _meaning(spec)])


def _meaning(spec: ReportSpec) -> str:
    return f"The score is the {spec.title}: {spec.note[:1].lower()}{spec.note[1:]}"


def verdict(setting: Setting) -> str:
    """Returns a sentence: the score of every method at the noise of training, the
    best first, with feasibility."""
    at = f" at gamma {setting.gammas[setting.training_index]:g}" * bool(
        setting.spec.gamma
    )
    return (
        f"{tables.capital(setting.title)}:"
        f" {_ranked(setting.spec, at, _models(setting))}"
    )


def warnings(settings: Sequence[Setting]) -> list[str]:
    """Returns messages of runs, those not finished, signs of harmful constraints,
    and unequal comparisons."""
    sentences = []
    for setting in settings:
        members = [run for variant in setting.variants for run in variant.runs]
        for run in members:
            state, steps = (
                run.status.get("state", "unknown"),
                run.status.get("steps", "?"),
            )
            sentences += [
                f"{run.name} is not finished (state: {state}, {steps} steps)."
            ] * (state != "finished")
            sentences += [
                f"{run.name}: {without_folders(str(text))}"
                for text in run.status.get("messages") or []
            ]
            sentences += run.lost
        plain = {
            one.label: other
            for one, other in setting.pairs()
            if other.method == "plain"
        }
        for one in setting.of("constrained"):
            sentences += [
                f"{tables.capital(one.title)}: {line}"
                for line in _advice(one, plain.get(one.label))
            ]
        seeds = {
            tuple(sorted(run.evaluation["seed"] for run in variant.runs))
            for variant in setting.variants
        }
        unequal = ["steps"] * (
            len({run.status["steps"] for run in members if "steps" in run.status}) > 1
        )
        unequal += ["seeds"] * (
            len(seeds) > 1 or any(len(set(each)) < len(each) for each in seeds)
        )
        unequal += sorted(
            {field for pair in setting.pairs() for field in unlike(*pair)}
        )
        if unequal:
            sentences.append(
                f"{tables.capital(setting.title)}: compared runs differ in"
                f" {', '.join(unequal)}."
            )
    return sentences


def _advice(one: Variant, plain: Variant | None) -> list[str]:
    """Signs that constraints do harm: on the test split, and of f_0 on validation data.
    There, samples and noise are the same at every step, so the loss of a raw input
    stays; from a train batch to the test split it would not.
    """
    losses, bounds, multipliers = (
        one.mean(key) for key in ("layer_losses", "bounds", "multipliers")
    )
    if one.option("constraints.last") is not None or np.isnan(losses).any():
        return []  # the multiplier of a bound on the last loss is its weight
    bound, layers = (
        ~np.isnan(bounds),
        one.runs[0].evaluation.get("layers", range(len(losses))),
    )
    failed = one.feasible_runs < len(one.runs) and list(layers) == list(
        range(len(losses))
    )
    known = None if plain is None else plain.mean("layer_losses")
    if known is not None:
        known = (
            np.where(np.isnan(known), known[-1], known)
            if np.isfinite(known[[0, -1]]).all()
            else None
        )
    lines = constrained.descent_warnings(
        losses,
        multipliers[bound],
        bounds=bounds[bound] if failed else None,
        plain_losses=known,
    )
    ends, plain_ends = _validated(one), None if plain is None else _validated(plain)
    # only of f_0; f_0 of the plain run shows a rise before the first validation
    if ends is not None:
        plain_first, plain_last = (ends[0], None) if plain_ends is None else plain_ends
        first = np.minimum(ends[0], plain_first)
        lines += constrained.descent_warnings(
            ends[-1], [0.0], start_losses=first, plain_losses=plain_last
        )
    return lines


def _validated(one: Variant) -> np.ndarray | None:
    """Losses of layers at the first validation and at the best checkpoint's, (2, L +
    1); None if not known."""
    rows = [
        (run.validations, run.evaluation.get("best_step", np.inf)) for run in one.runs
    ]
    until = [columns["layer_losses"][columns["step"] <= best] for columns, best in rows]
    ends = (
        np.mean([losses[[0, -1]] for losses in until], axis=0)
        if all(map(len, until))
        else np.array(np.nan)
    )
    return ends if np.isfinite(ends).all() else None


def _other_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs without losses of layers: every figure, and of
    classifiers a sentence and pictures."""
    spec, rows = runs[0].spec, dict[str, tuple[Run, ...]]()
    for experiment in dict.fromkeys(str(run.config["experiment"]) for run in runs):
        members = by_config(
            [run for run in runs if run.config["experiment"] == experiment]
        )
        rows |= {
            f"{experiment} {label}".strip(): cell for label, cell in members.items()
        }
    made, drawn, sentences, floors = tables.figures_table(rows), [], [], {}
    if not spec.layered:
        names, scenes = (
            runs[0].evaluation["class_names"],
            spec.metric == "intersection_over_union",
        )
        floors = _without_network(spec, np.sum(runs[0].evaluation["confusion"], axis=1))
        drawn = _predictions(rows, names) if scenes else []
        caption = (
            f"Share of the test {'pixels' if scenes else 'images'} of each class"
            " predicted as each class, in percent."
        )
        for place, (name, each) in enumerate(rows.items()):
            counts = np.sum([run.evaluation["confusion"] for run in each], axis=0)
            picture = figures.confusion(name, counts, names)
            drawn.append(
                Picture(
                    f"confusion_{place + 1}" if place else "confusion", caption, picture
                )
            )
        scores = {
            name: np.mean([run.evaluation[spec.metric] for run in each])
            for name, each in rows.items()
        }
        ranked = _ranked(
            spec, "", {name: (float(score), "") for name, score in scores.items()}
        )
        sentences = [ranked, f"Without a network: {_shown(spec, floors)}."]
    return Report(
        title=", ".join(dict.fromkeys(str(run.config["experiment"]) for run in runs)),
        introduction=f"Networks were trained {spec.work}. {_meaning(spec)}",
        sections=[("", [*drawn, *made])],
        summary=without_folders(
            {"floors": floors, "runs": [run.summary() for run in runs]}
        ),
        tables=made,
        verdict=sentences,
        warnings=[line for run in runs for line in run.lost],
    )


def _without_network(spec: ReportSpec, counts: np.ndarray) -> dict[str, float]:
    """Scores of guesses, from the test examples of each class: at random, and the
    most frequent class."""
    share = float(counts.max() / max(counts.sum(), 1))
    if spec.metric == "intersection_over_union":
        return {"majority class": share / max(np.count_nonzero(counts), 1)}
    return {"chance": 1 / len(counts), "majority class": share}


def _predictions(
    rows: Mapping[str, Sequence[Run]], names: Sequence[str]
) -> list[Picture]:
    """Scenes with the predictions of each network."""
    predicted = {name: read_predictions(each[0].folder) for name, each in rows.items()}
    shown = [one.images for one in predicted.values()]
    if not all(np.array_equal(images, shown[0]) for images in shown):
        raise UserError(
            f"{', '.join(rows)} were tested on different scenes; report them separately"
        )
    scenes = figures.scenes(predicted, names)
    return [
        Picture("predictions", "Test scenes, labels, predictions.", scenes, wide=True)
    ]


def _models(setting: Setting) -> Models:
    """The best variant of each method at the gamma of training, with its
    feasibility."""
    models: dict[str, tuple[float, str]] = {}
    for variants in filter(None, map(setting.of, METHODS)):
        scores = [
            float(one.scores()[:, setting.training_index].mean()) for one in variants
        ]
        best = int(np.argmin([_order(setting.spec, score) for score in scores]))
        chosen = (
            f" (best of {len(variants)}: {variants[best].label})"
            if len(variants) > 1
            else ""
        )
        models[f"{METHODS[variants[best].method]}{chosen}"] = (
            scores[best],
            _feasibility(variants[best]),
        )
    return models


def _order(spec: ReportSpec, score: float) -> float:
    """Returns a sort key, smaller for a better score; scores that are not numbers
    come last."""
    return np.inf if np.isnan(score) else -score if spec.higher_is_better else score


def _shown(spec: ReportSpec, scores: Mapping[str, float]) -> str:
    scale, digits = (100, 1) if spec.percent else (1, spec.digits)
    return ", ".join(
        f"{name} {tables.number(scale * x, digits)}{'%' * spec.percent}"
        for name, x in scores.items()
    )


def _ranked(spec: ReportSpec, place: str, models: Models) -> str:
    best_first = sorted(models.items(), key=lambda item: _order(spec, item[1][0]))
    words = [_shown(spec, {name: score}) + note for name, (score, note) in best_first]
    return (
        f"{tables.capital(spec.title)}{place}{', best first' * (len(words) > 1)}:"
        f" {', '.join(words)}."
    )


def _feasibility(variant: Variant) -> str:
    """Feasibility of a constrained variant by split, and the layer that is furthest
    out or has the least room."""
    if variant.method != "constrained":
        return ""
    margins, words = variant.margins(), f" {_on_split(variant, 'test', 'feasible')}"
    if np.isfinite(margins).any():
        layer, margin = (
            int(np.nanargmin(margins) % margins.shape[1]),
            np.nanmin(margins),
        )
        number = variant.runs[0].evaluation.get("layers", range(margins.shape[1]))[
            layer
        ]
        where = "below its bound"
        if margin < 0:
            where = "over its bound"
            if all(run.evaluation["feasible"] for run in variant.runs):
                where += ", within the tolerance"
        words += f" (layer {number} is {abs(margin):.1%} {where})"
    return (
        f"{words}, {_on_split(variant, 'validation', VALIDATED)}"
        if variant.has(VALIDATED)
        else words
    )


def _on_split(variant: Variant, split: str, key: str) -> str:
    count = len(variant.runs)
    failed = sum(not run.evaluation[key] for run in variant.runs)
    seeds = f" for {failed or count} of {count} seeds" * (count > 1)
    return f"{'NOT ' * bool(failed)}feasible on the {split} split{seeds}"


def _summary(settings: Sequence[Setting]) -> dict[str, Any]:
    """Returns every figure of a report, ready for strict JSON: a number that is not
    finite is None. ``methods`` and ``floors`` are of the first setting; ``groups`` has
    all settings.
    """
    groups = [
        {
            "num_layers": setting.num_layers,
            "train_gamma": setting.train_gamma,
            "floors": {
                name: dict(zip(setting.first.gammas, x, strict=True))
                for name, x in setting.floors().items()
            },
            "methods": {
                one.method + f" ({one.label})" * bool(one.label): one.figures()
                for one in setting.variants
            },
        }
        for setting in settings
    ]
    summary = {
        "experiment": settings[0].first.evaluation["experiment"],
        "verdict": {setting.title: verdict(setting) for setting in settings},
        **groups[0],
        "groups": groups,
        "runs": [
            run.summary()
            for setting in settings
            for variant in setting.variants
            for run in variant.runs
        ],
    }
    strict = json.dumps(summary, default=lambda array: array.tolist())
    return without_folders(json.loads(strict, parse_constant=lambda _: None))
