"""Bars that only fall: lines, files, public names, and the share of checks."""

import ast
import importlib
from pathlib import Path

import pytest

from tests.test_public_api import NAMES

ROOT = Path(__file__).resolve().parents[1]
# Lines of tracked files: of Python, and of pages in docs. A change that cuts lowers
# these numbers; none raises them, unless a file moves from one place to another.
MAX_LINES = {
    "unroll_jax": 17_270,
    "train": 16_940,
    "benchmarks": 4_400,
    "papers": 2_830,
    "tests": 27_270,
    "docs": 4_340,
    "CHANGELOG.md": 120,
}
MAX_PUBLIC_NAMES = 230
MAX_FILES_OF_TRAIN = 103
MIN_FILE, MAX_FILE, MAX_PAGE = 40, 300, 150
MAX_SHARE_OF_CHECKS = 0.11  # of the library's statements; the aim is .06


def tracked(place):
    """The Python files under `place`, or pages in docs, without links and files that
    git ignores."""
    suffix = ".py" if place not in {"docs", "CHANGELOG.md"} else ".md"
    pattern = place if place.endswith(suffix) else f"{place}/**/*{suffix}"
    paths = {
        path
        for path in ROOT.glob(pattern)
        if path.is_file() and not any(p.is_symlink() for p in [path, *path.parents])
    }
    # the site's build writes these
    return sorted(path for path in paths if "generated" not in path.parts)


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("place", MAX_LINES)
def test_every_place_stays_under_its_bar(place):
    assert sum(map(lines_of, tracked(place))) <= MAX_LINES[place]


def test_public_names_stay_under_their_bar():
    library = set(NAMES) - {"unroll_jax.train"}
    assert (
        len(
            {
                name
                for module in library
                for name in importlib.import_module(module).__all__
            }
        )
        <= MAX_PUBLIC_NAMES
    )


def test_files_and_pages_have_one_size():
    lines = {
        path: lines_of(path)
        for place in ("unroll_jax", "train")
        for path in tracked(place)
    }
    assert [str(path) for path, count in lines.items() if count > MAX_FILE] == []
    application = {
        path: count
        for path, count in lines.items()
        if path.is_relative_to(ROOT / "train")
    }
    assert len(application) <= MAX_FILES_OF_TRAIN
    assert [
        str(path)
        for path, count in application.items()
        if count < MIN_FILE and path.stem != "__init__"
    ] == []
    # lists of names
    pages = [path for path in tracked("docs") if "reference" not in path.parts]
    assert [str(path) for path in pages if lines_of(path) > MAX_PAGE] == []


def is_check(node):
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.Expr(
                value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))
            )
        ):
            return name.lstrip("_").startswith(("check", "require", "look_up"))
        case ast.If(body=body):
            return all(isinstance(statement, ast.Raise) for statement in body)
    return isinstance(node, ast.Raise)


def statements(nodes):
    return {
        part for node in nodes for part in ast.walk(node) if isinstance(part, ast.stmt)
    }


def test_checks_of_arguments_are_a_small_share_of_the_library():
    checks, total = set(), 0
    for path in tracked("unroll_jax"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        checks |= statements(
            [tree] if path.name == "arguments.py" else filter(is_check, ast.walk(tree))
        )
        total += len(statements([tree]))
    assert len(checks) <= MAX_SHARE_OF_CHECKS * total
