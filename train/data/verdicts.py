"""Made-up verdicts on films, whose class takes more than one word to tell; generated, so nothing is needed for them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from .files import Log, fingerprint_program
from .prepare import Source
from .rows import Labelled, TextSet

T = TypeVar("T")

CLASSES = ("negative", "positive")
SIZES = {"train": 2000, "validation": 400, "test": 400}
SEED = 0
# Chances, chosen so that neither single words nor pairs of words are enough; see `open_verdicts`.
ONE_CLAUSE, NEGATED, ADORNED = 0.6, 0.5, 0.3

TOPICS = ("acting", "cast", "dialogue", "ending", "humour", "music", "pacing", "plot", "premise", "scenery", "script")
WORDS = (
    ("awful", "boring", "clumsy", "dreary", "dull", "flat", "lazy", "messy", "stale", "tedious"),
    ("brilliant", "charming", "clever", "elegant", "fresh", "gripping", "moving", "superb", "tender", "witty"),
)
VERBS = ("was", "seemed", "felt", "remained")
NEGATIONS = ("not", "never", "hardly")
DEGREES = ("very", "really", "quite", "truly")
OPENINGS = (("in", "the", "end"), ("to", "be", "honest"), ("for", "once"), ("this", "time"), ("all", "told"))
ENDINGS = (
    ("to", "me"),
    ("from", "start", "to", "finish"),
    ("most", "of", "the", "time"),
    ("for", "two", "long", "hours"),
)
CONCESSIONS = ("although", "though", "while")


@contextlib.contextmanager
def open_verdicts(_: Path, __: Log) -> Iterator[TextSet]:
    """2,000 sentences to train, 400 to validate, 400 to test, all different, half of them of each class.

    Six in ten have one clause, "the plot was not really dull .", in which every other adjective is negated: the class
    takes the adjective together with the negation. The others set a second clause of the opposite verdict against it,
    "although the music seemed fresh , the plot was not clever .": the main clause decides, whether it stands first or
    last, and "but" makes the last one main. With each of these comes equally often the sentence whose clauses have
    changed places, which has the same words and the other class. So a model that sees which words there are, in no
    order, is right about at most eight in ten sentences however clever it is, and one that adds up words about five.
    """
    generator, seen = np.random.default_rng(SEED), set()
    yield TextSet(CLASSES, {split: _sentences(generator, size, seen) for split, size in SIZES.items()})


def _sentences(generator: np.random.Generator, count: int, seen: set[str]) -> list[Labelled]:
    found: list[Labelled] = []
    while len(found) < count:
        sentence = _sentence(generator, len(found) % 2)
        if sentence.text not in seen:
            seen.add(sentence.text)
            found.append(sentence)
    return found


def _sentence(generator: np.random.Generator, label: int) -> Labelled:
    topics = generator.choice(len(TOPICS), 2, replace=False)
    main, other = (_clause(generator, TOPICS[topic], label ^ side) for side, topic in enumerate(topics))
    words = main
    if generator.random() >= ONE_CLAUSE:
        concession = _pick(generator, CONCESSIONS)
        forms = (concession, *other, ",", *main), (*main, ",", concession, *other), (*other, ",", "but", *main)
        words = forms[generator.integers(len(forms))]
    if generator.random() < ADORNED:
        words = (*_pick(generator, OPENINGS), ",", *words)
    return Labelled(" ".join((*words, ".")), label)


def _clause(generator: np.random.Generator, topic: str, praise: int) -> tuple[str, ...]:
    """The words of a clause that praises its topic, or not."""
    negated = int(generator.random() < NEGATED)
    negation = (_pick(generator, NEGATIONS),) if negated else ()
    degree = (_pick(generator, DEGREES),) if generator.random() < ADORNED else ()
    ending = _pick(generator, ENDINGS) if generator.random() < ADORNED else ()
    return "the", topic, _pick(generator, VERBS), *negation, *degree, _pick(generator, WORDS[praise ^ negated]), *ending


def _pick(generator: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(generator.integers(len(choices)))]


SOURCE = Source(fingerprint_program(__file__), open_verdicts)  # a function of this file alone
