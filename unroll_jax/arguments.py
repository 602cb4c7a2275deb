"""Plain arguments of public functions: a number where the signature says so, a name, a switch."""

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import numpy as np
from jax.core import Tracer

__all__ = ["typed"]

P = ParamSpec("P")
R = TypeVar("R")


class _Rule(NamedTuple):
    name: str
    position: int | None
    kinds: tuple[type, ...]


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Refuses arguments that are not of the plain kinds that the signature names: int, float, bool, str, or None.

    Numbers may be of NumPy and JAX; arguments that the signature gives any other type are left alone.

    Args:
      function: a function with annotations.

    Returns:
      The same function; it raises a TypeError that names the argument and its value.
    """
    parameters = list(inspect.signature(function).parameters.values())
    rules = [rule for position, parameter in enumerate(parameters) if (rule := _rule(position, parameter))]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, position, kinds in rules:
            if name in kwargs:
                _check(name, kwargs[name], kinds)
            elif position is not None and position < len(args):
                _check(name, args[position], kinds)
        return function(*args, **kwargs)

    return checked


def _rule(position: int, parameter: inspect.Parameter) -> _Rule | None:
    union = isinstance(parameter.annotation, types.UnionType)
    kinds = get_args(parameter.annotation) if union else (parameter.annotation,)
    if not set(kinds) <= {int, float, bool, str, type(None)} or parameter.kind is parameter.VAR_POSITIONAL:
        return None
    by_position = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return _Rule(parameter.name, position if by_position else None, kinds)


def _check(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if isinstance(value, Tracer):
        raise TypeError(f"{name} must be known beforehand, got a traced value; pass a Python value")
    if not any(_is(kind, value) for kind in kinds):
        wanted = " or ".join(NAMES[kind] for kind in kinds)
        raise TypeError(f"{name} must be {wanted}, got {value!r}")


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_ | str | bytes):
        return False
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, int | float)
    return shape == () and getattr(dtype, "kind", "O") in "iufV"  # V: bfloat16, as NumPy sees it


def _is(kind: type, value: Any) -> bool:
    if kind is int:
        return _is_integer(value)
    if kind is float:
        return _is_number(value)
    return isinstance(value, (bool, np.bool_) if kind is bool else kind)


NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a name", type(None): "None"}
