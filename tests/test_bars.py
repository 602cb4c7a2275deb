"""Bars that only fall: lines, files and public names, and words that readers of the field would not write."""

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.test_public_api import NAMES

ROOT = Path(__file__).resolve().parents[1]
# Lines of tracked files: of Python, and of pages in docs. A change that cuts lowers these numbers; none raises them.
MAX_LINES = {
    "unroll_jax": 19_850,
    "train": 17_600,
    "benchmarks": 4_000,
    "papers": 3_200,
    "tests": 40_300,
    "docs": 5_500,
    "CHANGELOG.md": 150,
}
MAX_PUBLIC_NAMES = 260
LIBRARY = set(NAMES) - {"unroll_jax.train"}
MAX_FILES, MIN_LINES, LONGEST = 97, 40, 300
# Each counts one habit of writing; optax has about one of all of them in 10,000 words of docstrings and comments.
HABITS = (
    r"\bwhat (is|it|they|the|has|have|are|was|a|an|comes|each)\b",
    r"\brefus\w+",
    r"\b(says?|said)\b",
    r"\bbeside\b",
    r"\bof (its|their|your|our) own\b",
    r"\b(is|are) no [a-z]+",
    r"\bstands?\b",
    r"\bwhatever\b",
    r"\bgoes? on\b",
)
MAX_HABITS = 12.0  # in 10,000 words


LONGEST_PAGE = 150


def tracked(place):
    """The Python files under `place`, or pages in docs, without links and files that git ignores."""
    suffix = ".py" if place not in {"docs", "CHANGELOG.md"} else ".md"
    pattern = place if place.endswith(suffix) else f"{place}/**/*{suffix}"
    paths = {
        path for path in ROOT.glob(pattern) if path.is_file() and not any(p.is_symlink() for p in [path, *path.parents])
    }
    return sorted(path for path in paths if "generated" not in path.parts)  # the site's build writes these


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def words_of(source):
    """The docstrings and comments of a file."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    return "\n".join([*filter(None, map(ast.get_docstring, nodes)), *comments]).lower()


def habits(text):
    """Occurrences of `HABITS` in 10,000 words."""
    return 1e4 * sum(len(re.findall(habit, text)) for habit in HABITS) / len(re.findall(r"[a-z]+", text))


@pytest.mark.parametrize("place", MAX_LINES)
def test_every_place_stays_under_its_bar(place):
    assert sum(map(lines_of, tracked(place))) <= MAX_LINES[place]


def test_public_names_stay_under_their_bar():
    assert len({name for module in LIBRARY for name in importlib.import_module(module).__all__}) <= MAX_PUBLIC_NAMES


def test_files_of_the_application_are_few_and_of_one_size():
    lines = {str(path): lines_of(path) for path in tracked("train")}
    assert len(lines) <= MAX_FILES
    assert [name for name, count in lines.items() if count < MIN_LINES and not name.endswith("__init__.py")] == []
    assert [name for name, count in lines.items() if count > LONGEST] == []


def test_no_page_is_too_long():
    written = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]  # lists of names
    assert [str(path) for path in written if len(path.read_text().splitlines()) > LONGEST_PAGE] == []


@pytest.mark.parametrize("package", ["unroll_jax", "train"])
def test_docstrings_and_comments_are_written_in_the_words_of_the_field(package):
    files = (ROOT / package).rglob("*.py")
    assert habits("\n".join(words_of(path.read_text(encoding="utf-8")) for path in files)) <= MAX_HABITS


def test_a_habit_is_counted():
    assert habits(words_of('"""A step goes on, whatever it is."""  # as it says')) == pytest.approx(1e4 * 3 / 10)
