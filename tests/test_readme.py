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
    """Relative errors: gamma 0, 0.2 and 0.4, one layer lost, noise of 0.2 on layers."""
    docs = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \|(.*)\|$", README[: README.index("## Two")], flags=re.MULTILINE)
    assert len(rows) == 5, "a header and four rows"
    for name, told in rows[1:]:
        measured = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", docs, flags=re.MULTILINE)[0].split("|")
        figures = [re.sub(r"\*| \(.*\)", "", measured[place]).strip() for place in (0, 1, 2, 4, 7)]
        assert [cell.strip(" *") for cell in told.split("|")] == figures, name


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
