"""The house: floors as its drawing shows them, imports that load little, one file for each system."""

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unroll_jax

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "unroll_jax"
WALKED = (module.name for module in pkgutil.walk_packages([str(PACKAGE)], "unroll_jax."))
MODULES = ["unroll_jax", *(name for name in WALKED if not name.startswith("unroll_jax.train"))]


def test_the_floors_of_the_application_are_those_that_the_docs_draw():
    """`make lint` checks the imports against pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "floors of the application")
    floors = {room: floor for floor, rooms in enumerate(reversed(layers), 1) for room in rooms.split(" | ")}
    floor, drawn = 0, {}
    for line in (ROOT / "docs" / "architecture.md").read_text().split("```")[1].splitlines():
        floor = int(line[0]) if line[:1].isdigit() else floor
        drawn |= dict.fromkeys(re.findall(r"(?:^\d?\s+|;  )(\w+)(?:\.py|/)", line), floor)
    assert drawn == floors | {"__init__": 8}


@pytest.mark.parametrize("name", unroll_jax.DESCENTS)
def test_a_system_its_example_and_its_condition_are_in_one_file(name):
    factory, example, condition, _ = unroll_jax.DESCENTS[name]
    assert {function.__module__ for function in (factory, example, condition) if function} == {factory.__module__}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import unroll_jax", {"jax", "numpy", "unroll_jax.energies"}),
        ("import unroll_jax.train", {"jax", "numpy", "unroll_jax.train.main"}),
        # The name is the function, though a module of the library imports the file of the same name.
        (
            "import unroll_jax.alternation; from unroll_jax import *; assert callable(alternating)",
            {"flax", "jaxopt", "chex", "unroll_jax.train", "unroll_jax.models", "matplotlib"},
        ),
    ],
)
def test_an_import_imports_only_what_is_used(statement, unwanted):
    code = f"import sys\n{statement}\nprint(sorted({unwanted} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, "[]", "")


@pytest.mark.parametrize("name", MODULES)
def test_every_module_lists_its_public_names(name):
    module = importlib.import_module(name)
    assert module.__doc__
    if name != "unroll_jax":  # lazy_loader sorts this one
        assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert (PACKAGE / "py.typed").exists(), "type checkers of users read the annotations"
