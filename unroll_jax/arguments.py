"""Checks of plain arguments: ranges from a decorator, and errors that name them."""

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
    "Allowed",
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


class Allowed(NamedTuple):
    """The values that an argument may take.

    Attributes:
      words: the values in words, after "must be".
      holds: ``value -> bool``.
      integer: whether only integers are allowed.
      number: whether the values are numbers.
    """

    words: str
    holds: Callable[[Any], bool]
    integer: bool = False
    number: bool = True


FINITE = Allowed("finite", math.isfinite)
POSITIVE = Allowed("positive and finite", lambda value: 0.0 < value < math.inf)
ODD = Allowed(
    "odd and positive", lambda value: value > 0 and value % 2 == 1, integer=True
)


def at_least(least: int | float) -> Allowed:
    """Integers from an integer on, or finite numbers from a float on."""
    if isinstance(least, int):
        return Allowed(f"at least {least}", lambda value: value >= least, integer=True)
    words = f"finite and at least {least:g}"
    return Allowed(words, lambda value: least <= value < math.inf)


def in_interval(interval: str) -> Allowed:
    """Numbers of an interval, written as ``"(0, 1]"``.

    An end may have a name, as in ``"[1, dim=4]"``.
    """
    lower, upper = (_end(text) for text in interval[1:-1].split(","))
    above = operator.lt if interval[0] == "(" else operator.le
    below = operator.lt if interval[-1] == ")" else operator.le

    def holds(value: Any) -> bool:
        return bool(above(lower, value) and below(value, upper))

    return Allowed(f"in {interval}", holds)


def _end(text: str) -> float:
    number = text.split("=")[-1].strip()
    return math.inf if number == "inf" else float(Fraction(number))


SIZE = at_least(1)
SHARE = in_interval("(0, 1]")


def one_of(names: Iterable[Any]) -> Allowed:
    """The values listed, such as the names of a table."""
    listed = tuple(names)
    return Allowed(f"one of {listed}", lambda value: value in listed, number=False)


def require(holds: Any, name: str, allowed: str, got: Any, way_out: str = "") -> None:
    """A ValueError ``{name} must {allowed}, got {got}; {way_out}`` unless ``holds``."""
    if not holds:
        message = f"{name} must {allowed}, got {got}"
        raise ValueError(f"{message}; {way_out}" if way_out else message)


def check(
    name: str,
    value: Any,
    allowed: Allowed,
    *,
    optional: bool = False,
    way_out: str = "",
) -> None:
    """A ValueError that names the argument unless a Python or NumPy value is allowed.

    For values whose range is known only inside a function, or that are not arguments.
    ``way_out`` ends the message.
    """
    if optional and value is None:
        return
    of_kind = not allowed.number or _is_number(value, allowed.integer)
    words = f"be {allowed.words}"
    if allowed.integer and not of_kind:
        words += " and an integer"
    if optional:
        words += ", or None"
    got = repr(value) if isinstance(value, str) else value
    require(of_kind and allowed.holds(value), name, words, got, way_out)


def check_fields(owner: Any, allowed: Allowed, *names: str) -> None:
    """`check` of attributes, and of every entry of a tuple. None is allowed."""
    for name in names:
        value = getattr(owner, name)
        for entry in value if isinstance(value, tuple) else (value,):
            check(name, entry, allowed, optional=entry is None)


def checked(**ranges: Allowed) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Checks the ranges of arguments at each call, by errors that name the argument.

    Numbers may be NumPy and JAX scalars, not traced. Of arguments that may be arrays
    only Python numbers are checked. None is allowed where the signature allows it. The
    attribute ``ranges`` of the function holds them.

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
        annotations = {name: signature[name].annotation for name in ranges}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = {**dict(zip(signature, args, strict=False)), **kwargs}
            for name, allowed in ranges.items():
                if name in given:
                    _check_argument(name, given[name], allowed, annotations[name])
            return function(*args, **kwargs)

        call.ranges = ranges  # pyright: ignore[reportAttributeAccessIssue]
        return call

    return decorate


def _check_argument(name: str, value: Any, allowed: Allowed, annotation: Any) -> None:
    """`check` of an argument, by what its annotation says of arrays and of None."""
    if "Array" in str(annotation) and not isinstance(value, int | float):
        return
    optional = type(None) in get_args(annotation)
    if optional and value is None:
        return
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} must be known beforehand, got a traced value; pass a Python value"
        )
    if allowed.number and not _is_number(value, allowed.integer):
        kind = "an integer" if allowed.integer else "a number"
        if optional:
            kind += " or None"
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    check(name, value, allowed, optional=optional)


def look_up(
    argument: str, value: Any, table: Mapping[str, Any], kind: type, *kinds: type
) -> Any:
    """``value`` if of one of the kinds, or the entry of ``table`` that it names.

    Another name is a ValueError, another type a TypeError.
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


def _is_number(value: Any, integer: bool) -> bool:
    try:
        (operator.index if integer else float)(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool | str)
