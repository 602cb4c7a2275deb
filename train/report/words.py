"""The sentences of reports: introduction, verdict and warnings."""

from collections.abc import Mapping, Sequence

import numpy as np

from unroll_jax import constrained

from ..core.folder import FINISHED
from ..core.objective import violated
from ..core.task import VALIDATED
from ..system.files import without_folders
from . import tables
from .groups import Setting, Variant, unlike
from .records import METHODS, ReportSpec, Run

WAYS = {
    "plain": "Plain training lowers the loss after the last layer.",
    "deep_supervision": (
        "Deep supervision also lowers the losses after earlier layers, by fixed"
        " weights."
    ),
    "constrained": (
        "Constrained training lowers the last loss while it keeps the losses of layers"
        " below bounds. A run is feasible on a split of the data if it exceeds no bound"
        " there by more than the tolerance."
    ),
}
# A loss on the test split that is so many times that of training, or an accuracy so
# much below it, is reported.
LOSS_RATIO, ACCURACY_GAP = 1.5, 0.1
LEAST_LOSS = 0.1  # nats. A cross entropy below costs few points of accuracy
WAY_TO_BOUNDS = (
    "not all bounds are met: train longer or loosen them (alpha, first_alpha and"
    " reference of the constraints); a plain run in the same report (method both) shows"
    " which losses are in reach."
)
# Training is judged by its last steps: one in so many of all, and so many at least.
LAST_STEPS, FEWEST_STEPS = 20, 10


def introduction(settings: Sequence[Setting]) -> str:
    """Returns how many networks were trained, by which methods, and what the score
    is."""
    spec = settings[0].spec
    count = sum(len(one.runs) for setting in settings for one in setting.variants)
    depths = ", ".join(str(setting.num_layers) for setting in settings)
    trained = f"Networks of {depths} layers were trained {spec.work}"
    sentences = [f"{trained} (runs: {count})."]
    for method in METHODS:
        if any(setting.of(method) for setting in settings):
            sentences.append(WAYS[method])
    return " ".join([*sentences, meaning(spec)])


def meaning(spec: ReportSpec) -> str:
    """Returns what the score is."""
    return f"The score is the {spec.title}: {spec.note[:1].lower()}{spec.note[1:]}"


def verdict(setting: Setting) -> str:
    """Returns a sentence: the score of every variant at the noise of training, the
    best first, with feasibility."""
    scores, notes = {}, {}
    for one in setting.variants:
        scores[one.title] = float(one.scores()[:, setting.training_index].mean())
        words = []
        if one.method == "constrained":
            for split, key in (("test", "feasible"), ("validation", VALIDATED)):
                if one.has(key):
                    failed = "" if one.stack(key).all() else "NOT "
                    words.append(
                        f"{failed}feasible on the {split} split:"
                        f" {one.feasible(key)} runs"
                    )
            if not one.stack("feasible").all():
                words.append(violated(one.runs[0].evaluation))
        notes[one.title] = ", ".join([*words, *not_final(one.runs)])
    place = f" at gamma {setting.gammas[setting.training_index]:g}"
    ranking = ranked(setting.spec, scores, notes, place if setting.spec.gamma else "")
    return f"{setting.title[:1].upper()}{setting.title[1:]}: {ranking}"


def ranked(
    spec: ReportSpec,
    scores: Mapping[str, float],
    notes: Mapping[str, str],
    place: str = "",
) -> str:
    """Returns a sentence on scores by name with their notes, the best first."""
    sign = -1 if spec.higher_is_better else 1
    best_first = sorted(
        scores, key=lambda name: (np.isnan(scores[name]), sign * scores[name])
    )
    words = []
    for name in best_first:
        note = f" ({notes[name]})" if notes.get(name) else ""
        words.append(
            f"{name} {tables.number(spec.scale * scores[name], spec.form)}{note}"
        )
    first = ", best first" if len(words) > 1 else ""
    return f"{spec.heading}{place}{first}: {', '.join(words)}."


def not_final(runs: Sequence[Run]) -> list[str]:
    """Returns words on runs that have not ended: their figures may change."""
    ended = all(run.status.get("state") == FINISHED for run in runs)
    return [] if ended else ["not final"]


def warnings(settings: Sequence[Setting]) -> list[str]:
    """Returns warnings on single runs, on overfitting, signs of harmful constraints,
    and unequal comparisons."""
    lines = []
    for setting in settings:
        plain = {
            one: other for one, other in setting.pairs() if other.method == "plain"
        }
        for one in setting.variants:
            lines += on_runs(one.title, one.runs)
            if one.method == "constrained":
                lines += [
                    f"{one.title}: {line}" for line in _advice(one, plain.get(one))
                ]
        steps = {
            run.status.get("steps") for one in setting.variants for run in one.runs
        }
        seeds = {tuple(sorted(one.seeds)) for one in setting.variants}
        twice = any(len(set(each)) < len(each) for each in seeds)
        unequal = sorted({field for pair in setting.pairs() for field in unlike(*pair)})
        if len(seeds) > 1 or twice:
            unequal.insert(0, "seeds")
        if len(steps) > 1:
            unequal.insert(0, "steps")
        if unequal:
            lines.append(
                f"{setting.title}: compared runs differ in {', '.join(unequal)}."
            )
    return [line[:1].upper() + line[1:] for line in lines]


def on_runs(title: str, runs: Sequence[Run]) -> list[str]:
    """Returns warnings on runs of one model: not ended, steps that are lost, and
    overfitting."""
    lines = []
    for run in runs:
        state, steps = run.status.get("state"), run.status.get("steps")
        best = run.evaluation.get("best_step")
        if state != FINISHED:
            lines.append(
                f"{run.name} is not finished (state: {state}, {steps} steps): its"
                f" figures are of the checkpoint of step {best}."
            )
        done = len({row["step"] for row in run.rows("train")})
        if isinstance(steps, int) and done < steps:
            lines.append(
                f"{run.name}: metrics.jsonl has {done} of {steps} steps; figures of"
                " training lack the others."
            )
        messages = without_folders(run.status.get("messages") or [])
        lines += [f"{run.name}: {text}" for text in messages]
    return lines + _overfit(title, runs)


def _overfit(title: str, runs: Sequence[Run]) -> list[str]:
    """Returns a sentence where the test split is fitted much worse than the last steps
    before the checkpoint."""
    layered = runs[0].layered
    if not layered and runs[0].spec.layered:
        return []  # a user's figures, of a meaning that is not known
    name, form = ("loss", ".3g") if layered else ("accuracy", ".1%")
    pairs = []
    for run in runs:
        best = run.evaluation.get("best_step", np.inf)
        fitted = [row[name] for row in run.rows("train") if row["step"] <= best]
        last = fitted[-max(len(fitted) // LAST_STEPS, FEWEST_STEPS) :] or [np.nan]
        tested = run.values("layer_losses")[-1] if layered else run.evaluation[name]
        pairs.append([np.mean(last), tested])
    train, test = np.mean(pairs, axis=0)
    least = LEAST_LOSS if runs[0].spec.percent else 0.0
    overfits = train - test > ACCURACY_GAP
    if layered:
        overfits = test > least and test > LOSS_RATIO * train > 0
    sentence = (
        f"{title} overfits: {name} {train:{form}} in training, {test:{form}} on the"
        " test split; more data or a smaller network may help."
    )
    return [sentence] if overfits else []


def _advice(one: Variant, plain: Variant | None) -> list[str]:
    """Signs that constraints do harm, on the test split. f_0 is compared with that of
    the plain run."""
    losses, bounds = one.mean("layer_losses"), one.mean("bounds")
    if one.option("constraints.last") is not None or np.isnan(losses).any():
        return []  # the multiplier of a bound on the last loss is its weight
    bound = ~np.isnan(bounds)
    feasible = np.all(one.stack("feasible"))
    each_layer = one.runs[0].layers[-1] == len(losses) - 1
    known = plain.mean("layer_losses") if plain else np.array(np.nan)
    reached = known if np.isfinite(known).all() else None
    lines = constrained.descent_warnings(
        losses,
        # until bounds are met, large multipliers may be healthy
        one.mean("multipliers")[bound] if feasible else [0.0],
        bounds=bounds[bound] if each_layer and not feasible else None,
        start_losses=reached,
        plain_losses=reached,
    )
    return lines if feasible or plain else [*lines, WAY_TO_BOUNDS]
