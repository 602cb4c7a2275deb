"""Every declared range of an argument: values outside of it, and of another kind, are
one line that names the argument and the value."""

import importlib
import inspect
import math
import pkgutil
from typing import get_args

import jax
import pytest

import unroll_jax

NUMBERS = (-2, -1, 0, 1, 2, -1.0, 0.0, 0.25, 1.0, 3.0, math.inf, -math.inf, math.nan)
WORDS = ("other", "")


def functions():
    """All functions of the library that declare ranges, by module and name."""
    found = {}
    for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax."):
        if not module.name.startswith("unroll_jax.train"):
            for value in vars(importlib.import_module(module.name)).values():
                if inspect.isfunction(value) and hasattr(value, "ranges"):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


FUNCTIONS = functions()


def test_the_functions_that_declare_ranges_are_found():
    assert len(FUNCTIONS) >= 90
    assert sum(len(function.ranges) for function in FUNCTIONS.values()) >= 199


def message_of(error, function, name, value):
    with pytest.raises(error) as caught:
        function(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} must be "), message
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_value_outside_its_range_is_named(function):
    for name, allowed in function.ranges.items():
        values = NUMBERS if allowed.number else WORDS
        if allowed.integer:
            values = [value for value in values if isinstance(value, int)]
        outside = [value for value in values if not allowed.holds(value)]
        assert outside, name
        for value in outside:
            message = message_of(ValueError, function, name, value)
            assert message.endswith(f", got {value!r}")
            assert allowed.words in message


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_value_of_another_kind_is_named(function):
    for name, allowed in function.ranges.items():
        annotation = inspect.signature(function).parameters[name].annotation
        is_optional = type(None) in get_args(annotation)
        if "Array" in str(annotation):
            continue

        values = ["3", True, [1.0]] if allowed.number else []
        values += [0.5] if allowed.integer else []
        values += [] if is_optional or not allowed.number else [None]
        for value in values:
            message = message_of(TypeError, function, name, value)
            assert message.endswith(f", got {value!r}")

        def call(value, name=name):
            return len(message_of(TypeError, function, name, value))

        jax.eval_shape(call, 1.0)
