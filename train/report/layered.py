"""The report on runs whose layers have losses: one frame for all tasks, filled from their `ReportSpec`."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..system.files import without_folders
from . import figures
from .groups import METHOD_NAMES, Setting, Variant, group
from .page import Block, Fold, Picture, Report
from .records import METHODS, PER_LAYER, PER_STEP, LayeredRun, Run, check_layered
from .tables import (
    by_layer_table,
    comparison_table,
    completion_table,
    disturbed_table,
    environment_table,
    exit_table,
    layers_table,
    runs_table,
    score_table,
)
from .verdict import reference_scores, verdict, warnings

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
    "acceptance": "Share of tokens of held-out {}s at which a layer names what the last one does, at the least noise.",
    "multipliers": "Multiplier and violation of every layer's constraint in training, means over the seeds. Bounds are "
    "those tightened by constraints.margin; at an optimum a multiplier is above zero only where its violation is zero.",
    "training_loss": "Loss of the last layer on training batches (running mean) and on the validation split (dots).",
}
SEEDS = " Bands and bars: smallest to largest seed."
BY_LAYER = "By the number of the layer in the model; 0 is the embedded input."


def layered_report(runs: Sequence[Run]) -> Report:
    """The report on runs of a task with layers."""
    checked = check_layered(runs)
    settings = group(checked)

    def tables(table: Any) -> list[Block]:
        return [one for setting in settings for one in table(setting)]

    comparison = comparison_table(settings)
    scores = [*map(score_table, settings), *comparison, *tables(disturbed_table)]
    exits = exit_table(settings)
    accuracies = by_layer_table(settings, "layer_accuracies", "Accuracy (%) of every layer that is read", BY_LAYER)
    accepted = by_layer_table(settings, "acceptance", "Acceptance (%): tokens that a layer names as the last", BY_LAYER)
    layers = [layers_table(setting, variant) for setting in settings for variant in setting.variants]
    enforced = [layers_table(setting, variant) for setting in settings for variant in setting.of("constrained")]
    configs = [Fold(f"Config of {run.name}", json.dumps(without_folders(run.config), indent=2)) for run in runs]
    drawn = {name: _picture(name, settings) for name in CAPTIONS}
    sections = [
        ("Score", [*drawn["score_curve"], *scores, *drawn["frontier"]]),
        ("Layer by layer", [*drawn["layer_losses"], *drawn["error_rates"], *layers, *accuracies, *drawn["ratios"]]),
        ("Early exit", [*drawn["early_exit"], *exits]),
        ("Drafts by the first layers", [*drawn["acceptance"], *accepted]),
        ("Answers", tables(completion_table)),
        ("Training", [*drawn["multipliers"], *drawn["training_loss"]] or ["The runs hold no training metrics."]),
        ("Runs", [runs_table(runs), *configs, environment_table(runs)]),
    ]
    logged = [f"{run.name}: {without_folders(str(text))}" for run in runs for text in run.status.get("messages") or []]
    methods = [METHOD_NAMES[method] for method in METHODS if any(run.method == method for run in checked)]
    floors, at = reference_scores(settings[0]), f" at test gamma {settings[0].train_gamma:g}"
    return Report(
        title=f"{runs[0].evaluation['experiment']}: {' against '.join(methods)} training",
        verdict=verdict(settings[0]) if len(settings) == 1 else [" ".join(verdict(setting)) for setting in settings],
        warnings=[*warnings(settings), *logged],
        sections=[(heading, blocks) for heading, blocks in sections if blocks],
        summary=summarise(settings, checked),
        tables=[*scores, *enforced, *exits, *accepted],
        floor=f"{settings[0].spec.title}{at * bool(settings[0].spec.gamma)}: {floors}." if floors else "",
    )


def _picture(name: str, settings: Sequence[Setting]) -> list[Block]:
    figure = getattr(figures, name)(settings)
    several = any(len(variant.runs) > 1 for setting in settings for variant in setting.variants)
    caption = CAPTIONS[name].format(settings[0].spec.sample) + SEEDS * several
    return [] if figure is None else [Picture(name, caption, figure)]


def summarise(settings: Sequence[Setting], runs: Sequence[LayeredRun]) -> dict[str, Any]:
    """Every figure of a report, ready for strict JSON: a number that is not finite is None.

    ``methods`` and ``floors`` describe the headline setting, the first with a pair to compare (else the first): its
    first constrained variant and those that it is compared with, each number a mean over the seeds.
    """
    main = next((setting for setting in settings if setting.pairs()), settings[0])
    compared = [variant for pair in main.pairs() for variant in pair if pair[0] is main.pairs()[0][0]]
    chosen = {variant.method: variant for variant in reversed(compared or main.variants)}
    summary = {
        "experiment": runs[0].evaluation["experiment"],
        "num_layers": main.num_layers,
        "train_gamma": main.train_gamma,
        main.spec.tested: runs[0].evaluation[main.spec.tested],
        "verdict": {setting.title: verdict(setting) for setting in settings},
        **_floors(main),
        "methods": {method: _summary(chosen[method]) for method in METHODS if method in chosen},
        "groups": [
            {
                "num_layers": setting.num_layers,
                "train_gamma": setting.train_gamma,
                **_floors(setting),
                "variants": [{"method": variant.method, **_summary(variant)} for variant in setting.variants],
            }
            for setting in settings
        ],
        "runs": [run.summary() for run in runs],
    }
    strict = json.dumps(summary, default=lambda array: array.tolist())
    return without_folders(json.loads(strict, parse_constant=lambda _: None))


def _summary(variant: Variant) -> dict[str, Any]:
    first, scores, metric = variant.runs[0], variant.scores(), variant.runs[0].spec.metric
    row = {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "seeds": [run.evaluation["seed"] for run in variant.runs],
        metric: dict(zip(first.gammas, scores.mean(0), strict=True)),
        f"{metric}_min": dict(zip(first.gammas, scores.min(0), strict=True)),
        f"{metric}_max": dict(zip(first.gammas, scores.max(0), strict=True)),
        **{key: variant.mean(key) for key in (*PER_LAYER, *PER_STEP)},
        "feasible": variant.feasible,
        "feasible_runs": variant.feasible_runs,
        "worst_margin": variant.worst()[2],
        "monotone": bool(np.all(np.diff(variant.stack("layer_losses"), axis=1) < 0)),
        **{key: variant.mean(key) for key in ("tolerance", "share_descending", "mean_ratio_all", "train_seconds")},
        "steps": [run.status.get("steps") for run in variant.runs],
        "parameters": first.evaluation.get("parameters"),
    }
    if variant.has("area"):
        row |= {"area": variant.areas().mean(), "area_of_seeds": variant.areas()}
    if variant.has("error_rates"):
        row |= {"error_rates": variant.mean("error_rates")}
    if variant.has("early_exit"):
        exits = [run.evaluation["early_exit"] for run in variant.runs]
        row |= {"early_exit": {name: np.mean([one[name] for one in exits]) for name in ("mean_depth", "accuracy")}}
    return row


def _floors(setting: Setting) -> dict[str, Any]:
    floors = {name: dict(zip(setting.first.gammas, scores, strict=True)) for name, scores in setting.floors().items()}
    return {"floors": floors, "floor_shares": setting.floor_shares()} if floors else {}
