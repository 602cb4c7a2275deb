"""The README and CONTRIBUTING.md: the Python runs, and the names exist."""

import importlib
import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}
README, CONTRIBUTING = PAGES.values()


@pytest.mark.slow
def test_python_of_the_readme_runs_and_does_what_it_says_and_jaxopt_leaves_its_examples_unsolved():
    names, blocks = {}, re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    for block in blocks[:2]:
        exec(compile(block, "README.md", "exec"), names)
    with warnings.catch_warnings():  # of the import; a message on failure would be an error
        warnings.simplefilter("ignore")
        from jaxopt import AndersonAcceleration
    cell, x, step = names["cell"], names["x"], names["step"]
    _, state = AndersonAcceleration(lambda z: step(cell, z, x), maxiter=100, tol=1e-5).run(0.0 * x)
    assert state.error > 1e-3
    for block in blocks[2:]:
        exec(compile(block, "README.md", "exec"), names)
    energy = names["trace"].energy
    assert energy.shape == (13, 8)
    assert jnp.all(energy[1:] <= energy[:-1] + 1e-6 * jnp.abs(energy[:-1]))
    printed = "\n".join(map(str, (names["certificate"], names["info"], names["report"])))
    comments = re.findall(r"# (\d.*|Binding.*|steps.*)$", README, flags=re.MULTILINE)
    claims = [claim.strip() for comment in comments[1:] for claim in comment.split("; energy, ")]
    assert len(claims) == 4
    assert [claim for claim in claims if claim not in printed] == []


def test_the_figures_of_the_readme_are_those_of_the_docs():
    docs = (ROOT / "docs" / "results" / "demo.md").read_text(encoding="utf-8")
    figures = re.findall(r"\b\d\.\d{3}\b", README[README.index("`unroll-jax demo`") : README.index("## Two")])
    assert len(figures) == 7
    assert [figure for figure in figures if figure not in docs] == []


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 90


@pytest.mark.parametrize("page", PAGES)
def test_places_dotted_names_and_targets_of_make_in_a_page_exist(page):
    for place in re.findall(r"`((?:docs|notebooks|tests|train|unroll_jax|benchmarks|papers)/[\w./]*)`", PAGES[page]):
        assert (ROOT / place).exists(), place
    for name in re.findall(r"`(unroll_jax(?:\.\w+)+)`", PAGES[page]):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name), name
    targets = re.findall(r"(?:^|`)make ([a-z][\w-]*)", PAGES[page], re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert targets
    assert set(targets) <= set(phony.split())
