"""The verdict of a report: a few sentences a setting, all computed here, and warnings of unequal comparisons."""

from collections.abc import Iterator, Sequence

import numpy as np

from .groups import METHOD_NAMES, Setting, Variant, unlike
from .records import METHODS
from .tables import capital, differences, number

ONE_SEED = "One seed each: differences of a few percent may be chance."
EQUAL = 0.01  # relative differences of layers' losses that count as none


def verdict(setting: Setting) -> list[str]:
    """Returns up to five sentences: the best method, what constraints change, feasibility, floors, seeds."""
    sentences = [_best(setting), _against(setting), _feasibility(setting), _floors(setting), _seeds(setting)]
    first, *others = filter(None, sentences)
    return [f"{capital(setting.title)}: {first}", *others]


def reference_scores(setting: Setting) -> str:
    """The scores without a network at the training noise, in words; empty where there are none."""
    index = setting.training_index
    return ", ".join(f"{name} {_score(setting, scores[index])}" for name, scores in setting.floors().items())


def warnings(settings: Sequence[Setting]) -> list[str]:
    """Returns reasons to doubt a comparison: unfinished runs, unequal steps, seeds or configurations."""
    sentences = []
    for setting in settings:
        title = capital(setting.title)
        members = [run for variant in setting.variants for run in variant.runs]
        for run in members:
            state = run.status.get("state", "unknown")
            if state != "finished":
                sentences.append(f"{run.name} is not finished (state: {state}, {run.status.get('steps', '?')} steps).")
        steps = sorted({run.status["steps"] for run in members if "steps" in run.status})
        if len(steps) > 1:
            sentences.append(f"{title}: runs were trained for unequal steps ({_joined(steps)}).")
        seeds = [sorted(run.evaluation["seed"] for run in variant.runs) for variant in setting.variants]
        if any(other != seeds[0] for other in seeds):
            sentences.append(f"{title}: the variants do not share the same seeds.")
        if any(len(set(one)) < len(one) for one in seeds):
            sentences.append(f"{title}: two runs share config and seed; both count as a seed.")
        sentences += [f"{title}: {words}" for words in _beyond_constraints(setting)]
    return sentences


def feasibility_words(variant: Variant) -> str:
    """Feasible or not, for how many seeds, and the layer that is furthest out or has the least room."""
    count, failed = len(variant.runs), len(variant.runs) - variant.feasible_runs
    words = "NOT feasible" if failed else "feasible"
    if count > 1:
        words += f" for {failed} of {count} seeds" if failed else f" for all {count} seeds"
    seed, layer, margin = variant.worst()
    if not np.isfinite(margin):
        return words
    which = f"layer {layer}" + (f" of seed {variant.runs[seed].evaluation['seed']}" if count > 1 else "")
    over, within = "over its bound", "below its bound"
    return f"{words} ({which} is {abs(margin):.1%} {over if margin < 0 else within})"


def _best(setting: Setting) -> str:
    """The best variant of each method at the training noise, the best method first."""
    index, spec = setting.training_index, setting.spec
    sign, ranked = -1.0 if spec.higher_is_better else 1.0, []
    for method in METHODS:
        scores = [(float(one.scores()[:, index].mean()), one.label) for one in setting.of(method)]
        if finite := [row for row in scores if np.isfinite(row[0])]:
            score, label = min(finite, key=lambda row: sign * row[0])
            chosen = f" (best of {len(finite)}: {label})" if len(finite) > 1 else ""
            ranked.append((sign * score, METHOD_NAMES[method], f"{_score(setting, score)}{chosen}"))
    metric = spec.title + (f" at the training noise (gamma {setting.gammas[index]:g})" if spec.gamma else "")
    if not ranked:
        return f"{metric} is not a number in any run."
    words = _joined([f"{method} {score}" for _, method, score in sorted(ranked)])
    return f"{metric}{', best first' if len(ranked) > 1 else ''}: {words}."


def _against(setting: Setting) -> str:
    """The differences of the first constrained variant to the others, as in the table of comparisons."""
    pairs, parts = setting.pairs(), []
    gammas = setting.gammas[setting.gammas > setting.gammas[setting.training_index]]
    for one, other in (pair for pair in pairs if pair[0] is pairs[0][0]):
        gaps = differences(setting, one, other)
        if len(gaps):
            there, beyond, _ = (_change(setting, float(column.mean())) for column in gaps.T)
            parts.append(f"against {other.title} {there}" + (f", {beyond} under stronger noise" if len(gammas) else ""))
    if not parts:
        return ""
    span = f" (mean of the differences at gamma {gammas[0]:g} to {gammas[-1]:g})" if len(gammas) > 1 else ""
    return f"{capital(pairs[0][0].title)} training changes the {setting.spec.title}: {'; '.join(parts)}{span}."


def _change(setting: Setting, gap: float) -> str:
    unit = " points" if setting.spec.percent else "%"
    return f"{number(gap, 1, sign=True)}{unit if np.isfinite(gap) else ''}"


def _feasibility(setting: Setting) -> str:
    """Feasibility of the constrained variants, and the layers that they make better or worse than plain ones."""
    constrained = setting.of("constrained")
    if not constrained:
        return ""
    first, count = constrained[0], sum(one.feasible for one in constrained)
    words = f"The {first.title} model is {feasibility_words(first)}"
    if len(constrained) > 1:
        words = f"{count} of {len(constrained)} constrained variants are feasible"
    plain = [other for one, other in setting.pairs() if one is first and other.method == "erm"]
    if not plain:
        return f"{words}."
    ratios = first.mean("layer_losses") / plain[0].mean("layer_losses")
    lower = [layer for layer, ratio in zip(setting.layers, ratios, strict=True) if ratio < 1.0 - EQUAL]
    higher = [layer for layer, ratio in zip(setting.layers, ratios, strict=True) if ratio > 1.0 + EQUAL]
    parts = [
        f"{way} at layer{'s' * (len(some) > 1)} {_spans(some)}"
        for way, some in (("lower", lower), ("higher", higher))
        if some
    ]
    changed = " and ".join(parts) or "the same (within 1%) at every layer"
    return f"{words}; its loss on held-out data, against plain training, is {changed}."


def _floors(setting: Setting) -> str:
    """The scores without a network at the training noise, and those that the best model does not improve on."""
    if not (words := reference_scores(setting)):
        return ""
    sign, index = -1.0 if setting.spec.higher_is_better else 1.0, setting.training_index
    best = min(sign * float(one.scores()[:, index].mean()) for one in setting.variants)
    unbeaten = [name for name, scores in setting.floors().items() if not best < sign * scores[index]]
    judged = f"no model is better than {' or '.join(unbeaten)}" if unbeaten else "the best model is better than each"
    return f"Without a network: {words}; {judged}."


def _seeds(setting: Setting) -> str:
    counts = {len(variant.runs) for variant in setting.variants}
    if counts == {1}:
        return ONE_SEED
    return f"Means are over {_joined(sorted(counts))} seeds; ranges are from the smallest to the largest seed."


def _beyond_constraints(setting: Setting) -> Iterator[str]:
    """Fields other than constraints in which compared models differ; a sentence for all that differ in the same."""
    titles: dict[tuple[str, str], list[str]] = {}
    for constrained, other in setting.pairs():
        if fields := unlike(constrained, other):
            words = ", ".join(
                f"{name} {value} ({METHOD_NAMES[other.method]}: {second})" for name, (value, second) in fields.items()
            )
            titles.setdefault((other.title, words), []).append(constrained.title)
    for (other, words), compared in titles.items():
        yield f"{_joined(compared)} and {other} differ in more than constraints: {words}."


def _score(setting: Setting, value: float) -> str:
    if setting.spec.percent:
        return f"{number(100 * value, 1)}%"
    return number(value, setting.spec.digits)


def _spans(layers: Sequence[int]) -> str:
    """Numbers in words, as in "1 to 3, 5"."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][-1] + 1:
            spans[-1].append(layer)
        else:
            spans.append([layer])
    return ", ".join(f"{span[0]}" if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans)


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
