"""Fields of configurations: by dotted name, within their ranges, to JSON and back."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T", bound="DataclassInstance")
Rule = tuple[str, str, bool]

LONGEST = 10**9  # steps: counters on devices are int32
WIDEST = 2**14  # a square matrix of this width takes a gigabyte
DEEPEST = 2**10  # layers are compiled one by one

# Whole numbers, by the last part of their names: least and most. What is absurd is refused before it takes memory.
WHOLE: dict[str, tuple[int, int]] = {
    "accumulate": (1, 2**20),
    "attack_examples": (1, LONGEST),
    "attack_steps": (1, 10**4),
    "atoms": (1, WIDEST),
    "augment": (0, WIDEST),
    "batch_size": (1, 2**20),
    "channels": (1, WIDEST),
    "completion_tokens": (1, 2**16),
    "completions": (0, LONGEST),
    "decay_every": (1, LONGEST),
    "dim": (1, WIDEST),
    "epochs": (1, 10**6),
    "every": (1, LONGEST),
    "features": (1, WIDEST),
    "freeze_after": (0, LONGEST),
    "hidden_dim": (1, 4 * WIDEST),
    "input_layers": (1, DEEPEST),
    "last": (1, DEEPEST),
    "lora_rank": (1, WIDEST),
    "max_length": (3, 2**16),
    "max_steps": (1, 10**6),
    "min_count": (1, LONGEST),
    "norm_steps": (1, 10**6),
    "num_atoms": (1, WIDEST),
    "num_heads": (1, DEEPEST),
    "num_key_value_heads": (1, DEEPEST),
    "num_layers": (1, DEEPEST),
    "num_steps": (1, 10**4),
    "pool": (1, WIDEST),
    "positions": (1, LONGEST),
    "rank": (1, WIDEST),
    "reduction": (1, WIDEST),
    "seed": (0, 2**32 - 1),
    "stem": (1, WIDEST),
    "steps": (1, LONGEST),
    "test_examples": (1, LONGEST),
    "train_examples": (1, LONGEST),
    "unroll": (1, DEEPEST),
    "validate_every": (1, LONGEST),
    "validation_examples": (1, LONGEST),
    "warmup_steps": (0, LONGEST),
    "widths": (1, WIDEST),
}
# Other numbers: sizes whose squares float32 holds, and 0.
SMALLEST, LARGEST = 1e-15, 1e9


def check_fields(config: "DataclassInstance", rules: Iterable[Rule]) -> None:
    """Refuses a field that breaks a rule (dotted field as on the command line, what is allowed, whether it holds).

    Around the rules, every number is checked against the range that anything can have: whole ones before, others after,
    whose ranges are wider than the rules'.
    """
    for field, allowed, holds in (*_whole_rules(config), *rules, *_size_rules(config)):
        if not holds:
            raise UserError(f"--{field} must be {allowed}, got {value_of(config, field)}")


def check_types(config: "DataclassInstance", prefix: str = "") -> None:
    """Refuses a value that is not of its field's type, as Python lets it be and `from_json` does not."""
    types = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name.replace('_', '-')}"
        if not _fits(value, types[field.name]):
            raise UserError(f"--{name} must be {_allowed(types[field.name])}, got {value!r}")
        if _is_part(value):
            check_types(value, f"{name}.")


def check_used(
    config: "DataclassInstance", defaults: "DataclassInstance", conditions: Iterable[tuple[str, str, bool]]
) -> None:
    """Refuses options that are not used (dotted field, what they need, whether that is given) and yet were changed."""
    for field, needed, used in conditions:
        if not used and value_of(config, field) != value_of(defaults, field):
            raise UserError(f"{_as_typed(field, value_of(config, field))} has no effect without {needed}; leave it out")


def to_json(config: "DataclassInstance") -> dict[str, Any]:
    """The configuration as JSON values, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(cls: type[T], values: Any, *, source: Path | str, typed: bool = False, again: str = "train again") -> T:
    """The dataclass that `to_json` wrote; a field that is missing, unknown or of another type is refused by name.

    ``typed`` says that it was written by hand, so that nothing of it is damaged; ``again`` is the way out.
    """
    wrong, way_out = (f"{source}:", "mend it") if typed else (f"{source} is damaged:", f"restore it, or {again}")
    hints = {field.name: field for field in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise UserError(f"{wrong} {values!r} is of the wrong type in place of {', '.join(hints)}; {way_out}")
    odd = sorted(set(values) ^ set(hints))
    if odd:
        raise UserError(
            f"{source} does not fit this version of the code: field {odd[0]!r} is unknown or missing; {again}"
        )
    built, types = {}, get_type_hints(cls)
    for name in hints:
        value = values[name]
        if isinstance(part := types[name], type) and dataclasses.is_dataclass(part):
            value = from_json(part, value, source=source, typed=typed, again=again)
        built[name] = tuple(value) if isinstance(value, list) else value
        if not _fits(built[name], types[name]):
            raise UserError(f"{wrong} {name} is {value!r}, which is of the wrong type; {way_out}")
    return cls(**built)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two `to_json` values differ, with both values."""
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
    """Names and values of the fields that are not as usual, those of parts too, but for some names."""
    pairs = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(usual, field.name)
        if field.name in but or value == default:
            continue
        pairs += changes(value, default, but=but) if _is_part(value) else [(field.name, value)]
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


def positive(value: float | None) -> bool:
    """Returns whether a number is above 0 and finite, or None."""
    return value is None or (value > 0.0 and math.isfinite(value))


def nonnegative(value: float) -> bool:
    """Returns whether a number is at least 0 and finite."""
    return value >= 0.0 and math.isfinite(value)


def _is_part(value: Any) -> "TypeGuard[DataclassInstance]":
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _whole_rules(config: "DataclassInstance") -> Iterator[Rule]:
    for name, short, values in _numbers(config):
        if short in WHOLE:
            least, most = WHOLE[short]
            yield name, f"a whole number from {least} to {most}", all(least <= value <= most for value in values)


def _size_rules(config: "DataclassInstance") -> Iterator[Rule]:
    for name, short, values in _numbers(config):
        if short not in WHOLE:
            yield name, f"finite, and 0 or of a size from {SMALLEST:g} to {LARGEST:g}", all(map(_is_sane, values))


def _is_sane(value: float) -> bool:
    return value == 0.0 or (math.isfinite(value) and SMALLEST <= abs(value) <= LARGEST)


def _numbers(config: "DataclassInstance", prefix: str = "") -> Iterator[tuple[str, str, list[Any]]]:
    """Options that hold numbers, one or several: dotted name, the field's own name, and the numbers."""
    is_number: Callable[[Any], bool] = lambda value: isinstance(value, int | float) and not isinstance(value, bool)  # noqa: E731
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name.replace('_', '-')}"
        if _is_part(value):
            yield from _numbers(value, f"{name}.")
        elif numbers := [one for one in (value if isinstance(value, tuple) else (value,)) if is_number(one)]:
            yield name, field.name, numbers


def _fits(value: Any, hint: Any) -> bool:
    """Returns whether a value is of the type of a field."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is tuple:
        each = parts[:1] * len(value) if isinstance(value, tuple) and parts[1:] == (...,) else parts
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is Any:
        return True
    return isinstance(value, kind or hint) and (hint is bool) == isinstance(value, bool)


def _allowed(hint: Any) -> str:
    """The values of a type, in words."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return ", or ".join(map(_allowed, parts))
    if kind is Literal:
        return " or ".join(map(repr, parts))
    if kind is tuple and parts[1:] == (...,):
        return f"a tuple (x, ...), where x is {_allowed(parts[0])}"
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", NoneType: "None"}
    return words.get(hint, hint.__name__ if kind is None else str(hint))


def _as_typed(field: str, value: Any) -> str:
    """An option as a command line has it: a switch is --a.field or --a.no-field."""
    if isinstance(value, bool):
        group, dot, name = field.rpartition(".")
        return f"--{field}" if value else f"--{group}{dot}no-{name}"
    return f"--{field} {value}"
