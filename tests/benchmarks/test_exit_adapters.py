"""Texts are packed whole, and the positions that count are those before the tokens of answers."""

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.exit_adapters.texts import ROW, Text, packed


def test_the_positions_that_count_are_those_before_answers():
    draw = np.random.default_rng(0)
    lengths, firsts = (200, 190, 150, 60, 40), (150, 180, 100, 59, 1)
    texts = [
        Text(draw.integers(0, 9, length).astype(np.int32) + 10 * number, first)
        for number, (length, first) in enumerate(zip(lengths, firsts, strict=True))
    ]
    tokens, segments, places, weights = packed(texts)
    assert tokens.shape == segments.shape == (2, ROW)
    assert (segments >= 0).sum() == sum(lengths)
    following = [int(tokens[row, place + 1]) for row, place in np.argwhere(counted(places, weights))]
    assert sorted(following) == sorted(int(token) for text in texts for token in text.tokens[text.first :])


def counted(places, weights):
    marks = np.zeros((len(places), ROW), bool)
    for row, place, weight in zip(marks, places, weights, strict=True):
        row[place[weight > 0]] = True
    return marks


def test_wrong_options_are_one_line(capsys):
    assert main(["exit_adapters"]) == 2
    assert "exit_adapters needs --root, the folder of Alpaca" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["digits", "--steps", "3"])
    assert "--steps is for exit_adapters alone; leave it out" in capsys.readouterr().err
