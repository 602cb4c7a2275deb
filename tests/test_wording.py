"""The words of the house: what docstrings do not open with, and what names of the code are not."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ("What", "Whether", "How", "When", "Where", "Which", "Who", "Why")  # "Returns whether ..." is the way out
QUESTION = re.compile(rf"\s*({'|'.join(QUESTIONS)})\b")
VAGUE = ("asked", "found", "own", "said")  # a noun of the field says what the thing is


def questions(path):
    """The docstrings of a file, those of fields included, that open with a question word."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(ast.Constant(str(text))) if QUESTION.match(text):
                yield f"{path}:{node.lineno}: {text}"


@pytest.mark.parametrize("package", ["unroll_jax", "train", "benchmarks", "papers", "docs"])
def test_docstrings_open_with_a_verb_or_the_thing(package):
    assert [line for path in sorted((ROOT / package).rglob("*.py")) for line in questions(path)] == []


@pytest.mark.parametrize(("text", "count"), [("Whether it is odd.", 3), ("Whatever it is.", 0), ("The odd ones.", 0)])
def test_a_docstring_that_opens_with_a_question_word_is_reported(text, count, tmp_path):
    (tmp_path / "odd.py").write_text(f'"""{text}"""\nclass Odd:\n    r"""{text}"""\n    size: int\n    """{text}"""\n')
    assert len(list(questions(tmp_path / "odd.py"))) == count


def vague_names(path):
    """The variables, arguments, functions and classes of a file that are called one of `VAGUE`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                pass
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                pass
            case _:
                continue
        if name.strip("_") in VAGUE:
            yield f"{path}:{node.lineno}: {name}"


@pytest.mark.parametrize("folder", ["unroll_jax", "train", "benchmarks", "papers", "docs", "tests"])
def test_names_are_nouns_of_the_field(folder):
    assert [line for path in sorted((ROOT / folder).rglob("*.py")) for line in vague_names(path)] == []


VAGUE_PYTHON = """
found, (own, _), said = 1, (2, 3), [found for found in ()]
async def asked(own, *said): self.found = lambda own: row["found"]
try: import jax as own
except ValueError as said: pass
class said: ...
match row:
    case [found, *said, {"own": asked, **own}]: is_own = "said"
"""


def test_a_vague_name_is_reported(tmp_path):
    (tmp_path / "vague.py").write_text(VAGUE_PYTHON)
    assert len(list(vague_names(tmp_path / "vague.py"))) == 16


def test_contributors_are_told_these_words():
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    *questions, last_question = QUESTIONS
    *names, last_name = [f"`{name}`" for name in VAGUE]
    assert f"not with {', '.join(questions)} or {last_question}." in text
    assert f"never {', '.join(names)} or {last_name}." in text
