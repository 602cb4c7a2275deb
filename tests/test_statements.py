"""Every numbered statement of the three papers: its test, or why it has none
(docs/explanation/statements.md)."""

import ast
import fnmatch
import re
from pathlib import Path

import pytest

from unroll_jax.train.registry import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "explanation" / "statements.md").read_text(encoding="utf-8")
# The numbered statements in print, without definitions and assumptions, which are
# conditions of the others.
STATEMENTS = {
    "Yang, Huang, Wipf (2022)": [
        "Theorem 3.1",
        "Remark 3.2",
        "Theorem 4.1",
        "Remark 4.2",
        "Lemma 4.3",
        "Remark 4.4",
        "Corollary 4.5",
        "Theorem 5.1",
        "Proposition A.1",
        "Proposition A.2",
        "Proposition B.1",
        "Theorem B.2",
        "Lemma D.1",
        "Lemma D.2",
        "Lemma D.3",
        "Lemma D.4",
    ],
    "Xie et al. (2021)": [
        *(f"Lemma {number}" for number in range(1, 20)),
        *(f"Theorem {number}" for number in range(1, 6)),
        *("Corollary 1", "Remark 1", "Remark 2"),
    ],
    "Porras-Valenzuela, Hadou, Ribeiro": [
        "Theorem 1",
        "Theorem 2",
        "Corollary 3",
        "Theorem 4",
    ],
}
ROW = re.compile(
    r"^\| ((?:Theorem|Lemma|Corollary|Remark|Proposition) [\w.]+) \| (.*) \| (.*) \|$",
    re.MULTILINE,
)
SECTIONS = {
    title.strip(): ROW.findall(text)
    for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", PAGE, re.M)
}


@pytest.mark.parametrize("paper", STATEMENTS)
def test_every_statement_has_a_test_or_a_reason(
    paper,
):
    assert [label for label, _, _ in SECTIONS[paper]] == STATEMENTS[paper]
    for label, _, evidence in SECTIONS[paper]:
        tests = re.findall(r"`([\w/]+\.py)::(\w+)`", evidence)
        assert tests or evidence.startswith("none: "), label
        for path, name in tests:
            functions = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
            assert name in {
                node.name for node in functions if isinstance(node, ast.FunctionDef)
            }, f"{label}: {name}"


def test_every_row_of_the_papers_has_a_test():
    page = (ROOT / "docs" / "explanation" / "rows.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.M)
    counts = range(1, 106)
    assert ", ".join(one for one, *_ in rows) == ", ".join(map(str, counts))
    states = re.compile("checked|ran |one ran|contradicted|not run")
    for number, _, place, evidence, state in rows:
        assert states.match(state), number
        for name in re.findall(r"`([\w/]+\.py)`", evidence):
            assert (ROOT / "tests" / name).is_file(), f"{number}: {name}"
        for name in re.findall(r"`([a-z0-9]+-[\w*-]+)[` ]", place):
            is_command = name == "unroll-jax"
            assert is_command or fnmatch.filter(EXPERIMENTS, name), f"{number}: {name}"
