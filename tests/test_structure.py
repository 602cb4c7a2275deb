"""The house: which floor may import which, what is documented, and that the examples in the docs run."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import unroll_jax

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "unroll_jax"
# Ground first; a file may import from its own theme and from floors below. `descent` holds the types they all share.
FLOORS = {
    "arguments": 0,
    "precision": 0,
    "steps": 0,
    "conjugate_gradients": 1,
    "descent": 1,
    "spectral": 1,
    "energies": 2,
    "constrained": 2,
    "alternating": 3,
    "certificates": 4,
    "unrolling": 4,
    "fixed_point": 4,
    "models": 5,
    "train": 6,
    "benchmarks": 7,
}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = ["unroll_jax", *(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "unroll_jax."))]


def imports(path):
    """Dotted names of the modules that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def theme(parts):
    """The room a dotted name lies in: `energies` for unroll_jax.energies.rho, `train` for train.loop."""
    return parts[1] if parts[0] == "unroll_jax" and len(parts) > 1 else parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_floor_imports_only_from_floors_below(path):
    own = theme(path.relative_to(ROOT).with_suffix("").parts)
    if path == PACKAGE / "__init__.py":
        own = "models"  # the face of the library lies above all of it but the models, see the next test
    for name in imports(path):
        room = theme(name.split("."))
        if room == own or room not in FLOORS:
            assert not name.startswith("unroll_jax") or room == own, f"{name} is on no floor: add it to FLOORS"
            continue
        assert FLOORS[room] < FLOORS[own], f"{own} (floor {FLOORS[own]}) imports {name} (floor {FLOORS[room]})"


def test_importing_the_library_imports_neither_models_nor_what_only_they_need():
    code = (
        "import sys, unroll_jax; "
        "print(sorted({'flax', 'jaxopt', 'train', 'unroll_jax.models', 'matplotlib'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip(), found.stderr) == (0, "[]", "")


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented_and_listed(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)), name
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


def test_what_the_design_promises_is_importable_from_the_top():
    types_and_tables = ["Descent", "DESCENTS", "PROXIMALS", "RHOS", "SOLVERS", "ADJOINTS", "constrained"]
    functions = [
        "attention",
        "feedforward",
        "transformer",
        "hopfield",
        "unit_layer",
        "lista",
        "dust",
        "unroll",
        "equilibrium",
        "anderson",
        "opteq",
        "opteq_conv",
        "deep_opteq",
        "descent_constraints",
        "lagrangian",
        "dual_ascent",
    ]
    assert {*types_and_tables, *functions} <= set(unroll_jax.__all__)


@pytest.mark.slow  # one operation at a time, each compiled
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docs_run(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples_in_the_docs():
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(tests) >= 5
