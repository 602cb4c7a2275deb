"""Checks of plain arguments: kinds from the signature, ranges from the decorator, one error that names the argument."""

import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import jax
import numpy as np
from jax.core import Tracer

__all__ = [
    "FINITE",
    "ODD",
    "POSITIVE",
    "SHARE",
    "SIZE",
    "Rule",
    "at_least",
    "check",
    "check_fields",
    "checked",
    "in_interval",
    "look_up",
    "one_of",
    "require",
]

P = ParamSpec("P")
R = TypeVar("R")


class Rule(NamedTuple):
    """The values that an argument may take.

    Attributes:
      allowed: the values in words, after "must be".
      holds: ``value -> bool``.
      integer: whether only integers are allowed.
    """

    allowed: str
    holds: Callable[[Any], bool]
    integer: bool = False


FINITE = Rule("finite", math.isfinite)
POSITIVE = Rule("positive and finite", lambda value: 0.0 < value < math.inf)
ODD = Rule("odd and positive", lambda value: value > 0 and value % 2 == 1, integer=True)


def at_least(least: int | float) -> Rule:
    """Integers from an integer on, or finite numbers from a float on."""
    if isinstance(least, int):
        return Rule(f"at least {least}", lambda value: value >= least, integer=True)
    return Rule(f"finite and at least {least:g}", lambda value: least <= value < math.inf)


def in_interval(interval: str) -> Rule:
    """Numbers of an interval, written as ``"(0, 1]"``; an end may bear a name, as in ``"[1, dim=4]"``."""
    lower, upper = (end.split("=")[-1].strip() for end in interval[1:-1].split(","))
    least, most = (math.inf if end == "inf" else float(Fraction(end)) for end in (lower, upper))
    above = operator.lt if interval[0] == "(" else operator.le
    below = operator.lt if interval[-1] == ")" else operator.le
    return Rule(f"in {interval}", lambda value: above(least, value) and below(value, most))


SIZE, SHARE = at_least(1), in_interval("(0, 1]")


def one_of(names: Iterable[Any]) -> Rule:
    """The values listed, such as the names of a table."""
    listed = tuple(names)
    return Rule(f"one of {listed}", lambda value: value in listed)


def check(name: str, value: Any, rule: Rule, *, optional: bool = False, way_out: str = "") -> None:
    """A ValueError that names the argument and the values allowed, unless ``rule`` holds for a Python or NumPy value.

    For values whose rule is known only inside a function, or that are not arguments; ``way_out`` ends the message.
    """
    if optional and value is None:
        return
    fractional = rule.integer and not _is_integer(value)
    try:
        allowed = not fractional and bool(rule.holds(value))
    except TypeError:
        allowed = False
    words = f"be {rule.allowed}" + " and an integer" * fractional + ", or None" * optional
    require(allowed, name, words, repr(value) if isinstance(value, str) else value, way_out)


def check_fields(owner: Any, rule: Rule, *names: str) -> None:
    """`check` of attributes, and of every entry where one is a tuple; None is let through."""
    for name in names:
        value = getattr(owner, name)
        for entry in value if isinstance(value, tuple) else (value,):
            if entry is not None:
                check(name, entry, rule)


def require(holds: Any, name: str, allowed: str, got: Any, way_out: str = "") -> None:
    """A ValueError ``{name} must {allowed}, got {got}; {way_out}`` unless the condition holds."""
    if not holds:
        raise ValueError(f"{name} must {allowed}, got {got}" + (way_out and f"; {way_out}"))


def checked(**rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Checks plain arguments at each call: their kinds as annotated (int, float, bool, str, None), and their ranges.

    Numbers may be NumPy and JAX scalars. A rule of an argument that may be an array applies to Python numbers only. A
    wrong kind is a TypeError that names the argument, a wrong value the ValueError of `check`; None needs no rule where
    the signature allows it.

    Example:
      >>> @checked(size=at_least(1))
      ... def zeros(size: int | None = None) -> list[int]:
      ...     return [0] * (size or 1)
      >>> zeros(0)
      Traceback (most recent call last):
        ...
      ValueError: size must be at least 1, or None, got 0
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function).parameters
        assert set(rules) <= set(signature), f"{function.__name__} has no arguments {set(rules) - set(signature)}"
        kinds = {name: _kinds(parameter.annotation) for name, parameter in signature.items()}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(signature, args, strict=False), *kwargs.items()):
                _check_argument(name, value, kinds.get(name, ()), rules.get(name))
            return function(*args, **kwargs)

        return call

    return decorate


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def _check_argument(name: str, value: Any, kinds: tuple[Any, ...], rule: Rule | None) -> None:
    plain = bool(kinds) and set(kinds) <= set(NAMES)
    if plain and isinstance(value, Tracer):
        raise TypeError(f"{name} must be known beforehand, got a traced value; pass a Python value")
    if plain and not any(_is(kind, value) for kind in kinds):
        raise TypeError(f"{name} must be {' or '.join(NAMES[kind] for kind in kinds)}, got {value!r}")
    if rule is not None and (plain or not isinstance(value, jax.Array)):
        check(name, value, rule, optional=type(None) in kinds)


def look_up(argument: str, value: Any, table: Mapping[str, Any], kind: type, *kinds: type) -> Any:
    """``value`` itself where it is of one of the kinds, else the entry of ``table`` that it names.

    Another name is a ValueError, anything else a TypeError.
    """
    if isinstance(value, (kind, *kinds)):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    wanted = f"{argument} must be one of {sorted(table)} or {article} {kind.__name__}"
    if not isinstance(value, str):
        raise TypeError(f"{wanted}, got {type(value).__name__}")
    if value not in table:
        raise ValueError(f"{wanted}, got {value!r}")
    return table[value]


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is(kind: type, value: Any) -> bool:
    if kind is int:
        return _is_integer(value)
    if kind is float:
        kinds = getattr(getattr(value, "dtype", None), "kind", "")
        scalar = getattr(value, "shape", None) == () and kinds in tuple("iufV")  # V: bfloat16, as NumPy sees it
        return scalar or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, (bool, np.bool_) if kind is bool else kind)


NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a name", type(None): "None"}
