"""Words: the tokenizer, and pairs of texts."""

import pytest

from unroll_jax.train.data.words import WordTokenizer, tokenise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", ["do", "n't", "stop"]),
        ("you've he's it’s", ["you", "'ve", "he", "'s", "it", "'s"]),
        ("you 've ca n't", ["you", "'ve", "ca", "n't"]),
        ("end.The next", ["end", ".", "the", "next"]),
        ("U.S. 3.5 1,000", ["u.s.", "3.5", "1,000"]),
        ("one<br /><br/>two<BR>three", ["one", "two", "three"]),
        ("well-made (k-19)", ["well-made", "(", "k-19", ")"]),
        ("-LRB- director\\/writer -rrb-", ["-lrb-", "director", "/", "writer", "-rrb-"]),
        ("Crème brûlée...", ["crème", "brûlée", "..."]),
        (" \t\n", []),
    ],
)
def test_texts_are_split_into_the_words_of_the_treebank(text, words):
    assert tokenise(text) == words


@pytest.mark.parametrize(
    ("max_length", "expected", "truncated"),
    [
        (None, "a b c d e f | g h i", 0),
        (10, "a b c d e f | g h i", 0),
        (9, "a b c d e | g h i", 1),
        (8, "a b c d | g h i", 1),
        (7, "a b c | g h i", 1),
        (6, "a b c | g h", 1),
        (3, "a | g", 1),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_pairs_are_joined_and_the_longer_text_loses_its_end_first(max_length, expected, truncated, swapped):
    words = WordTokenizer("abcdefghi")
    pair, (first, second) = ("a b c d e f", "g h i"), expected.split(" | ")
    if swapped:
        pair = pair[::-1]
        if max_length == 6:
            first, second = "a b", "g h i"
        first, second = second, first
    encoded = words.encode([pair[0]], [pair[1]], max_length=max_length)
    joined = [*first.split(), "<separator>", *second.split()]
    assert [words.vocabulary[token] for token in encoded.tokens[0]] == joined
    assert encoded.token_types[0].tolist() == [0] * (len(first.split()) + 1) + [1] * len(second.split())
    assert encoded.truncated == truncated
