"""Reports on constrained training: what those on video and on text show, in which order, and what they sum up."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..system.files import without_folders
from ..system.machine import environment
from ..system.terminal import Table
from . import Block, Fold, Picture, Report, Sections, figures
from .completions import completion_tables
from .disturbed import disturbed_table
from .exits import acceptance_curve, acceptance_table, exit_layers_table
from .groups import METHOD_NAMES, Setting, Variant, group
from .read import ACCURACY, METHODS, PER_LAYER, PER_STEP, RMSE, Run, read_runs
from .robustness import frontier, paired_table
from .tables import (
    area_table,
    cost_table,
    environment_table,
    exit_table,
    feasibility_table,
    runs_table,
    score_table,
)
from .words import compare, floor, methods_of, notes, opening, run_verdict

BOUNDS = (
    " A constrained model is feasible where its curve stays at or under the bounds, which follow its own previous "
    "layer: bound of layer l = (1 − α) × loss of layer l − 1."
)
RATIOS = "How much each layer changes the loss of each single {}, all layers together; left of 1 it lowers the loss."
SINGLE = (
    " Constraints bind the mean, so single {} may rise; the paper reports a mean ratio of 0.87 and descent in 70.8% of "
    "steps."
)
VARIED = (
    "Constrained runs that differ in one number of the config only. Left: {} at the training noise and its mean over "
    "the stronger ones. Right: violation / bound of the worst layer on held-out data; a run is feasible at or under "
    "the tolerance. Points are means over the seeds, bars {}from the smallest to the largest seed."
)
MULTIPLIERS = "Multiplier and violation of every layer's constraint while training, mean over the seeds."
TIGHTENED = (
    " Training lowers the bound of every layer but layer 0 by a margin (constraints.margin, constraints.first_margin); "
    "these violations are of the bounds so tightened. At an optimum a multiplier is above zero only where its "
    "violation is zero."
)
CLIPS = (
    "RMSE on held-out clips against the strength of the test noise. Bands: smallest to largest seed. Dashed, without "
    "marks: what needs no network."
)
FRONTIER = (
    "Every variant at the noise of training and at the strongest noise: left and low is better. Open markers: not "
    "feasible. Bars: smallest to largest seed."
)
FLOORED = " Dashed, without marks: what needs no network."
TEXTS = (
    "Accuracy on held-out texts against the strength of the noise on their embeddings: gamma is its standard deviation "
    "(under --noise variance: its variance) over the standard deviation of clean embeddings as training starts with "
    "them; those that are learned may outgrow it. Bands: smallest to largest seed."
)
CODED = (
    "Relative error of the codes of held-out images, |z − z*|² over |z*|², against the strength of the noise on the "
    "images. Bands: smallest to largest seed. Dashed, without marks: what needs no network."
)
ANSWERS = TEXTS.replace("Accuracy on held-out texts", "Share of right tokens of held-out answers") + FLOORED
LOSSES = "Held-out cross entropy of the shared readout after every layer, at the noise of training."
ERRORS = "Share of held-out texts that the shared readout is wrong about after every layer."
ANSWER_LOSSES = "Held-out cross entropy of a token after every layer that is read, at the noise of training."
ANSWER_ERRORS = "Share of tokens of held-out answers that every layer that is read gets wrong."
DRAFTS = (
    "Share of tokens of held-out answers at which a layer names what the last one does, without noise or with least."
)
EXIT = "Early exit: accuracy against the layers run, over all thresholds of the predicted improvement."


def video(folders: Sequence[Path]) -> Report:
    """The report on runs on video: RMSE under noise, what feasibility costs in it, and every layer."""
    runs = read_runs(folders)
    settings, cost = group(runs), cost_table(group(runs))
    bounds, single = (BOUNDS, SINGLE.format("samples")) if "constrained" in methods_of(runs) else ("", "")
    scores = _picture("ood_curve", figures.score_curve(settings), CLIPS)
    losses = _picture("layer_losses", figures.layer_losses(settings), f"Held-out loss after every layer.{bounds}")
    ratios = _picture("ratios", figures.ratios(settings), RATIOS.format("sample") + single)
    paired, beyond = paired_table(settings), _picture("frontier", frontier(settings), FRONTIER)
    disturbed = [table for setting in settings for table in disturbed_table(setting)]
    tables = [*map(score_table, settings), *disturbed, *cost, *paired]
    sections = [
        ("Noise it was and was not trained on", [*scores, *tables, *beyond]),
        ("Does every layer lower the loss?", [*losses, *_layers(settings), *ratios]),
        ("What a setting changes", _picture("ablation", figures.ablation(settings), VARIED.format("RMSE", "go "))),
        ("Training", _training(settings, MULTIPLIERS + TIGHTENED, "last layer's loss  ½|x − Φ$_L$|²")),
    ]
    return _report(runs, settings, sections, [*disturbed, *(table for table in cost if len(table.rows) > 1), *paired])


def text(folders: Sequence[Path]) -> Report:
    """The report on runs on text: accuracy under noise and the area below it, every layer, and early exit."""
    runs = read_runs(folders)
    settings = group(runs)
    areas, exits = area_table(settings), exit_table(settings)
    disturbed = [table for setting in settings for table in disturbed_table(setting)]
    scores = _picture("accuracy_curve", figures.score_curve(settings), TEXTS)
    losses = _picture("layer_losses", figures.layer_losses(settings, "cross entropy (nats)"), LOSSES + BOUNDS)
    errors = _picture("error_rates", figures.error_rates(settings), ERRORS)
    ratios = _picture("ratios", figures.ratios(settings), RATIOS.format("text") + SINGLE.format("texts"))
    sections = [
        ("Accuracy under noise", [*scores, areas, *map(score_table, settings), *disturbed]),
        ("Layer by layer", [*losses, *errors, *_layers(settings), *ratios]),
        ("Early exit", [*_picture("early_exit", figures.early_exit(settings), EXIT), exits]),
        ("What a setting changes", _picture("ablation", figures.ablation(settings), VARIED.format("accuracy", ""))),
        ("Training", _training(settings, MULTIPLIERS, "last layer's cross entropy (nats)")),
    ]
    return _report(runs, settings, sections, [areas, *disturbed, exits])


def language(folders: Sequence[Path]) -> Report:
    """The report on runs of language models: shares of right tokens under noise and the area below, and every layer."""
    runs = read_runs(folders)
    settings = group(runs)
    areas = area_table(settings)
    scores = _picture("accuracy_curve", figures.score_curve(settings), ANSWERS)
    losses = _picture("layer_losses", figures.layer_losses(settings, "cross entropy (nats)"), ANSWER_LOSSES + BOUNDS)
    errors = _picture("error_rates", figures.error_rates(settings), ANSWER_ERRORS)
    ratios = _picture("ratios", figures.ratios(settings), RATIOS.format("answer") + SINGLE.format("answers"))
    exits, accepted = exit_layers_table(settings), acceptance_table(settings)
    drafts = [*_picture("acceptance", acceptance_curve(settings), DRAFTS), *accepted]
    sections = [
        ("Accuracy under noise", [*scores, areas, *map(score_table, settings)]),
        ("Layer by layer", [*losses, *errors, *exits, *_layers(settings), *ratios]),
        ("Drafts by the first layers", drafts),
        ("Answers", completion_tables(settings)),
        ("What a setting changes", _picture("ablation", figures.ablation(settings), VARIED.format("accuracy", ""))),
        ("Training", _training(settings, MULTIPLIERS, "last layer's cross entropy (nats)")),
    ]
    return _report(runs, settings, sections, [areas, *exits, *accepted])


def sparse_coding(folders: Sequence[Path]) -> Report:
    """The report on runs of sparse coding: relative errors under noise and with disturbed layers, and every layer."""
    runs = read_runs(folders)
    settings = group(runs)
    disturbed = [table for setting in settings for table in disturbed_table(setting)] + paired_table(settings)
    scores = _picture("error_curve", figures.score_curve(settings), CODED)
    losses = _picture(
        "layer_losses", figures.layer_losses(settings, "loss  ½|z − z*|²"), f"Held-out loss after every layer.{BOUNDS}"
    )
    ratios = _picture("ratios", figures.ratios(settings), RATIOS.format("image"))
    varied = VARIED.format("relative error", "")
    sections = [
        ("Noise it was and was not trained on", [*scores, *map(score_table, settings), *disturbed]),
        ("Does every layer lower the loss?", [*losses, *_layers(settings), *ratios]),
        ("What a setting changes", _picture("ablation", figures.ablation(settings), varied)),
        ("Training", _training(settings, MULTIPLIERS + TIGHTENED, "last layer's loss  ½|z − z*|²")),
    ]
    return _report(runs, settings, sections, disturbed)


def layered(folders: Sequence[Path]) -> Report:
    """The report on runs of a task of the user's own: the loss, and every layer."""
    runs = read_runs(folders)
    settings, label = group(runs), "loss"
    losses = _picture(
        "layer_losses", figures.layer_losses(settings, label), f"Held-out loss after every layer.{BOUNDS}"
    )
    ratios = _picture("ratios", figures.ratios(settings), RATIOS.format("sample") + SINGLE.format("samples"))
    sections = [
        ("Does every layer lower the loss?", [*map(score_table, settings), *losses, *_layers(settings), *ratios]),
        ("Training", _training(settings, MULTIPLIERS + TIGHTENED, "last layer's loss")),
    ]
    return _report(runs, settings, sections, [])


def _report(runs: Sequence[Run], settings: Sequence[Setting], sections: Sections, tables: Sequence[Table]) -> Report:
    """Returns the report of both kinds of runs; ``tables`` are for the terminal, below those of every setting."""
    configs = [Fold(f"Config of {run.name}", text=json.dumps(without_folders(run.config), indent=2)) for run in runs]
    run_sections = [
        ("Runs", [runs_table(runs), *configs]),
        ("Versions and machine", [environment_table(runs, environment())]),
    ]
    logged = [(run, text) for run in runs for text in run.status.get("messages") or []]
    messages = [f"{run.name}: {without_folders(str(text))}" for run, text in logged]
    verdicts, weak = [compare(setting) for setting in settings], notes(settings)
    by_setting = [table for one in settings for table in (score_table(one), *_feasibility(one))]
    methods = " against ".join(METHOD_NAMES[method] for method in methods_of(runs))
    return Report(
        title=f"{runs[0].evaluation['experiment']}: {methods} training",
        opening=opening(settings, runs),
        verdicts=verdicts,
        warnings=[*weak, *messages],
        sections=[(heading, blocks) for heading, blocks in (*sections, *run_sections) if blocks],
        summary=summarise(settings, runs),
        tables=[*by_setting, *tables],
        sentences=[*map(run_verdict, runs), *verdicts, *weak, *messages],
        floor=floor(settings[0]),
    )


def _picture(name: str, figure: Figure | None, caption: str) -> list[Block]:
    return [] if figure is None else [Picture(name, caption, figure)]


def _training(settings: Sequence[Setting], caption: str, label: str) -> list[Block]:
    multipliers = _picture("multipliers", figures.multipliers(settings), caption)
    words = "Loss of the last layer on training batches (running mean) and on the validation split (dots)."
    losses = _picture("training_loss", figures.training_loss(settings, label), words)
    return [*multipliers, *(losses or ["The runs hold no training metrics."])]


def _feasibility(setting: Setting) -> list[Table]:
    return [feasibility_table(setting, variant) for variant in setting.variants]


def _layers(settings: Sequence[Setting]) -> list[Block]:
    """Feasibility of every variant; with several seeds also each run's own verdict and table, folded."""
    blocks: list[Block] = []
    for setting in settings:
        for variant in setting.variants:
            blocks.append(feasibility_table(setting, variant))
            if len(variant.runs) > 1:
                alone = [Variant(variant.method, variant.label, (run,)) for run in variant.runs]
                each = [(run_verdict(one.runs[0]), feasibility_table(setting, one)) for one in alone]
                blocks.append(Fold(f"{variant.title}: every seed", [part for pair in each for part in pair]))
    return blocks


def summarise(settings: Sequence[Setting], runs: Sequence[Run]) -> dict[str, Any]:
    """Every figure of a report, ready for strict JSON: a number that is not finite is None.

    ``methods`` and ``noisy_input`` describe the headline setting, the first given that holds plain and constrained
    training (else the first): its first constrained variant, the plain one it is compared with, and the first of deep
    supervision, each number a mean over the seeds.
    """
    both = [setting for setting in settings if setting.duels()]
    main, score = (both or list(settings))[0], runs[0].score
    pair = (main.pairs() or [(None, None)])[0]
    variants = [variant for variant in (*pair, *main.of("deep_supervision")[:1]) if variant]
    chosen = {method: variant for method in METHODS for variant in variants if variant.method == method}
    summary = {
        "experiment": runs[0].evaluation["experiment"],
        "train_gamma": main.train_gamma,
        "num_layers": main.num_layers,
        score.tested: runs[0].evaluation[score.tested],
        **_of_input(main),
        "methods": {method: _variant(variant) for method, variant in chosen.items()},
        "groups": [
            {
                "num_layers": setting.num_layers,
                "train_gamma": setting.train_gamma,
                **_of_input(setting),
                "variants": [{"method": variant.method, **_variant(variant)} for variant in setting.variants],
            }
            for setting in settings
        ],
        "runs": [run.summary() for run in runs],
    }
    strict = json.dumps(summary, default=lambda array: array.tolist())
    return without_folders(json.loads(strict, parse_constant=lambda _: None))


def _variant(variant: Variant) -> dict[str, Any]:
    first, scores, name = variant.runs[0], variant.scores(), variant.runs[0].score.name
    row = {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "seeds": [run.evaluation["seed"] for run in variant.runs],
        name: dict(zip(first.gammas, scores.mean(0), strict=True)),
        f"{name}_min": dict(zip(first.gammas, scores.min(0), strict=True)),
        f"{name}_max": dict(zip(first.gammas, scores.max(0), strict=True)),
        **{key: variant.mean(key) for key in (*PER_LAYER, *PER_STEP)},
        "feasible": variant.feasible,
        "feasible_runs": variant.feasible_runs,
        "worst_margin": variant.worst()[2],
        "tolerance": variant.mean("tolerance"),
        "monotone": bool(np.all(np.diff(variant.stack("layer_losses"), axis=1) < 0)),
        **{key: variant.mean(key) for key in ("share_descending", "mean_ratio_all", "train_seconds")},
        "steps": [run.status.get("steps") for run in variant.runs],
        "parameters": first.evaluation.get("parameters"),
    }
    if first.score is ACCURACY:
        row |= {"area": variant.areas().mean(), "area_of_seeds": variant.areas()}
        row |= {"error_rates": variant.mean("error_rates")}
        if "early_exit" in first.evaluation:
            row |= {"early_exit": variant.mean_exit("mean_depth", "accuracy")}
    return row


def _of_input(setting: Setting) -> dict[str, Any]:
    gammas = setting.first.gammas
    floors = {name: dict(zip(gammas, scores, strict=True)) for name, scores in setting.floors().items()}
    noisy = setting.score is RMSE
    inputs = {"noisy_input": {RMSE.name: dict(zip(gammas, setting.of_input(), strict=True))}} if noisy else {}
    return inputs | ({"floors": floors, "floor_shares": setting.floor_shares()} if floors else {})
