"""Fields of configurations: their ranges, their names, to JSON and back."""

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from .errors import PLAIN, UNSHOWN, OptionError, UserError, option_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

LONGEST = 10**9  # steps: counters on devices are int32
WIDEST = 2**14  # a square matrix of this width takes a gigabyte
DEEPEST = 2**10  # layers are compiled one by one
# float32 holds the squares of every number between, and 0
SMALLEST, LARGEST = 1e-15, 1e9

# Ranges keep an absurd number from taking memory or time before it fails.
Count = Annotated[int, Ge(1), Le(LONGEST)]
Natural = Annotated[int, Ge(0), Le(LONGEST)]
Width = Annotated[int, Ge(1), Le(WIDEST)]
Depth = Annotated[int, Ge(1), Le(DEEPEST)]
Iterations = Annotated[int, Ge(1), Le(10**6)]
Parts = Annotated[int, Ge(1), Le(2**20)]
Length = Annotated[int, Ge(3), Le(2**16)]
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
Fraction = Annotated[float, Gt(0), Lt(1)]
Share = Annotated[float, Ge(0), Lt(1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]

Rule = tuple[str, str, bool]
"""A field by its dotted name, the values that other options allow it, and whether it
has one of these."""
Condition = tuple[str, str, bool]
"""A field by its dotted name, the option that gives it an effect, and whether that
is set."""


def check_fields(config: "DataclassInstance", prefix: str = "") -> None:
    """Checks the type and the range of every field, also in parts."""
    for name, hint in hints_of(type(config)).items():
        value = getattr(config, name)
        if not _fits(value, hint):
            given = repr(value) if isinstance(value, str) else value
            raise OptionError(prefix + name, _allowed(hint, value), given)
        if not _is_sane(value):
            raise OptionError(
                prefix + name,
                f"finite, and 0 or of a size from {SMALLEST:g} to {LARGEST:g}",
                value,
            )
        if _is_part(value):
            check_fields(value, f"{prefix}{name}.")


def check_rules(config: "DataclassInstance", rules: Iterable[Rule]) -> None:
    """Checks rules across fields."""
    for field, allowed, holds in rules:
        if not holds:
            raise OptionError(field, allowed, value_of(config, field))


def check_used(config: "DataclassInstance", conditions: Iterable[Condition]) -> None:
    """Checks that no option is given that has no effect."""
    for field, needed, used in conditions:
        value = value_of(config, field)
        if not used and value != _default_of(config, field):
            raise UserError(
                f"{option_text(field, value)} has no effect without {needed}; leave"
                " it out"
            )


def to_json(config: "DataclassInstance") -> dict[str, Any]:
    """The configuration as JSON values, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(
    cls: type[T], values: Any, *, source: Path | str, again: str = "train again"
) -> T:
    """Reads the dataclass that `to_json` wrote; errors name a missing, unknown or
    ill-typed field, and ``again``."""
    wrong, way_out = f"{source} is damaged:", f"restore it, or {again}"
    hints = {field.name: field for field in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise UserError(
            f"{wrong} {values!r} is of the wrong type in place of {', '.join(hints)};"
            f" {way_out}"
        )
    odd = sorted(set(values) ^ set(hints))
    if odd:
        raise UserError(
            f"{source} does not fit this version of the code: field {odd[0]!r} is"
            f" unknown or missing; {again}"
        )
    built, types = {}, get_type_hints(cls)
    for name in hints:
        value = values[name]
        if isinstance(part := types[name], type) and dataclasses.is_dataclass(part):
            value = from_json(part, value, source=source, again=again)
        built[name] = tuple(value) if isinstance(value, list) else value
        if not _fits(built[name], types[name], in_range=False):
            raise UserError(
                f"{wrong} {name} is {value!r}, which is of the wrong type; {way_out}"
            )
    return cls(**built)


def differences(
    old: dict[str, Any], new: dict[str, Any], prefix: str = ""
) -> list[str]:
    """Dotted names of the fields in which two `to_json` values differ, with both
    values."""
    lines = []
    for name in sorted(set(old) | set(new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            lines.append(f"{prefix}{name} was {before}, is now {after}")
    return lines


def changes(
    config: "DataclassInstance", usual: "DataclassInstance", *, but: Iterable[str] = ()
) -> list[tuple[str, Any]]:
    """Names and values of the fields that are not as usual, also in parts, but for
    some names."""
    pairs = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(usual, field.name)
        if field.name in but or value == default:
            continue
        pairs += (
            changes(value, default, but=but)
            if _is_part(value)
            else [(field.name, value)]
        )
    return pairs


def value_of(config: Any, dotted: str) -> Any:
    """The field of a dotted name, with dashes or underscores."""
    for name in dotted.replace("-", "_").split("."):
        config = getattr(config, name)
    return config


def with_value(config: T, dotted: str, value: Any) -> T:
    """The configuration with another value in the field of a dotted name."""
    name, _, rest = dotted.partition(".")
    inner = with_value(getattr(config, name), rest, value) if rest else value
    return dataclasses.replace(config, **{name: inner})  # type: ignore[type-var]


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """The annotation of every field of a dataclass, with its ranges."""
    hints = get_type_hints(get_origin(cls) or cls, include_extras=True)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(get_origin(cls) or cls)
    }


def _default_of(config: "DataclassInstance", dotted: str) -> Any:
    """The default of the field of a dotted name."""
    name, _, rest = dotted.partition(".")
    (field,) = (field for field in dataclasses.fields(config) if field.name == name)
    default = (
        field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
    )
    return value_of(default, rest) if rest else default


def _is_part(value: Any) -> "TypeGuard[DataclassInstance]":
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fits(value: Any, hint: Any, *, in_range: bool = True) -> bool:
    """Returns whether a value is of the type of a field, and within its range."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _fits(value, parts[0], in_range=in_range) and not (
            in_range and value is not None and _beyond(value, parts)
        )
    if kind in (Union, UnionType):
        return any(_fits(value, part, in_range=in_range) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is tuple:
        each = (
            parts[:1] * len(value)
            if isinstance(value, tuple) and parts[1:] == (...,)
            else parts
        )
        same = isinstance(value, tuple) and len(value) == len(each)
        return same and all(
            _fits(one, part, in_range=in_range)
            for one, part in zip(value, each, strict=True)
        )
    if in_range and isinstance(value, str) and UNSHOWN.search(value):
        return False
    if hint is float:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and not (in_range and math.isnan(value))
        )
    return hint is Any or (
        isinstance(value, kind or hint) and (hint is bool) == isinstance(value, bool)
    )


def _beyond(value: Any, parts: Iterable[Any]) -> bool:
    """Returns whether a number is out of the bounds among an annotation's parts."""
    tests = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}
    return any(
        not tests[type(bound)](value, *dataclasses.astuple(bound))
        for bound in parts
        if type(bound) in tests
    )


def _is_sane(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_sane, value))
    return (
        not isinstance(value, float)
        or value == 0.0
        or SMALLEST <= abs(value) <= LARGEST
    )


def _allowed(hint: Any, value: Any) -> str:
    """The values of an annotation, in words; ``value`` is one that it does not
    allow."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        bounds = [bound for bound in parts[1:] if isinstance(bound, Ge | Gt | Le | Lt)]
        return _range(parts[0], bounds) if bounds else _allowed(parts[0], value)
    if kind in (Union, UnionType):
        return ", or ".join(_allowed(part, value) for part in parts)
    if kind is Literal:
        return " or ".join(map(repr, parts))
    if kind is tuple and parts[1:] == (...,):
        words = _allowed(parts[0], None)
        return (
            words
            if isinstance(value, tuple)
            else f"a tuple (x, ...), where x is {words}"
        )
    words = {
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        str: PLAIN,
        NoneType: "None",
    }
    return words.get(hint, hint.__name__ if kind is None else str(hint))


def _range(kind: Any, bounds: Sequence[Any]) -> str:
    """A range in words, from its lower bound and perhaps an upper one."""
    (least, *most), low = (dataclasses.astuple(bound)[0] for bound in bounds), bounds[0]
    if kind is int:
        return f"a whole number from {least} to {most[0]}"
    if not most:
        return (
            "positive and finite"
            if isinstance(low, Gt)
            else f"finite and at least {least}"
        )
    ends = (
        "[" if isinstance(low, Ge) else "(",
        "]" if isinstance(bounds[1], Le) else ")",
    )
    return f"in {ends[0]}{least}, {most[0]}{ends[1]}"
