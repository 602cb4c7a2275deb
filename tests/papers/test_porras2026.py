"""Counts on the tables of the constrained paper."""

from pathlib import Path

import numpy as np
import pytest

from papers.porras2026 import TABLE_3, TABLE_4, cells, count, main

PAGE = (
    Path(__file__).resolve().parents[2]
    / "docs"
    / "results"
    / "what_the_tables_support.md"
)


def test_tables_are_whole_and_hold_figures_of_the_text():
    assert {
        name: cells(text, 6).shape for name, text in TABLE_3.items()
    } == dict.fromkeys(TABLE_3, (5, 3, 2))
    assert {
        name: cells(text, 4).shape for name, text in TABLE_4.items()
    } == dict.fromkeys(TABLE_4, (6, 2, 2))
    # Avenue, gamma 0.13
    assert cells(TABLE_3["DUST 7"], 6)[3, 0].tolist() == [14.515, 63.309]
    # IMDB, gamma 1
    assert cells(TABLE_4["RoBERTa"], 4)[5, 0].tolist() == [1.874, 1.824]


def test_equal_cells_are_left_out_of_the_sign_test():
    better, several, p = count(
        np.array([1.0, 1.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0, 2.0]), lower=True
    )
    assert (better, several) == (3, 3)
    assert p == pytest.approx(2 * 0.5**3)


def test_the_page_has_the_tables_that_the_script_prints(capsys):
    main()
    page = PAGE.read_text(encoding="utf-8")
    rows = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("|")
    ]
    assert len(rows) == 14
    assert all(row in page for row in rows)
