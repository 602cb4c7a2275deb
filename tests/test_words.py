"""The words of the house: docstrings open with a verb or the thing, and names are nouns of the field."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("unroll_jax", "train", "benchmarks", "papers", "tests", "docs")
QUESTIONS = ("What", "Whether", "How", "When", "Where", "Which", "Who", "Why")  # "Returns whether ..." is the way out
OPENING = rf"\s*({'|'.join(QUESTIONS)})\b"
VAGUE = {"asked", "found", "own", "said"}  # a noun of the field is better


def files(place):
    paths = [path for path in (ROOT / place).rglob("*.py") if "generated" not in path.parts]
    return sorted(path for path in paths if ROOT / "unroll_jax" / "train" not in path.parents)  # a link


def set_names(node):
    """The names that a node of the syntax tree defines or assigns."""
    if isinstance(node, ast.keyword) or isinstance(getattr(node, "ctx", None), ast.Load):
        return set()
    labels = ("id", "arg", "attr", "asname", "rest", *([] if isinstance(node, ast.alias) else ["name"]))
    return {str(getattr(node, label, None)).strip("_") for label in labels}


@pytest.mark.parametrize("place", PLACES)
def test_docstrings_open_with_a_verb_or_the_thing_and_names_are_nouns_of_the_field(place):
    for path in files(place):
        source = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        values = [node.value for node in nodes if isinstance(node, ast.Expr)]
        strings = [str(value.value) for value in values if isinstance(value, ast.Constant)]
        assert [text for text in strings if re.match(OPENING, text)] == [], path
        if VAGUE & set(re.findall(r"[a-zA-Z0-9]+", source)):
            assert set().union(*map(set_names, nodes)) & VAGUE == set(), path
