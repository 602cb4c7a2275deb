"""The report on runs whose layers have losses: one frame for all tasks, filled from their `ReportSpec`."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..system.files import without_folders
from ..system.terminal import Table
from . import figures, tables
from .groups import METHOD_NAMES, Setting, Variant, group, unlike
from .page import Picture, Report
from .records import METHODS, PER_LAYER, PER_STEP, LayeredRun, Run, check_layered

# Captions of the figures, by the names of their functions and files; {} is a sample of the task.
CAPTIONS = {
    "score_curve": "The score on held-out {}s against the strength of the test noise. Dashed: without a network.",
    "frontier": "Every variant at the training noise and at the strongest noise. Open markers: not feasible.",
    "layer_losses": "Held-out loss after every layer at the training noise. The bound of layer l is (1 − α) times the "
    "loss of layer l − 1.",
    "error_rates": "Share of held-out {}s that every layer gets wrong, at the training noise.",
    "ratios": "Change of the loss of a single {} by a layer, all layers together; left of 1 it falls. Constraints bind "
    "the mean, so single ones may rise.",
    "early_exit": "Early exit: accuracy against the layers run, over all thresholds of the predicted improvement.",
    "acceptance": "Share of tokens of held-out {}s at which a layer predicts the same as the last, at the least noise.",
    "multipliers": "Multiplier and violation of every layer's constraint in training, means over the seeds. Bounds are "
    "those tightened by constraints.margin; at an optimum a multiplier is above zero only where its violation is zero.",
}
SEEDS = " Bands and bars: smallest to largest seed."
ONE_SEED = "One seed each: differences of a few percent may be chance."
MANY_SEEDS = "Means are over {} seeds; ranges are from the smallest to the largest seed."


def layered_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs of a task with layers."""
    checked = check_layered(runs)
    settings = group(checked)

    def of_each(table: Callable[[Setting], list[Table]]) -> list[Table]:
        return [one for setting in settings for one in table(setting)]

    scores = [*map(tables.score_table, settings), *tables.comparison_table(settings), *of_each(tables.disturbed_table)]
    exits = tables.exit_table(settings)
    accuracies = tables.by_layer_table(settings, "layer_accuracies", "Accuracy (%) of every layer that is read")
    accepted = tables.by_layer_table(settings, "acceptance", "Acceptance (%): tokens that a layer names as the last")
    layers = [tables.layers_table(setting, variant) for setting in settings for variant in setting.variants]
    enforced = [tables.layers_table(setting, variant) for setting in settings for variant in setting.of("constrained")]
    drawn = {name: _picture(name, settings) for name in CAPTIONS}
    sections = [
        ("Score", [*drawn["score_curve"], *scores, *drawn["frontier"]]),
        ("Layer by layer", [*drawn["layer_losses"], *drawn["error_rates"], *layers, *accuracies, *drawn["ratios"]]),
        ("Early exit", [*drawn["early_exit"], *exits]),
        ("Drafts by the first layers", [*drawn["acceptance"], *accepted]),
        ("Answers", of_each(tables.completion_table)),
        ("Training", drawn["multipliers"]),
        ("Runs", [tables.runs_table(runs)]),
    ]
    logged = [f"{run.name}: {without_folders(str(text))}" for run in runs for text in run.status.get("messages") or []]
    methods = [METHOD_NAMES[method] for method in METHODS if any(run.method == method for run in checked)]
    floors, at = _floor_words(settings[0]), f" at test gamma {settings[0].train_gamma:g}"
    return Report(
        title=f"{runs[0].evaluation['experiment']}: {' against '.join(methods)} training",
        verdict=verdict(settings[0]) if len(settings) == 1 else [" ".join(verdict(setting)) for setting in settings],
        warnings=[*warnings(settings), *logged],
        sections=[(heading, blocks) for heading, blocks in sections if blocks],
        summary=_summary(settings, checked),
        tables=[*scores, *enforced, *exits, *accepted],
        floor=f"{settings[0].spec.title}{at * bool(settings[0].spec.gamma)}: {floors}." if floors else "",
    )


def verdict(setting: Setting) -> list[str]:
    """Returns up to five sentences: the best method, the effect of constraints, feasibility, floors, seeds."""
    counts = sorted({len(variant.runs) for variant in setting.variants})
    seeds = ONE_SEED if counts == [1] else MANY_SEEDS.format(_joined(counts))
    sentences = [_best(setting), _against(setting), _feasibility(setting), _unbeaten(setting), seeds]
    first, *others = filter(None, sentences)
    return [f"{tables.capital(setting.title)}: {first}", *others]


def warnings(settings: Sequence[Setting]) -> list[str]:
    """Returns a line for each unfinished run, and for each setting one of all that makes its comparison unequal."""
    sentences = []
    for setting in settings:
        members = [run for variant in setting.variants for run in variant.runs]
        for run in members:
            state = run.status.get("state", "unknown")
            if state != "finished":
                sentences.append(f"{run.name} is not finished (state: {state}, {run.status.get('steps', '?')} steps).")
        steps = {run.status["steps"] for run in members if "steps" in run.status}
        seeds = [sorted(run.evaluation["seed"] for run in variant.runs) for variant in setting.variants]
        unequal = [f"steps ({_joined(sorted(steps))})"] * (len(steps) > 1)
        unequal += ["seeds"] * any(other != seeds[0] for other in seeds)
        unequal += sorted({field for pair in setting.pairs() for field in unlike(*pair)})
        if unequal:
            sentences.append(f"{tables.capital(setting.title)}: compared runs differ in {_joined(unequal)}.")
        if any(len(set(one)) < len(one) for one in seeds):
            sentences.append(f"{tables.capital(setting.title)}: two runs share config and seed; both count as a seed.")
    return sentences


def _picture(name: str, settings: Sequence[Setting]) -> list[Picture]:
    figure = getattr(figures, name)(settings)
    several = any(len(variant.runs) > 1 for setting in settings for variant in setting.variants)
    caption = CAPTIONS[name].format(settings[0].spec.sample) + SEEDS * several
    return [] if figure is None else [Picture(name, caption, figure)]


def _best(setting: Setting) -> str:
    """The best variant of each method at the training noise, the best method first."""
    index, spec = setting.training_index, setting.spec
    sign, ranked = -1.0 if spec.higher_is_better else 1.0, []
    for method in METHODS:
        scores = [(float(one.scores()[:, index].mean()), one.label) for one in setting.of(method)]
        if finite := [row for row in scores if np.isfinite(row[0])]:
            score, label = min(finite, key=lambda row: sign * row[0])
            chosen = f" (best of {len(finite)}: {label})" if len(finite) > 1 else ""
            ranked.append((sign * score, f"{METHOD_NAMES[method]} {_score(setting, score)}{chosen}"))
    metric = spec.title + (f" at the training noise (gamma {setting.gammas[index]:g})" if spec.gamma else "")
    if not ranked:
        return f"{metric} is not a number in any run."
    return f"{metric}{', best first' if len(ranked) > 1 else ''}: {_joined([words for _, words in sorted(ranked)])}."


def _against(setting: Setting) -> str:
    """The differences of the first constrained variant from the others, as in the table of comparisons."""
    pairs, parts = setting.pairs(), []
    gammas = setting.gammas[setting.gammas > setting.gammas[setting.training_index]]
    unit = " points" if setting.spec.percent else "%"
    for one, other in (pair for pair in pairs if pair[0] is pairs[0][0]):
        gaps = tables.differences(setting, one, other)
        if len(gaps):
            there, beyond, _ = (f"{tables.number(gap, 1, sign=True)}{unit}" for gap in gaps.mean(0))
            parts.append(f"against {other.title} {there}" + f", {beyond} under stronger noise" * bool(len(gammas)))
    if not parts:
        return ""
    span = f" (mean of the differences at gamma {gammas[0]:g} to {gammas[-1]:g})" if len(gammas) > 1 else ""
    return f"{tables.capital(pairs[0][0].title)} training changes the {setting.spec.title}: {'; '.join(parts)}{span}."


def _feasibility(setting: Setting) -> str:
    """Feasible or not, for how many seeds, and the layer that is furthest out or has the least room."""
    constrained = setting.of("constrained")
    if len(constrained) != 1:
        feasible = sum(one.feasible for one in constrained)
        return f"{feasible} of {len(constrained)} constrained variants are feasible." if constrained else ""
    (variant,) = constrained
    count, failed = len(variant.runs), len(variant.runs) - variant.feasible_runs
    words = "NOT feasible" if failed else "feasible"
    if count > 1:
        words += f" for {failed} of {count} seeds" if failed else f" for all {count} seeds"
    seed, layer, margin = variant.worst()
    if np.isfinite(margin):
        which = f"layer {layer}" + f" of seed {variant.runs[seed].evaluation['seed']}" * (count > 1)
        words += f" ({which} is {abs(margin):.1%} {'over' if margin < 0 else 'below'} its bound)"
    return f"The {variant.title} model is {words}."


def _floor_words(setting: Setting) -> str:
    index = setting.training_index
    return _joined([f"{name} {_score(setting, scores[index])}" for name, scores in setting.floors().items()])


def _unbeaten(setting: Setting) -> str:
    """The scores without a network at the training noise, and those that the best model does not improve on."""
    if not (words := _floor_words(setting)):
        return ""
    sign, index = -1.0 if setting.spec.higher_is_better else 1.0, setting.training_index
    best = min(sign * float(one.scores()[:, index].mean()) for one in setting.variants)
    unbeaten = [name for name, scores in setting.floors().items() if not best < sign * scores[index]]
    judged = f"no model is better than {' or '.join(unbeaten)}" if unbeaten else "the best model is better than each"
    return f"Without a network: {words}; {judged}."


def _score(setting: Setting, value: float) -> str:
    if setting.spec.percent:
        return f"{tables.number(100 * value, 1)}%"
    return tables.number(value, setting.spec.digits)


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _summary(settings: Sequence[Setting], runs: Sequence[LayeredRun]) -> dict[str, Any]:
    """Returns every figure of a report, ready for strict JSON: a number that is not finite is None.

    ``methods`` and ``floors`` describe the headline setting, the first with a pair to compare (else the first): its
    first constrained variant and those that it is compared with, each number a mean over the seeds.
    """
    main = next((setting for setting in settings if setting.pairs()), settings[0])
    compared = [variant for pair in main.pairs() for variant in pair if pair[0] is main.pairs()[0][0]]
    chosen = {variant.method: variant for variant in reversed(compared or main.variants)}
    summary = {
        "experiment": runs[0].evaluation["experiment"],
        main.spec.tested: runs[0].evaluation[main.spec.tested],
        "verdict": {setting.title: verdict(setting) for setting in settings},
        **_of_setting(main),
        "methods": {method: _of_variant(chosen[method]) for method in METHODS if method in chosen},
        "groups": [
            _of_setting(setting)
            | {"variants": [{"method": variant.method, **_of_variant(variant)} for variant in setting.variants]}
            for setting in settings
        ],
        "runs": [run.summary() for run in runs],
    }
    strict = json.dumps(summary, default=lambda array: array.tolist())
    return without_folders(json.loads(strict, parse_constant=lambda _: None))


def _of_setting(setting: Setting) -> dict[str, Any]:
    row = {"num_layers": setting.num_layers, "train_gamma": setting.train_gamma}
    floors = {name: dict(zip(setting.first.gammas, scores, strict=True)) for name, scores in setting.floors().items()}
    return row | ({"floors": floors, "floor_shares": setting.floor_shares()} if floors else {})


def _of_variant(variant: Variant) -> dict[str, Any]:
    first, scores, metric = variant.runs[0], variant.scores(), variant.runs[0].spec.metric
    means = (*PER_LAYER, *PER_STEP, "tolerance", "share_descending", "mean_ratio_all", "train_seconds")
    row = {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "seeds": [run.evaluation["seed"] for run in variant.runs],
        metric: dict(zip(first.gammas, scores.mean(0), strict=True)),
        f"{metric}_min": dict(zip(first.gammas, scores.min(0), strict=True)),
        f"{metric}_max": dict(zip(first.gammas, scores.max(0), strict=True)),
        **{key: variant.mean(key) for key in means},
        "feasible": variant.feasible,
        "feasible_runs": variant.feasible_runs,
        "worst_margin": variant.worst()[2],
        "monotone": bool(np.all(np.diff(variant.stack("layer_losses"), axis=1) < 0)),
        "steps": [run.status.get("steps") for run in variant.runs],
        "parameters": first.evaluation.get("parameters"),
    }
    if variant.has("area"):
        row |= {"area": variant.areas().mean(), "area_of_seeds": variant.areas()}
    return row | ({"error_rates": variant.mean("error_rates")} if variant.has("error_rates") else {})
