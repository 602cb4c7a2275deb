"""The generated verdicts: what they are, and that no single words tell their class."""

import re

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from unroll_jax.train.config.data import TextConfig
from unroll_jax.train.data import generated
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.text import load


@pytest.fixture(scope="module")
def verdict_texts(tmp_path_factory):
    data = load(TextConfig(prepared=str(tmp_path_factory.mktemp("prepared"))), log=lambda line: None)
    return {split: data.read(split, range(data.num_examples(split))) for split in SPLITS}


def praise(clause):
    """Whether a clause praises, from its words."""
    negative, positive = generated.WORDS
    good = [word in positive for word in clause.split() if word in (*negative, *positive)]
    assert len(good) == 1, clause
    return int(good[0]) ^ bool({*clause.split()} & {*generated.NEGATIONS})


def verdict(sentence):
    """The class by the rule of the grammar: the main clause decides."""
    for opening in generated.OPENINGS:
        sentence = sentence.removeprefix(" ".join(opening) + " , ")
    clauses = sentence.removesuffix(" .").split(" , ")
    main = [clause for clause in clauses if clause.split()[0] not in generated.CONCESSIONS]
    return praise(main[-1])


def test_verdicts_are_distinct_balanced_and_the_same_every_time(verdict_texts):
    texts = [text for split in SPLITS for text in verdict_texts[split].texts]
    assert len(set(texts)) == len(texts) == 2800
    assert [verdict_texts[split].labels.sum() for split in SPLITS] == [1000, 200, 200]
    with generated.open_verdicts(*[None, None]) as again:  # pyright: ignore (neither is used)
        assert [text for split in SPLITS for text, *_ in again.splits[split]] == texts


def test_the_main_clause_of_a_verdict_decides(verdict_texts):
    for texts, labels, _ in verdict_texts.values():
        assert [verdict(text) for text in texts] == labels.tolist()


def test_single_words_tell_nothing_of_a_verdict_and_words_without_order_not_enough(verdict_texts):
    train, test = verdict_texts["train"], verdict_texts["test"]
    counts = CountVectorizer(token_pattern=r"\S+").fit(train.texts)
    words = LogisticRegression(max_iter=1000).fit(counts.transform(train.texts), train.labels)
    assert 0.4 < words.score(counts.transform(test.texts), test.labels) < 0.6
    # Clauses that change places keep the words and change the class: no model without order gets both right.
    swapped = [(text, swap(text)) for text in test.texts if swap(text) != text]
    assert 0.2 < len(swapped) / len(test.texts) < 0.35  # two forms of three, of four sentences in ten
    for text, other in swapped:
        assert sorted(other.split()) == sorted(text.split())
        assert verdict(other) != verdict(text)


def swap(sentence):
    """The sentence whose clauses have changed places, where it has a concession; else itself."""
    concession = f"({'|'.join(generated.CONCESSIONS)})"
    last = rf"(.*?, )?(the [^,]*) , {concession} (the [^,]*) \."
    first = rf"(.*?, )?{concession} (the [^,]*) , (the [^,]*) \."
    if match := re.fullmatch(first, sentence):
        return f"{match[1] or ''}{match[2]} {match[4]} , {match[3]} ."
    return re.sub(last, lambda tail: f"{tail[1] or ''}{tail[4]} , {tail[3]} {tail[2]} .", sentence)
