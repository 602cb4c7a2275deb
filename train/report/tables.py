"""The tables of reports on runs with layers, as rows of text that the terminal and the page share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from ..registry import ReportSpec
from ..system.files import without_folders
from ..system.terminal import Table
from .groups import Setting, Variant
from .records import Array, Run, flat

LEVEL = 0.95  # of intervals over seeds
LONGEST = 500  # letters of a text that are shown
SEVERAL = "Several seeds: mean [smallest, largest]."
# Violations and margins where constraints bind something else than losses' means over samples.
BOUND = {
    "tail": " Violations and margins are of the mean over the worst samples.",
    "positive": " Violations and margins are of the mean over samples of the excess over the bound, less the leeway.",
}
BY_LAYER = "By the number of the layer in the model; 0 is the embedded input."
RATIOS = " Violations and margins are of ratios, taken sample by sample; losses and bounds are means."


def score_table(setting: Setting) -> Table:
    """The score at every test gamma without a network and of every variant; below, its mean or the area under it."""
    spec, scale = setting.spec, 100.0 if setting.spec.percent else 1.0
    tested = np.isin(setting.gammas, setting.first.evaluation["test_gammas"])
    columns = {name: [number(x, spec.digits) for x in scale * scores] for name, scores in setting.floors().items()}
    for one in setting.variants:
        columns[with_seeds(one)] = [ranged(column, spec.digits) for column in scale * one.scores().T]
    rows = list(
        zip([f"{g:g}{' *' * bool(g == setting.train_gamma)}" for g in setting.gammas], *columns.values(), strict=True)
    )
    if tested.sum() > 1 and setting.variants[0].has("area"):
        rows.append(("area", *("-" for _ in setting.floors()), *(ranged(v.areas(), 3) for v in setting.variants)))
    elif tested.sum() > 1:
        floors = [number(scale * scores[tested].mean(), spec.digits) for scores in setting.floors().values()]
        means = (ranged(scale * one.scores()[:, tested].mean(1), spec.digits) for one in setting.variants)
        rows.append(("mean", *floors, *means))
    parts = [
        f"{name} is of {share:.0%} of the test split." for name, share in setting.floor_shares().items() if share < 1
    ]
    gammas, note = (f" against {spec.gamma}", ["* training gamma."]) if spec.gamma else ("", [])
    title = f"{capital(spec.title)}{' (%)' * spec.percent}{gammas}, {setting.title}"
    words = [spec.note, *note, *parts, *([SEVERAL] if any(len(one.runs) > 1 for one in setting.variants) else [])]
    return Table(title, ("test gamma", *columns), tuple(rows), " ".join(filter(None, words)))


def layers_table(setting: Setting, variant: Variant) -> Table:
    """Every layer of a variant on held-out data: loss, bound, violation, margin, multiplier, slack, descent."""
    margins, several = 100 * variant.margins(), len(variant.runs) > 1
    columns = {
        "layer": [str(layer) for layer in setting.layers],
        "loss": _numbers(variant.mean("layer_losses"), 3),
        "bound": _numbers(variant.mean("bounds"), 3),
        "violation": _numbers(variant.mean("violations"), 3, sign=True),
        "margin %": _numbers(margins.mean(0), 1, sign=True),
        **({"worst margin %": _numbers(margins.min(0), 1, sign=True)} if several else {}),
        "multiplier": _numbers(variant.mean("multipliers"), 3),
        "slack": _numbers(variant.mean("slacks"), 3),
        "mult. x viol.": _numbers(variant.mean("complementary_slackness"), 4, sign=True),
        "descends %": ["-", *_numbers(100 * variant.mean("descend_share"), 1)],
    }
    constrained, evaluation = variant.method == "constrained", variant.runs[0].evaluation
    note = (
        f"{variant.feasible_runs} of {len(variant.runs)} runs feasible (tolerance {variant.mean('tolerance'):.0%} of "
        "the bound; positive margin: room left). Layer 0: bound is the reference loss."
    )
    if constrained:
        note += " mult. x viol.: of the tightened bounds that training enforces, less the slack."
    note += BOUND.get(evaluation.get("bind", "mean"), "")
    note += RATIOS if evaluation.get("form", "difference") != "difference" else ""
    title = f"Layers on held-out data, {with_seeds(variant)}{'' if constrained else ' (bounds not enforced)'}"
    return Table(f"{title}, {setting.title}", tuple(columns), tuple(zip(*columns.values(), strict=True)), note)


def differences(setting: Setting, one: Variant, other: Variant) -> Array:
    """Score differences of two variants paired by seed, (seeds, 3).

    Columns are at the training gamma, the mean over larger test gammas, and at the largest. Differences are in percent
    of the other's score; of shares, in percentage points. The mean is of the differences, not of the scores.
    """
    scores = [{run.evaluation["seed"]: run.values(run.spec.metric) for run in each.runs} for each in (one, other)]
    shared = sorted(set(scores[0]) & set(scores[1]))
    ours, theirs = (np.array([each[seed] for seed in shared]).reshape(-1, len(setting.gammas)) for each in scores)
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = 100.0 * (ours - theirs if setting.spec.percent else ours / theirs - 1.0)
    stronger, training = setting.gammas > setting.gammas[setting.training_index], gaps[:, setting.training_index]
    beyond = gaps[:, stronger].mean(1) if stronger.any() else np.full(len(gaps), np.nan)
    return np.stack([training, beyond, gaps[:, -1]], axis=1)


def comparison_table(settings: Sequence[Setting]) -> list[Table]:
    """Every constrained variant against the same runs without constraints, at the training noise and beyond."""
    rows, spec = [], settings[0].spec
    for setting in settings:
        for one, other in setting.pairs():
            if len(gaps := differences(setting, one, other)):
                areas = [number((one.areas().mean() - other.areas().mean()), 3, sign=True)] if one.has("area") else []
                titles = (setting.title, one.title, other.title, str(len(gaps)))
                rows.append((*titles, *(_interval(column) for column in gaps.T[: 3 if spec.gamma else 1]), *areas))
    if not rows:
        return []
    unit = "points" if spec.percent else "%"
    area = ("area",) if len(rows[0]) > 7 else ()
    columns, stronger = [f"difference, {unit}"], ""
    if spec.gamma:
        columns = [f"{place} {unit}" for place in ("training gamma", "stronger noise", "largest gamma")]
        stronger = "Stronger noise: mean of the differences over the test gammas above that of training. "
    note = (
        f"Differences of {spec.title} {'in percentage points' if spec.percent else 'in percent of the other'}, paired "
        f"by seed; {'above' if spec.higher_is_better else 'below'} 0 the constrained model is better. "
        f"{stronger}Brackets: {LEVEL:.0%} interval of the mean over seeds (Student's t)."
        + " Area: difference of the mean areas."
        * bool(area)
    )
    header = ("setting", "constrained", "against", "seeds", *columns, *area)
    return [Table("Constraints against the same runs without", header, tuple(rows), note)]


def disturbed_table(setting: Setting) -> list[Table]:
    """The score with noise on layers, with a layer lost, or of disturbed inputs; no table where none was tried."""
    spec = setting.spec
    cells = {with_seeds(one): [_disturbed(run.evaluation, "", spec) for run in one.runs] for one in setting.variants}
    if spec.reference and (figures := _disturbed(setting.first.evaluation, spec.reference[1], spec)):
        cells = {spec.reference[0]: [figures], **cells}
    names = list(dict.fromkeys(name for column in cells.values() for one in column for name in one))
    rows = tuple(
        (name, *(ranged(np.array([one.get(name, np.nan) for one in column]), spec.digits) for column in cells.values()))
        for name in names
    )
    title = f"{capital(spec.title)}{' (%)' * spec.percent} with disturbed layers or inputs, {setting.title}"
    note = "All at the training noise; disturbed inputs have that too."
    return [Table(title, ("disturbed by", *cells), rows, note)] if rows else []


def _disturbed(evaluation: dict[str, Any], prefix: str, spec: ReportSpec) -> dict[str, float]:
    """The scores of an evaluation by disturbance of layers or inputs."""
    noisy = evaluation.get(f"{prefix}layer_noise_{spec.metric}", {})
    lost = list(evaluation.get(f"{prefix}lost_layer_{spec.metric}", {}).values())
    figures = {f"layer noise {level}": value for level, value in noisy.items()}
    figures |= {"one layer lost, mean": np.mean(lost), "one layer lost, worst": max(lost)} if lost else {}
    figures |= evaluation.get(f"{prefix}disturbed_{spec.metric}", {})
    return {name: float(value) * (100.0 if spec.percent else 1.0) for name, value in figures.items()}


def exit_table(settings: Sequence[Setting]) -> list[Table]:
    """Early exit at the threshold chosen on validation data, a row a variant, means over seeds."""
    chosen = [(setting, variant) for setting in settings for variant in setting.variants if variant.has("early_exit")]
    rows = []
    for setting, variant in chosen:
        exits = [run.evaluation["early_exit"] for run in variant.runs]
        names = ("mean_depth", "accuracy", "full_accuracy", "standard_error")
        depth, accuracy, full, error = (100 * np.mean([one[name] for one in exits]) for name in names)
        rows.append((
            f"{variant.title}, {setting.title}",
            f"{depth / 100:.2f} of {setting.num_layers}",
            *_numbers(np.array([accuracy, full]), 2),
            f"{number(accuracy - full, 2, sign=True)} ({number(error, 2)})",
        ))  # fmt: skip
    note = (
        "A text leaves at the first layer whose predicted improvement is under a threshold: that of least depth that "
        "costs at most half a point on validation data, its standard error included. Points: the cost on the test "
        "split (standard error)."
    )
    header = ("model", "mean depth", "accuracy %", "full depth", "points")
    return [Table("Early exit on the test split, at the training noise", header, tuple(rows), note)] if rows else []


def by_layer_table(settings: Sequence[Setting], key: str, title: str) -> list[Table]:
    """Shares by test gamma and layer, a row a variant and gamma; no table where the evaluations lack them."""
    tables = []
    for setting in settings:
        rows = [
            (with_seeds(variant), f"{gamma:g}", *_numbers(100 * shares, 1))
            for variant in setting.variants
            if variant.has(key)
            for gamma, shares in zip(setting.gammas, variant.mean(key), strict=True)
        ]
        header = ("method", "test gamma", *(f"layer {layer}" for layer in setting.layers))
        tables += [Table(f"{title}, {setting.title}", header, tuple(rows), BY_LAYER)] if rows else []
    return tables


def completion_table(setting: Setting) -> list[Table]:
    """Greedy answers to prompts of the test split, a row a prompt and gamma, a column a variant."""
    variants = [variant for variant in setting.variants if variant.has("completions")]
    answers = [{row["prompt"]: row for row in variant.runs[0].evaluation["completions"]} for variant in variants]
    rows = [
        (
            prompt,
            f"{float(gamma):g}",
            row["wanted"],
            *(each.get(prompt, row)["answers"].get(gamma, "-") for each in answers),
        )
        for prompt, row in (answers or [{}])[0].items()
        for gamma in row["answers"]
    ]
    header = ("prompt", "gamma", "in the data", *(variant.title for variant in variants))
    note = "Greedy answers under noise on all embeddings, the answer's included. Of several seeds, the first."
    cut = tuple(tuple(map(_cut, row)) for row in rows)
    return [Table(f"Answers to test prompts, {setting.title}", header, cut, note, words=True)] if rows else []


def runs_table(runs: Sequence[Run]) -> Table:
    """A row per run with the config fields in which they differ."""
    configs = [{key: str(value) for key, value in flat(without_folders(run.config)).items()} for run in runs]
    fields = list(dict.fromkeys(key for config in configs for key in config))
    fields = [field for field in fields if len({config.get(field, "not set") for config in configs}) > 1]
    rows = []
    for run, config in zip(runs, configs, strict=True):
        steps = (
            "-" if step is None else str(step) for step in (run.status.get("steps"), run.evaluation.get("best_step"))
        )
        feasible = {None: "-", True: "yes", False: "no"}[run.evaluation.get("feasible")]
        ended = (run.name, str(run.status.get("state", "unknown")), *steps, feasible)
        rows.append((*ended, *(config.get(field, "not set") for field in fields)))
    header = ("run", "state", "steps", "reported step", "feasible", *fields)
    return Table("Runs, and the config fields in which they differ", header, tuple(rows), words=True)


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Fixed decimals, a dash for NaN and infinities; never a negative zero."""
    if not np.isfinite(value):
        return "-"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def ranged(values: Array, digits: int) -> str:
    """The mean over seeds and, where there are several, the smallest and the largest."""
    mean = number(values.mean(), digits)
    if len(values) == 1 or not np.isfinite(values).all():
        return mean
    return f"{mean} [{number(values.min(), digits)}, {number(values.max(), digits)}]"


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def with_seeds(variant: Variant) -> str:
    """A variant's title, and how many seeds it has where there are several."""
    return variant.title + (f", {len(variant.runs)} seeds" if len(variant.runs) > 1 else "")


def _numbers(values: Array, digits: int, *, sign: bool = False) -> list[str]:
    return [number(value, digits, sign=sign) for value in values]


def _interval(values: Array) -> str:
    """The mean, and where there are several values its interval."""
    mean = number(values.mean(), 1, sign=True)
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * stats.sem(values)
    return f"{mean} [{number(values.mean() - reach, 1, sign=True)}, {number(values.mean() + reach, 1, sign=True)}]"


def _cut(text: str) -> str:
    text = text or "(empty)"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
