"""How the benchmarks measure and print; times themselves are never asserted."""

import numpy as np
import pytest

from benchmarks.timing import interleaved, table


def test_candidates_take_turns_after_warming_up():
    calls = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1)
    assert calls == ["a", "b"] * 4
    assert {name: values.shape for name, values in seconds.items()} == {"a": (3,), "b": (3,)}
    assert all(np.all(values >= 0) for values in seconds.values())


def test_a_candidate_that_fails_is_not_hidden():
    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        interleaved({"broken": broken}, repeats=1)


def test_columns_line_up():
    text = table(["method", "ms"], [["erm", "1.5"], ["constrained", "12.0"]])
    assert text.splitlines() == ["method         ms", "erm           1.5", "constrained  12.0"]
