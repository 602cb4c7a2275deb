"""The figures in plain words: feasible or not, and which method is better where."""

from collections.abc import Iterator, Sequence

import numpy as np

from .groups import METHOD_NAMES, Setting, Variant, group, unlike
from .read import ACCURACY, CODES, LOSS, METHODS, RMSE, Run, Score
from .record import Array
from .tables import capital, number

# Differences of mean RMSE below this fraction are called equal: less than the step between two evaluations.
EQUAL = 0.01
TRAINED = {
    "erm": "plainly (erm: only the last layer's loss counts)",
    "deep_supervision": "with fixed weights on the losses of all layers (deep supervision)",
    "constrained": "with descent constraints (every layer must lower the loss by a given fraction)",
}


def methods_of(runs: Sequence[Run]) -> list[str]:
    """The methods that are there, plain first."""
    return [method for method in METHODS if any(run.method == method for run in runs)]


def opening(settings: Sequence[Setting], runs: Sequence[Run]) -> str:
    """Describes the comparison, and on video the terms it uses."""
    first, methods = runs[0], methods_of(runs)
    data = first.config.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    tested = first.evaluation[first.score.tested]
    if first.score is LOSS:
        return f"A task of your own, tested on {tested} examples."
    if first.score is CODES:
        return (
            f"Sparse coding ({source or 'unknown'}), {' and '.join(METHOD_NAMES[name] for name in methods)}: how far "
            f"the codes of {tested} held-out images are from the Lasso's solutions for the images without noise."
        )
    if "perplexity" in first.evaluation:
        return (
            f"A language model fine-tuned on instructions ({source or 'unknown'}), "
            f"{' and '.join(METHOD_NAMES[name] for name in methods)}, tested on the "
            f"{first.evaluation['num_tokens']} tokens of {tested} held-out answers, with embeddings that are perturbed "
            f"more and less than in training. Layers read out: {_joined(first.evaluation['layers'])}."
        )
    if first.score is not RMSE:
        return (
            f"Text classification ({source or 'unknown'}), {' and '.join(METHOD_NAMES[name] for name in methods)}, "
            f"tested on {tested} held-out texts whose embeddings are perturbed more and less than in training."
        )
    several = len(runs) > 1
    network, heading = ("the same unrolled network", "Compared") if several else ("an unrolled network", "Setting")
    return (
        f"Experiment {first.evaluation['experiment']}{f' (data source: {source})' if source else ''}: {network}, "
        f"trained {' and '.join(TRAINED[name] for name in methods)}, tested on {tested} held-out sequences with more "
        f"and less noise than in training. {heading}: {'; '.join(setting.title for setting in settings)}. A model is "
        f"called feasible if every layer's loss on the held-out data is within {first.values('tolerance'):.0%} of its "
        "bound."
    )


def floor(setting: Setting) -> str:
    """The score without training: of the noisy input, ISTA, or a class drawn at random; of a loss there is none."""
    if setting.score is RMSE:
        index = setting.training_index
        others = "".join(f"; {_rmse(scores[index])} of {name}" for name, scores in setting.floors().items())
        rmse = _rmse(setting.of_input()[index])
        return f"RMSE {rmse} at test gamma {setting.gammas[index]:g}, of the noisy input itself{others}."
    if setting.score is CODES:
        index = setting.training_index
        others = "".join(f"; {number(scores[index], 3)} of {name}" for name, scores in setting.floors().items())
        return f"relative error 1 of codes of zeros{others}, at test gamma {setting.gammas[index]:g}."
    if floors := setting.first.evaluation.get("floor_losses"):
        accuracies = {name: scores[setting.training_index] for name, scores in setting.floors().items()}
        words = (f"{accuracies[name]:.1%} and {loss:.3f} nats of {name}s" for name, loss in floors.items())
        return f"token accuracy and loss {'; '.join(words)}, counted on the answers of the train split."
    classes = setting.first.evaluation.get("class_names")
    return f"accuracy {1 / len(classes):.1%}, of a class of {len(classes)} drawn at random." if classes else ""


def compare(setting: Setting) -> str:
    """Verdict on one setting: is the constrained model feasible, then who is better in and out of distribution."""
    plain, constrained, rmse = setting.of("erm"), setting.of("constrained"), setting.score is RMSE
    sentences = [f"The {variant.title} model is {state_words(variant)}." for variant in constrained]
    if plain and rmse:
        kept = "keeps them without being asked" if all(one.feasible for one in plain) else "breaks them"
        sentences.append(f"Plain training, which does not enforce the bounds, {kept}.")
    if not plain or not constrained:
        sentences.append(f"No run of method {'constrained' if plain else 'erm'} was given here to compare with.")
    else:
        compared = {RMSE: _by_noise, CODES: _by_noise, LOSS: _by_loss}.get(setting.score, _by_area)
        duels = [*setting.duels(), *setting.duels("deep_supervision")]
        sentences += [compared(setting, other, enforced) for enforced, other in duels]
        alone = (
            []
            if setting.score is not ACCURACY
            else [other for enforced, other in setting.pairs() if other and enforced is None]
        )
        sentences += [f"Compared with none: {one.title}, area {number(one.areas().mean(), 3)}." for one in alone]
        if all(len(variant.runs) == 1 for variant in setting.variants):
            sentences.append("One seed each: how much of this is chance is not known.")
    if rmse:
        sentences += filter(None, (_no_gain(setting, variant) for variant in setting.variants))
    if setting.floors():
        sentences.append(_against_floors(setting))
    return f"{capital(setting.title)}: " + " ".join(sentences)


def run_verdict(run: Run) -> str:
    """One line on one run: feasible or not, and its score at the training noise."""
    (setting,) = group([run])
    (variant,), index = setting.variants, setting.training_index
    score = run.values(run.score.name)[index]
    if run.score is RMSE:
        noisy = setting.of_input()[index]
        outcome = f"RMSE {_rmse(score)} at test gamma {setting.gammas[index]}"
        if noisy > 0:
            change = f"{(score - noisy) / noisy:+.0%}" if np.isfinite(score) else "not comparable"
            outcome += f" ({change} against the noisy input)"
    elif run.score is CODES:
        outcome = f"relative error {score:.3f} at test gamma {setting.gammas[index]:g}"
    elif run.score is LOSS:
        outcome = f"loss {score:.4g}"
    else:
        area = variant.areas()[0]
        outcome = f"accuracy {score:.1%} at test gamma {setting.gammas[index]}"
        outcome += f", area {area:.3f}" if np.isfinite(area) else ""
    seed = run.evaluation["seed"]
    return f"{run.name}: {run.method}, {setting.title}, seed {seed}: {state_words(variant)}; {outcome}"


def _by_loss(setting: Setting, plain: Variant, constrained: Variant) -> str:
    ours, other = constrained.scores().mean(), plain.scores().mean()
    return f"Loss of the last layer: {ours:.4g} {constrained.title}, {other:.4g} {plain.title}."


def notes(settings: Sequence[Setting]) -> list[str]:
    """Lists what weakens a comparison: unfinished runs, unequal steps, seeds or configurations, infeasible ends."""
    sentences = []
    for run in (run for setting in settings for variant in setting.variants for run in variant.runs):
        state = run.status.get("state", "unknown")
        if state != "finished":
            sentences.append(f"{run.name} is not finished (state: {state}, {run.status.get('steps', '?')} steps).")
    for setting in settings:
        title = capital(setting.title)
        members = [run for variant in setting.variants for run in variant.runs]
        steps = sorted({run.status["steps"] for run in members if "steps" in run.status})
        if len(steps) > 1:
            sentences.append(f"{title}: runs were trained for unequal steps ({_joined(steps)}).")
        seeds = {tuple(sorted(run.evaluation["seed"] for run in variant.runs)) for variant in setting.variants}
        if len(seeds) > 1:
            sentences.append(f"{title}: the variants do not share the same seeds.")
        if any(len(set(s)) < len(s) for s in seeds):
            sentences.append(f"{title}: two runs share config and seed; both count as a seed.")
        if setting.train_gamma not in setting.gammas:
            nearest = setting.gammas[setting.training_index]
            sentences.append(f"{title} was not tested at its training gamma; {nearest} stands for it.")
        sentences += [f"{title}: {words}" for words in _beyond_constraints(setting)]
    return sentences


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
    for constrained, plain in (*setting.duels(), *setting.duels("deep_supervision")):
        if fields := unlike(constrained, plain):
            words = ", ".join(
                f"{name} {value} ({METHOD_NAMES[plain.method]}: {other})" for name, (value, other) in fields.items()
            )
            titles.setdefault((plain.title, words), []).append(constrained.title)
    for (plain, words), compared in titles.items():
        yield f"{_joined(compared)} and {plain} differ in more than constraints: {words}."


def _by_noise(setting: Setting, plain: Variant, constrained: Variant) -> str:
    """The errors of the two variants at the training noise and averaged over stronger and over weaker noise."""
    gammas, index = setting.gammas, setting.training_index
    ranges = (
        (f"At the training noise (gamma {gammas[index]:g})", np.arange(len(gammas)) == index),
        ("On stronger noise than in training", gammas > gammas[index]),
        ("On weaker noise", gammas < gammas[index]),
    )
    sentences = []
    for where, chosen in ranges:
        if chosen.any():
            averaged = int(chosen.sum()) > 1
            span = f" (gamma {gammas[chosen].min():g} to {gammas[chosen].max():g})" if averaged else ""
            scores = plain.scores()[:, chosen].mean(1), constrained.scores()[:, chosen].mean(1)
            titles = plain.title, constrained.title
            sentences.append(f"{where}{span}: {_better(scores, titles, setting.score, averaged=averaged)}")
    return " ".join(sentences)


def _better(scores: tuple[Array, Array], titles: tuple[str, str], score: Score, *, averaged: bool) -> str:
    """Says which of two variants is better, plain first, and by how much."""
    plain, constrained = scores
    first, second = float(plain.mean()), float(constrained.mean())
    several = len(plain) > 1 and len(constrained) > 1
    name, digits = f"mean {score.title}" if averaged or several else score.title, _digits(score)
    figures = f"{name} {number(second, digits)} {titles[1]}, {number(first, digits)} {titles[0]}"
    if not np.isfinite([first, second]).all():
        return f"{figures}; not comparable."
    worse = max(first, second)
    difference = (worse - min(first, second)) / worse if worse > 0 else 0.0
    if difference < EQUAL:
        return f"{figures}; practically equal."
    winner = titles[0] if first < second else titles[1]
    return f"{figures}; the {winner} model is better by {difference:.1%}{_doubt(plain, constrained)}."


def _by_area(setting: Setting, plain: Variant, constrained: Variant) -> str:
    """The areas under the accuracy of the two variants, and their accuracies at the weakest noise."""
    ours, other = constrained.areas(), plain.areas()
    clean = 100 * (constrained.scores().mean(0)[0] - plain.scores().mean(0)[0])
    points = f"at gamma {setting.gammas[0]:g} {number(clean, 2, sign=True)} points of accuracy"
    if not np.isfinite([*ours, *other]).all():
        return f"{constrained.title.capitalize()} against {plain.title}: {points}."
    return (
        f"Area under the accuracy: {ours.mean():.3f} {constrained.title}, {other.mean():.3f} {plain.title} "
        f"({number(ours.mean() - other.mean(), 3, sign=True)}{_doubt(ours, other)}); {points}."
    )


def _doubt(one: Array, other: Array) -> str:
    overlap = len(one) > 1 and len(other) > 1 and one.min() <= other.max() and other.min() <= one.max()
    return ", but the seeds' ranges overlap" if overlap else ""


def _no_gain(setting: Setting, variant: Variant) -> str:
    index = setting.training_index
    noisy, rmse = setting.of_input()[index], variant.scores().mean(0)[index]
    if noisy > 0 and not rmse < noisy:
        figures = f"RMSE {_rmse(rmse)}, noisy input {_rmse(noisy)}"
        return f"The {variant.title} model does not clean its input: {figures}."
    return ""


def _against_floors(setting: Setting) -> str:
    """The floors at the training noise, and which models are better than which of them."""
    index, score, sentences = setting.training_index, setting.score, []
    for name, scores in setting.floors().items():
        sign = -1 if score is ACCURACY else 1
        better = [one.title for one in setting.variants if sign * one.scores().mean(0)[index] < sign * scores[index]]
        words = f"better: {_joined(better)}" if better else "no model here is better"
        figure = 100 * scores[index] if score is ACCURACY else scores[index]
        sentences.append(f"{name} {number(figure, _digits(score))} ({words})")
    return f"Without a network, at gamma {setting.gammas[index]:g}: {score.title} {'; '.join(sentences)}."


def _digits(score: Score) -> int:
    """Digits behind the point, in words."""
    return 3 if score is CODES else 1


def _rmse(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "not a number"


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
