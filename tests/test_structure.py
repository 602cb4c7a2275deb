"""Imports load only what is used."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ONLY_NAMES = """
import sys, unroll_jax
assert not {"jax", "numpy", "unroll_jax.energies"} & set(sys.modules)
import unroll_jax.train
assert not {"jax", "numpy", "unroll_jax.train.main"} & set(sys.modules)
import unroll_jax.train.config.run
assert not {"numpy", "jax", "tensorflow_datasets", "av"} & set(sys.modules)
import unroll_jax.train.registry, unroll_jax.train.cli
assert not {"jax", "flax", "matplotlib", "orbax", "tensorflow", "huggingface_hub", "tokenizers"} & set(sys.modules)
"""
# The name is the function, though a module of the library imports the file of the same
# name.
LIBRARY_ONLY = """
import sys, unroll_jax.alternation
from unroll_jax import *
assert callable(alternating)
assert not {"flax", "jaxopt", "chex", "unroll_jax.train", "unroll_jax.models", "matplotlib"} & set(sys.modules)
"""


@pytest.mark.parametrize(
    "program", [ONLY_NAMES, LIBRARY_ONLY], ids=["names", "library"]
)
def test_an_import_imports_only_what_is_used(program):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
