"""The report on text runs: figures, a self-contained page, strict-JSON summary and tables, from evaluated runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from train.report.groups import METHOD_NAMES, Setting, Variant, group
from train.report.html import figure_html, page_html, table_html
from train.report.page import environment_table, layers_html, runs_html, warnings_html
from train.report.publish import publish
from train.report.read import METHODS, Run
from train.report.tables import Table, feasibility_table, number
from train.report.verdict import feasibility, notes, state_words
from train.text.figures import draw_text
from train.text.tables import accuracy_table, area_table, areas, exit_table

__all__ = ["compare", "write_text_report"]

CAPTIONS = {
    "accuracy_curve": "Accuracy on held-out texts against the strength of the noise on their embeddings: gamma is its "
    "standard deviation (under --noise variance: its variance) over the standard deviation of clean embeddings as "
    "training starts with them; those that are learned may outgrow it. Bands: smallest to largest seed.",
    "layer_losses": "Held-out cross entropy of the shared readout after every layer, at the noise of training. A "
    "constrained model is feasible where its curve stays at or under the bounds, which follow its own previous layer: "
    "bound of layer l = (1 − α) × loss of layer l − 1.",
    "error_rates": "Share of held-out texts that the shared readout is wrong about after every layer.",
    "ratios": "How much each layer changes the loss of each single text, all layers together; left of 1 it lowers the "
    "loss. Constraints bind the mean, so single texts may rise; the paper reports a mean ratio of 0.87 and descent in "
    "70.8% of steps.",
    "early_exit": "Early exit: accuracy against the layers run, over all thresholds of the predicted improvement.",
    "ablation": "Constrained runs that differ in one number of the config only. Left: accuracy at the training noise "
    "and its mean over the stronger ones. Right: violation / bound of the worst layer on held-out data; a run is "
    "feasible at or under the tolerance. Points are means over the seeds, bars from the smallest to the largest seed.",
    "multipliers": "Multiplier and violation of every layer's constraint while training, mean over the seeds.",
    "training_loss": "Loss of the last layer on training batches (running mean) and on the validation split (dots).",
}


def write_text_report(run_folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compares evaluated runs on text, as `train.report.publish.publish` says."""
    return publish(
        run_folders, out, draw=draw_text, render=_render, tables=_tables, verdicts=_verdicts, more=_more, log=log
    )


def compare(setting: Setting) -> str:
    """Verdict on one setting: is the constrained model feasible, whose area is larger, and what that costs."""
    plain, constrained = setting.of("erm"), setting.of("constrained")
    sentences = [feasibility(variant) for variant in constrained]
    if not plain or not constrained:
        missing = "constrained" if plain else "erm"
        sentences.append(f"No run of method {missing} was given here to compare with.")
    else:
        sentences += [_duel(setting, other, own) for own, other in setting.duels()]
        alone = [other for own, other in setting.pairs() if other and own is None]
        sentences += [f"Compared with none: {one.title}, area {number(areas(one).mean(), 3)}." for one in alone]
        if all(len(variant.runs) == 1 for variant in setting.variants):
            sentences.append("One seed each: how much of this is chance is not known.")
    return f"{setting.title[:1].upper()}{setting.title[1:]}: " + " ".join(sentences)


def _duel(setting: Setting, plain: Variant, constrained: Variant) -> str:
    own, other = areas(constrained), areas(plain)
    overlap = len(own) > 1 and len(other) > 1 and own.min() <= other.max() and other.min() <= own.max()
    doubt = ", but the seeds' ranges overlap" if overlap else ""
    clean = 100 * (constrained.scores().mean(0)[0] - plain.scores().mean(0)[0])
    points = f"at gamma {float(setting.gammas[0]):g} {number(clean, 2, sign=True)} points of accuracy"
    if not np.isfinite([*own, *other]).all():
        return f"{constrained.title.capitalize()} against {plain.title}: {points}."
    return (
        f"Area under the accuracy: {own.mean():.3f} {constrained.title}, {other.mean():.3f} {plain.title} "
        f"({number(own.mean() - other.mean(), 3, sign=True)}{doubt}); {points}."
    )


def _more(variant: Variant) -> dict[str, Any]:
    exits = [run.evaluation["early_exit"] for run in variant.runs]
    return {
        "area": float(areas(variant).mean()),
        "area_of_seeds": areas(variant).tolist(),
        "error_rates": variant.mean("error_rates"),
        "early_exit": {name: float(np.mean([one[name] for one in exits])) for name in ("mean_depth", "accuracy")},
    }


def _verdict(run: Run) -> str:
    setting = group([run])[0]
    accuracy, area = run.scores()[setting.training_index], areas(setting.variants[0])[0]
    return (
        f"{run.name}: {run.method}, {setting.title}, seed {run.evaluation['seed']}: "
        f"{state_words(setting.variants[0])}; accuracy {accuracy:.1%} at test gamma "
        f"{setting.gammas[setting.training_index]}" + (f", area {area:.3f}" if np.isfinite(area) else "")
    )


def _render(settings: Sequence[Setting], runs: Sequence[Run], pictures: Mapping[str, bytes]) -> str:
    shown = {name: figure_html(data, CAPTIONS[name]) for name, data in pictures.items()}
    methods = [METHOD_NAMES[method] for method in METHODS if any(run.method == method for run in runs)]
    data = runs[0].config.get("data", {})
    opening = (
        f"Text classification ({data.get('source', 'unknown')}), {' and '.join(methods)}, tested on "
        f"{runs[0].evaluation['num_examples']} held-out texts whose embeddings are perturbed more and less than in "
        "training."
    )
    variants = [(setting, variant) for setting in settings for variant in setting.variants]
    parts = [
        f"<p>{escape(opening)}</p>",
        '<ul class="verdict">' + "\n".join(f"<li>{escape(compare(setting))}</li>" for setting in settings) + "</ul>",
        warnings_html(settings, runs),
        "<h2>Accuracy under noise</h2>",
        shown["accuracy_curve"] + table_html(area_table(settings)),
        *(table_html(accuracy_table(setting)) for setting in settings),
        "<h2>Layer by layer</h2>",
        shown["layer_losses"] + shown["error_rates"],
        *(layers_html(setting, variant, _verdict) for setting, variant in variants),
        shown["ratios"],
        "<h2>Early exit</h2>",
        shown["early_exit"] + table_html(exit_table(settings)),
        *(["<h2>What a setting changes</h2>", shown["ablation"]] if "ablation" in shown else []),
        "<h2>Training</h2>",
        shown.get("multipliers", "") + shown.get("training_loss", "<p>The runs hold no training metrics.</p>"),
        "<h2>Runs</h2>",
        runs_html(runs),
        table_html(environment_table(runs), words=True),
    ]
    return page_html(f"{runs[0].evaluation['experiment']}: {' against '.join(methods)} training", parts)


def _tables(settings: Sequence[Setting]) -> Iterator[Table]:
    for setting in settings:
        yield accuracy_table(setting)
        yield from (feasibility_table(setting, variant) for variant in setting.variants)
    yield area_table(settings)
    yield exit_table(settings)


def _verdicts(settings: Sequence[Setting], runs: Sequence[Run]) -> list[str]:
    return [*map(_verdict, runs), *map(compare, settings), *notes(settings)]
