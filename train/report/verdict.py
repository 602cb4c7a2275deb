"""What the figures say, in plain words: feasible or not, and which method is better where."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from train.report.groups import Setting, Variant, group, unlike
from train.report.read import Run

__all__ = ["compare", "feasibility", "notes", "opening", "run_verdict", "state_words"]

# Differences of mean RMSE below this fraction are called equal: less than the step between two evaluations.
EQUAL = 0.01
TRAINED = {
    "erm": "plainly (erm: only the last layer's loss counts)",
    "constrained": "with descent constraints (every layer must lower the loss by a given fraction)",
}

Array = NDArray[np.float64]


def opening(settings: Sequence[Setting], runs: Sequence[Run]) -> str:
    """One sentence on what was compared, one on what the words mean."""
    first = runs[0]
    data = first.config.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    on_data = f" (data source: {source})" if source else ""
    what = "; ".join(setting.title for setting in settings)
    tolerance = f"{first.scalar('tolerance'):.0%}"
    trained = " and ".join(words for method, words in TRAINED.items() if any(run.method == method for run in runs))
    several = len(runs) > 1
    network, heading = ("the same unrolled network", "Compared") if several else ("an unrolled network", "Setting")
    return (
        f"Experiment {first.evaluation['experiment']}{on_data}: {network}, trained {trained}, tested on "
        f"{first.evaluation['num_sequences']} held-out sequences with more and less noise than in training. "
        f"{heading}: {what}. A model is called feasible if every layer's loss on the held-out data is within "
        f"{tolerance} of its bound."
    )


def compare(setting: Setting) -> str:
    """Verdict on one setting: is the constrained model feasible, then who is better in and out of distribution."""
    plain, constrained = setting.of("erm"), setting.of("constrained")
    sentences = [feasibility(variant) for variant in constrained]
    if plain:
        kept = "keeps them without being asked" if all(one.feasible for one in plain) else "breaks them"
        sentences.append(f"Plain training, which does not enforce the bounds, {kept}.")
    if not plain or not constrained:
        missing = "constrained" if plain else "erm"
        sentences.append(f"No run of method {missing} was given here to compare with.")
    else:
        sentences += [_duel(setting, other, own) for own, other in setting.duels()]
        if all(len(variant.runs) == 1 for variant in setting.variants):
            sentences.append("One seed each: how much of this is chance is not known.")
    sentences += [words for variant in setting.variants if (words := _no_gain(setting, variant))]
    return f"{_capital(setting.title)}: " + " ".join(sentences)


def feasibility(variant: Variant) -> str:
    """Whether a variant is feasible, and the layer that is furthest out or has the least room."""
    return f"The {variant.title} model is {state_words(variant)}."


def run_verdict(run: Run) -> str:
    """One line on one run: feasible or not, and its RMSE at the training noise beside the noisy input's."""
    setting = group([run])[0]
    index = setting.training_index
    rmse, noisy = run.scores()[index], run.by_gamma("noisy_rmse")[index]
    gain = f" ({_change(rmse, noisy)} against the noisy input)" if noisy > 0 else ""
    return (
        f"{run.name}: {run.method}, {setting.title}, seed {run.evaluation['seed']}: "
        f"{state_words(setting.variants[0])}; RMSE {_number(rmse)} at test gamma {setting.gammas[index]}{gain}"
    )


def notes(settings: Sequence[Setting]) -> list[str]:
    """What weakens a comparison: unfinished runs, unequal steps, seeds or configurations, infeasible ends."""
    found = []
    for run in (run for setting in settings for variant in setting.variants for run in variant.runs):
        state = run.status.get("state", "unknown")
        if state != "finished":
            found.append(f"{run.name} is not finished (state: {state}, {run.status.get('steps', '?')} steps).")
    for setting in settings:
        members = [run for variant in setting.variants for run in variant.runs]
        steps = sorted({run.status["steps"] for run in members if "steps" in run.status})
        if len(steps) > 1:
            found.append(f"{_capital(setting.title)}: runs were trained for unequal steps ({_joined(steps)}).")
        seeds = {tuple(sorted(run.evaluation["seed"] for run in variant.runs)) for variant in setting.variants}
        if len(seeds) > 1:
            found.append(f"{_capital(setting.title)}: the variants do not share the same seeds.")
        if any(len(set(s)) < len(s) for s in seeds):
            found.append(f"{_capital(setting.title)}: two runs share config and seed; both count as a seed.")
        if setting.train_gamma not in map(float, setting.gammas):
            nearest = setting.gammas[setting.training_index]
            found.append(f"{_capital(setting.title)} was not tested at its training gamma; {nearest} stands for it.")
        found += [f"{_capital(setting.title)}: {words}" for words in _beyond_constraints(setting)]
    return found


def state_words(variant: Variant) -> str:
    """Feasible or not, for how many seeds, and the layer that is furthest out or has the least room."""
    count, failed = len(variant.runs), len(variant.runs) - variant.feasible_runs
    enforced = variant.method == "constrained"
    verdict = ("NOT feasible" if enforced else "not feasible, which was not asked of it") if failed else "feasible"
    if count > 1:
        verdict += f" for {failed} of {count} seeds" if failed else f" for all {count} seeds"
    seed, layer, margin = variant.worst()
    if not np.isfinite(margin):
        return verdict
    where = f"{'worst' if margin < 0 else 'tightest'}: layer {layer}" + (
        f" of seed {variant.runs[seed].evaluation['seed']}" if count > 1 else ""
    )
    room = f"{-margin:.1%} over its bound" if margin < 0 else f"{margin:.1%} below its bound"
    return f"{verdict} ({where}, {room})"


def _beyond_constraints(setting: Setting) -> Iterator[str]:
    """In what compared models differ besides constraints; a sentence for all that differ in the same."""
    titles: dict[tuple[str, str], list[str]] = {}
    for own, plain in setting.duels():
        if fields := unlike(own, plain):
            words = ", ".join(f"{name} {value} (plain: {other})" for name, (value, other) in fields.items())
            titles.setdefault((plain.title, words), []).append(own.title)
    for (plain, words), own in titles.items():
        yield f"{_joined(own)} and {plain} differ in more than constraints: {words}."


def _duel(setting: Setting, plain: Variant, constrained: Variant) -> str:
    """RMSE of the two variants at the training noise and averaged over stronger and over weaker noise."""
    gammas = np.array([float(gamma) for gamma in setting.gammas])
    index = setting.training_index
    ranges = (
        (f"at the training noise (gamma {gammas[index]:g})", np.arange(len(gammas)) == index),
        ("on stronger noise than in training", gammas > gammas[index]),
        ("on weaker noise", gammas < gammas[index]),
    )
    sentences = []
    for where, chosen in ranges:
        if chosen.any():
            span = _span(gammas[chosen]) if chosen.sum() > 1 else ""
            scores = plain.scores()[:, chosen].mean(1), constrained.scores()[:, chosen].mean(1)
            titles = plain.title, constrained.title
            sentences.append(_capital(f"{where}{span}: {_better(scores, titles, averaged=int(chosen.sum()) > 1)}"))
    return " ".join(sentences)


def _better(scores: tuple[Array, Array], titles: tuple[str, str], *, averaged: bool) -> str:
    """Which of two variants is better, plain first, and by how much."""
    plain, constrained = scores
    first, second = float(plain.mean()), float(constrained.mean())
    several = len(plain) > 1 and len(constrained) > 1
    name = "mean RMSE" if averaged or several else "RMSE"
    figures = f"{name} {_number(second)} {titles[1]}, {_number(first)} {titles[0]}"
    if not np.isfinite([first, second]).all():
        return f"{figures}; not comparable."
    worse = max(first, second)
    difference = (worse - min(first, second)) / worse if worse > 0 else 0.0
    if difference < EQUAL:
        return f"{figures}; practically equal."
    winner = titles[0] if first < second else titles[1]
    overlap = plain.min() <= constrained.max() and constrained.min() <= plain.max()
    doubt = ", but the seeds' ranges overlap" if several and overlap else ""
    return f"{figures}; the {winner} model is better by {difference:.1%}{doubt}."


def _no_gain(setting: Setting, variant: Variant) -> str:
    index = setting.training_index
    noisy, rmse = setting.noisy_rmse()[index], variant.scores().mean(0)[index]
    if noisy > 0 and not rmse < noisy:
        figures = f"RMSE {_number(rmse)}, noisy input {_number(noisy)}"
        return f"The {variant.title} model does not clean its input: {figures}."
    return ""


def _span(gammas: Array) -> str:
    return f" (gamma {gammas.min():g} to {gammas.max():g})"


def _number(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "not a number"


def _change(value: float, reference: float) -> str:
    return f"{(value - reference) / reference:+.0%}" if np.isfinite(value) else "not comparable"


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
