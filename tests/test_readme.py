"""The README and CONTRIBUTING.md: the Python runs, and the names exist."""

import importlib
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}
README, CONTRIBUTING = PAGES.values()

every_page = pytest.mark.parametrize("page", PAGES)


@pytest.mark.slow
def test_python_of_the_readme_runs_and_does_what_it_says():
    names = {}
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), names)
    energy = names["trace"].energy
    assert energy.shape == (13, 8)
    assert jnp.all(energy[1:] <= energy[:-1] + 1e-6 * jnp.abs(energy[:-1]))
    assert jnp.all(energy[-1] < energy[0])
    assert names["objective"].shape == ()
    raised = names["state"].multipliers > 0.0
    assert raised.tolist() == [False, True, False, False]
    errors = [float(jnp.sqrt(jnp.mean((names[name] - names["centres"]) ** 2))) for name in ("tokens", "y")]
    assert [round(error, 2) for error in errors] == [0.61, 0.15]
    lines = [line.strip() for line in repr(names["trace"]).splitlines()]
    assert "energy, mean: -327.558 before, -549.981 after" in lines


def test_the_figures_of_the_readme_are_those_of_the_docs():
    """Half squared errors: after layers 1 to 5, of the output at noise 0.5 and with a layer lost."""
    docs = (ROOT / "docs" / "results" / "demo.md").read_text(encoding="utf-8")

    def cells(row):
        return [cell.strip(" *") for cell in row.split("|")]

    rows = re.findall(r"^\| (.+?) \|(.*)\|$", README[: README.index("## Two")], flags=re.MULTILINE)
    assert len(rows) == 5, "a header and four rows"
    for name, told in rows[1:]:
        measured = [cells(row) for row in re.findall(rf"^\| (?:.* )?{re.escape(name)} \|(.*)\|$", docs, re.MULTILINE)]
        layers, scores = measured[:2] if len(measured) > 1 else ([""] * 5 + [measured[0][1]], measured[0])
        assert cells(told) == [*layers[1:6], scores[3], scores[4]], name


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 95


@every_page
def test_places_and_dotted_names_of_a_page_exist(page):
    for place in re.findall(r"`((?:docs|notebooks|tests|train|unroll_jax|benchmarks|papers)/[\w./]*)`", PAGES[page]):
        assert (ROOT / place).exists(), place
    for name in re.findall(r"`(unroll_jax(?:\.\w+)+)`", PAGES[page]):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name), name


@every_page
def test_targets_of_make_in_a_page_exist(page):
    targets = re.findall(r"(?:^|`)make ([a-z][\w-]*)", PAGES[page], re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert targets
    assert set(targets) <= set(phony.split())
