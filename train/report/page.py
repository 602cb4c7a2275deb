"""The self-contained page: one HTML file with its figures inside, no script, nothing loaded from elsewhere."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from train.environment import environment
from train.report.files import flat
from train.report.groups import METHOD_NAMES, Setting, Variant
from train.report.html import figure_html, page_html, table_html
from train.report.paths import without_folders
from train.report.read import METHODS, Run
from train.report.tables import Table, cost_table, feasibility_table, rmse_table
from train.report.verdict import compare, notes, opening, run_verdict

__all__ = ["environment_table", "layers_html", "render", "runs_html", "warnings_html"]

CAPTIONS = {
    "ood_curve": "RMSE on held-out clips against the strength of the test noise. Bands: smallest to largest seed.",
    "layer_losses": "Held-out loss after every layer.",
    "ablation": "Constrained runs that differ in one number of the config only. Left: RMSE at the training noise and "
    "its mean over the stronger ones. Right: violation / bound of the worst layer on held-out data; a run is feasible "
    "at or under the tolerance. Points are means over the seeds, bars go from the smallest to the largest seed.",
    "multipliers": "Multiplier and violation of every layer's constraint while training, mean over the seeds. "
    "Training lowers the bound of every layer but layer 0 by a margin (constraints.margin, constraints.first_margin); "
    "these violations are of the bounds so tightened. At an optimum a multiplier is above zero only where its "
    "violation is zero.",
    "ratios": "How much each layer changes the loss of each single sample, all layers together; left of 1 it lowers "
    "the loss.",
    "training_loss": "Loss of the last layer on training batches (running mean) and on the validation split (dots).",
}
# Added where there is a constrained run.
CONSTRAINED_CAPTIONS = {
    "layer_losses": " A constrained model is feasible where its curve stays at or under the bounds, which follow its "
    "own previous layer: bound of layer l = (1 − α) × loss of layer l − 1.",
    "ratios": " Constraints bind the mean, so single samples may rise; the paper reports a mean ratio of 0.87 and "
    "descent in 70.8% of steps.",
}


def render(settings: Sequence[Setting], runs: Sequence[Run], pictures: Mapping[str, bytes]) -> str:
    """The page as text; ``pictures`` holds PNG bytes by figure name."""
    methods = [method for method in METHODS if any(run.method == method for run in runs)]
    images = {name: figure_html(data, _caption(name, methods)) for name, data in pictures.items()}
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    cost = cost_table(settings)
    variants = [(setting, variant) for setting in settings for variant in setting.variants]
    body = template.substitute(
        opening=escape(opening(settings, runs)),
        verdicts="\n".join(f"<li>{escape(compare(setting))}</li>" for setting in settings),
        warnings=warnings_html(settings, runs),
        comparison=images["ood_curve"]
        + "".join(table_html(rmse_table(setting)) for setting in settings)
        + (table_html(cost) if cost else ""),
        layers=images["layer_losses"]
        + "".join(layers_html(setting, variant, run_verdict) for setting, variant in variants)
        + images["ratios"],
        ablation=f"<h2>What a setting changes</h2>\n{images['ablation']}" if "ablation" in images else "",
        training=images.get("multipliers", "")
        + images.get("training_loss", "<p>The runs hold no training metrics.</p>"),
        runs=runs_html(runs),
        environment=table_html(environment_table(runs), words=True),
    )
    return page_html(f"{runs[0].evaluation['experiment']}: {_named(methods)} training", [body])


def _named(methods: Sequence[str]) -> str:
    return " against ".join(METHOD_NAMES[method] for method in methods)


def _caption(name: str, methods: Sequence[str]) -> str:
    return CAPTIONS[name] + (CONSTRAINED_CAPTIONS.get(name, "") if "constrained" in methods else "")


def layers_html(setting: Setting, variant: Variant, verdict: Callable[[Run], str]) -> str:
    """Feasibility of a variant; with several seeds also each run's own verdict and table, folded."""
    whole = table_html(feasibility_table(setting, variant))
    if len(variant.runs) == 1:
        return whole
    each = "".join(
        f"<p>{escape(verdict(run))}</p>"
        + table_html(feasibility_table(setting, Variant(variant.method, variant.label, (run,))))
        for run in variant.runs
    )
    return f"{whole}<details><summary>{escape(variant.title)}: every seed</summary>{each}</details>\n"


def warnings_html(settings: Sequence[Setting], runs: Sequence[Run]) -> str:
    """What weakens a comparison, and what the runs said themselves."""
    said = [f"{run.name}: {without_folders(str(text))}" for run in runs for text in run.status.get("messages") or []]
    items = "".join(f"<li>{escape(text)}</li>\n" for text in [*notes(settings), *said])
    return f'<ul class="warnings">\n{items}</ul>' if items else "<p>No run reported a warning.</p>"


def runs_html(runs: Sequence[Run]) -> str:
    """A row per run with the fields in which they differ, then each whole config, folded."""
    configs = [{key: _text(value) for key, value in flat(without_folders(run.config)).items()} for run in runs]
    fields = list(dict.fromkeys(key for config in configs for key in config))
    differing = [field for field in fields if len({config.get(field, "not set") for config in configs}) > 1]
    usual = {field: _most_common([config.get(field, "not set") for config in configs]) for field in differing}
    rows = []
    for run, config in zip(runs, configs, strict=True):
        cells = [escape(run.name), escape(str(run.status.get("state", "unknown"))), _count(run.status.get("steps"))]
        cells += [_count(run.evaluation.get("best_step")), "yes" if run.evaluation["feasible"] else "no"]
        cells += [_marked(config.get(field, "not set"), usual[field]) for field in differing]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n")
    header = ["run", "state", "steps", "reported step", "feasible", *differing]
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    caption = "Runs and the config fields in which they differ (marked: not the most common value)"
    details = "".join(
        f"<details><summary>Config of {escape(run.name)}</summary>"
        f"<pre>{escape(json.dumps(without_folders(run.config), indent=2))}</pre></details>\n"
        for run in runs
    )
    return (
        f'<div class="scroll"><table class="words"><caption>{caption}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>\n{details}"
    )


def _most_common(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _marked(value: str, usual: str) -> str:
    return escape(value) if value == usual else f"<mark>{escape(value)}</mark>"


def environment_table(runs: Sequence[Run]) -> Table:
    """This report's environment, and beside it every other environment that the runs recorded."""
    columns = {"this report": environment()}
    for run in runs:
        recorded = run.status.get("environment")
        if isinstance(recorded, dict) and recorded not in columns.values():
            columns[f"trained: {run.name}"] = recorded
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = tuple((name, *(str(column.get(name, "-")) for column in columns.values())) for name in names)
    return Table(title="Versions and machine", header=("", *columns), rows=rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _count(value: Any) -> str:
    return "-" if value is None else escape(str(value))
