"""The examples in docstrings run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import unroll_jax
from unroll_jax import train

WALKED = (
    module.name for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax.")
)
LIBRARY = [
    "unroll_jax",
    *(name for name in WALKED if not name.startswith("unroll_jax.train")),
]


@pytest.mark.slow  # one operation at a time, each compiled
@pytest.mark.parametrize("module", LIBRARY)
def test_the_examples_in_the_docs_of_the_library_run(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


@pytest.mark.slow  # one of them trains
def test_the_examples_in_the_docs_of_the_application_run():
    public = [getattr(train, name) for name in train.__all__]
    documented = [
        value for value in public if inspect.isclass(value) or inspect.isroutine(value)
    ]
    modules = sorted({"unroll_jax.train", *(value.__module__ for value in documented)})
    assert [
        module
        for module in modules
        if doctest.testmod(importlib.import_module(module)).failed
    ] == []
