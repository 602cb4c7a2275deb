"""Every public name has an example in its docstring, and all examples run."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import unroll_jax
from tests.test_public_api import NAMES

# Names without an example, and why. Type aliases and tables have no docstring; a table's example is in its package's.
WITHOUT_EXAMPLE = {"unroll_jax.train.Task": "a protocol, of which `OwnTask` shows an instance"}
WALKED = (module.name for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax."))
LIBRARY = ["unroll_jax", *(name for name in WALKED if not name.startswith("unroll_jax.train"))]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def documented(modules):
    public = {
        f"{module}.{name}": getattr(importlib.import_module(module), name)
        for module in modules
        for name in importlib.import_module(module).__all__
    }
    return {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}


def places(values):
    return sorted({value.__module__ for value in values.values()})


def examples(modules):
    tests = [test for module in modules for test in FINDER.find(importlib.import_module(module))]
    return {test.name: "".join(example.source for example in test.examples) for test in tests if test.examples}


def without_example(values, sources):
    examples_of = {name: sources.get(f"{value.__module__}.{value.__qualname__}") for name, value in values.items()}
    for name, value in values.items():
        package, _, word = name.rpartition(".")
        leads = re.search(r"^Example: see `(\w+)`\.$", inspect.getdoc(value) or "", re.MULTILINE)
        shown = examples_of.get(f"{package}.{leads[1]}") if leads else None
        if not examples_of[name] and not re.search(rf"\b{word}\b", shown or ""):
            yield name


def test_every_public_function_and_class_has_an_example():
    values = documented(NAMES)
    assert sorted(without_example(values, examples(places(values)))) == sorted(WITHOUT_EXAMPLE)


@pytest.mark.slow  # one operation at a time, each compiled
@pytest.mark.parametrize("module", LIBRARY)
def test_the_examples_in_the_docs_of_the_library_run(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


@pytest.mark.slow  # one of them trains
def test_the_examples_in_the_docs_of_the_application_run():
    modules = ["unroll_jax.train", *places(documented(["unroll_jax.train"]))]
    assert [module for module in modules if doctest.testmod(importlib.import_module(module)).failed] == []
