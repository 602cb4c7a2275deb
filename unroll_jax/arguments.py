"""Checks of plain arguments: ranges from a decorator, and one error that names the
argument."""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

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
      integer, number: whether only integers are allowed, and whether the values are
        numbers.
    """

    allowed: str
    holds: Callable[[Any], bool]
    integer: bool = False
    number: bool = True


FINITE = Rule("finite", math.isfinite)
POSITIVE = Rule("positive and finite", lambda value: 0.0 < value < math.inf)
ODD = Rule("odd and positive", lambda value: value > 0 and value % 2 == 1, integer=True)


def at_least(least: int | float) -> Rule:
    """Integers from an integer on, or finite numbers from a float on."""
    if isinstance(least, int):
        return Rule(f"at least {least}", lambda value: value >= least, integer=True)
    return Rule(
        f"finite and at least {least:g}", lambda value: least <= value < math.inf
    )


def in_interval(interval: str) -> Rule:
    """Numbers of an interval, written as ``"(0, 1]"``; an end may bear a name, as in
    ``"[1, dim=4]"``."""
    lower, upper = (end.split("=")[-1].strip() for end in interval[1:-1].split(","))
    least, most = (
        math.inf if end == "inf" else float(Fraction(end)) for end in (lower, upper)
    )
    above = operator.lt if interval[0] == "(" else operator.le
    below = operator.lt if interval[-1] == ")" else operator.le
    return Rule(
        f"in {interval}", lambda value: above(least, value) and below(value, most)
    )


SIZE, SHARE = at_least(1), in_interval("(0, 1]")


def one_of(names: Iterable[Any]) -> Rule:
    """The values listed, such as the names of a table."""
    listed = tuple(names)
    return Rule(f"one of {listed}", lambda value: value in listed, number=False)


def require(holds: Any, name: str, allowed: str, got: Any, way_out: str = "") -> None:
    """A ValueError ``{name} must {allowed}, got {got}; {way_out}`` unless the
    condition holds."""
    if not holds:
        raise ValueError(
            f"{name} must {allowed}, got {got}" + (way_out and f"; {way_out}")
        )


def check(
    name: str, value: Any, rule: Rule, *, optional: bool = False, way_out: str = ""
) -> None:
    """A ValueError that names the argument and the values allowed, unless ``rule``
    holds for a Python or NumPy value.

    For values whose rule is known only inside a function, or that are not arguments;
    ``way_out`` ends the message.
    """
    if not (optional and value is None):
        number = not rule.number or _is_number(value, rule.integer)
        words = (
            f"be {rule.allowed}"
            + " and an integer" * (rule.integer and not number)
            + ", or None" * optional
        )
        require(
            number and rule.holds(value),
            name,
            words,
            repr(value) if isinstance(value, str) else value,
            way_out,
        )


def check_fields(owner: Any, rule: Rule, *names: str) -> None:
    """`check` of attributes, and of every entry where one is a tuple; None is let
    through."""
    for name in names:
        value = getattr(owner, name)
        for entry in value if isinstance(value, tuple) else (value,):
            check(name, entry, rule, optional=entry is None)


def checked(**rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Checks the ranges of arguments at each call: TypeErrors and ValueErrors that name
    the argument.

    Numbers may be NumPy and JAX scalars, not traced; of arguments that may be arrays
    only Python numbers are checked. None needs no rule where the signature allows it.

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
        annotations = {name: signature[name].annotation for name in rules}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = {**dict(zip(signature, args, strict=False)), **kwargs}
            for name in (name for name in rules if name in given):
                rule, value, annotation = rules[name], given[name], annotations[name]
                if "Array" in str(annotation) and not isinstance(value, int | float):
                    continue
                if isinstance(value, Tracer):
                    raise TypeError(
                        f"{name} must be known beforehand, got a traced value; pass a"
                        " Python value"
                    )
                optional = type(None) in get_args(annotation)
                if (
                    rule.number
                    and not (optional and value is None)
                    and not _is_number(value, rule.integer)
                ):
                    kind = (
                        "an integer" if rule.integer else "a number"
                    ) + " or None" * optional
                    raise TypeError(f"{name} must be {kind}, got {value!r}")
                check(name, value, rule, optional=optional)
            return function(*args, **kwargs)

        return call

    return decorate


def look_up(
    argument: str, value: Any, table: Mapping[str, Any], kind: type, *kinds: type
) -> Any:
    """``value`` if of one of the kinds, or the entry of ``table`` that it names;
    else a ValueError or TypeError."""
    if isinstance(value, (kind, *kinds)):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    wanted = f"{argument} must be one of {sorted(table)} or {article} {kind.__name__}"
    if not isinstance(value, str):
        raise TypeError(f"{wanted}, got {type(value).__name__}")
    if value not in table:
        raise ValueError(f"{wanted}, got {value!r}")
    return table[value]


def _is_number(value: Any, integer: bool) -> bool:
    try:
        (operator.index if integer else float)(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool | str)
