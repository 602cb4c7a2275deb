"""The README's claims that can be run."""

import inspect
import re
from pathlib import Path

import jax.numpy as jnp

import train

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_of_the_readme_runs_and_does_what_it_says():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(block, names)
    energy = names["trace"].energy
    assert energy.shape == (13, 8)
    assert jnp.all(energy[1:] <= energy[:-1] + 1e-6 * jnp.abs(energy[:-1]))
    assert jnp.all(energy[-1] < energy[0])
    assert names["state"].multipliers.shape == (3,)


def test_names_of_the_application_in_the_readme_are_those_of_its_face():
    (block,) = re.findall(r"```py\n(.*?)```", README, flags=re.DOTALL)
    names = re.search(r"from unroll_jax.train import (.*)", block)
    assert names
    assert set(names[1].split(", ")) <= set(train.__all__)
    assert [inspect.getdoc(getattr(train, name)) for name in train.__all__ if name != "EXPERIMENTS"]
    compile(block, "README.md", "exec")


def test_files_that_the_readme_links_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("https://")]
    assert links
    for link in links:
        assert (Path(__file__).parents[1] / link).exists(), link


def test_commands_of_the_readme_name_experiments_and_benchmarks_that_exist():
    from benchmarks.__main__ import BENCHMARKS
    from train.experiments import EXPERIMENTS

    # A dollar: the name goes on in a shell variable.
    runs = re.findall(r"python -m train run (?!runs/)([\w-]+)(\$?)", README)
    benchmarks = re.findall(r"python -m benchmarks (\w+)", README)
    assert runs
    assert benchmarks
    for name, goes_on in runs:
        assert any(known.startswith(name) for known in EXPERIMENTS) if goes_on else name in EXPERIMENTS, name
    assert set(benchmarks) <= set(BENCHMARKS)
