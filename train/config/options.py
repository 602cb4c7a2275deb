"""Options: dataclasses that pydantic checks, the ranges of their fields, and JSON."""

import dataclasses
import functools
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from .errors import PLAIN, UNSHOWN, OptionError, UserError, on_command_line, option_text

T = TypeVar("T")

LONGEST = 10**9  # steps: counters on devices are int32
WIDEST = 2**14  # a square matrix of this width takes a gigabyte
DEEPEST = 2**10  # layers are compiled one by one
# float32 holds the squares of every number between, and 0
SMALLEST, LARGEST = 1e-15, 1e9
SHOWN = 60  # characters of a value in a message


def _plain(text: str) -> str:
    if UNSHOWN.search(text):
        raise ValueError(PLAIN)
    return text


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("one number or more")
    return values


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("each once")
    return values


# Ranges keep an absurd number from taking memory or time before it fails.
Count = Annotated[int, Field(ge=1, le=LONGEST)]
Natural = Annotated[int, Field(ge=0, le=LONGEST)]
Width = Annotated[int, Field(ge=1, le=WIDEST)]
Depth = Annotated[int, Field(ge=1, le=DEEPEST)]
Iterations = Annotated[int, Field(ge=1, le=10**6)]
Parts = Annotated[int, Field(ge=1, le=2**20)]
Length = Annotated[int, Field(ge=3, le=2**16)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Text = Annotated[str, AfterValidator(_plain)]
# One number for all layers, or one for each.
Fractions = Annotated[tuple[Fraction, ...], AfterValidator(_some)]
NonNegatives = Annotated[tuple[NonNegative, ...], AfterValidator(_some)]
# Levels of noise that are tried one by one.
Levels = Annotated[tuple[Positive, ...], AfterValidator(_each_once)]

# The order of help: options that are used most, those of a task, and of groups, and
# last options of machines and trackers.
ORDER = (  # noqa: SIM905 (a list is longer)
    "file text second prompts method steps epochs batch_size seed out train_gamma"
    " test_gammas validate_every overwrite config early_stop OTHERS data model network"
    " primal optimizer constraints dual ema log mesh accumulate remat"
).split()
CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def options(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass whose fields are checked whenever it is made.

    Raises:
      OptionError: from the constructor and `dataclasses.replace`, for a field of
        another type or out of its range.

    Example:
      >>> @options
      ... class Example:
      ...     steps: Count = 10
      >>> Example(steps=0)
      Traceback (most recent call last):
      ...
      unroll_jax.train.config.errors.OptionError: steps must be greater than or \
equal to 1, got 0
    """
    made: Any = dataclass(cls, frozen=True, config=CONFIG)
    validate = made.__init__

    @functools.wraps(validate)
    def init(self: Any, *values: Any, **fields: Any) -> None:
        try:
            validate(self, *values, **fields)
        except ValidationError as error:
            raise _option_error(error) from None

    made.__init__ = init
    fields = made.__dataclass_fields__.items()
    made.__dataclass_fields__ = dict(sorted(fields, key=_place))
    return made


def _place(field: tuple[str, Any]) -> int:
    """Returns the place of a field in help."""
    return ORDER.index(field[0] if field[0] in ORDER else "OTHERS")


def check_left_out(
    config: Any, names: Iterable[str], needed: str, usual: Any = None
) -> None:
    """Checks that options which have no effect are as in ``usual``, by default the
    defaults of their class."""
    usual = usual or type(config)()
    for name in names:
        value = value_of(config, name)
        if value != value_of(usual, name):
            raise UserError(
                f"{option_text(name, value)} has no effect without {needed}; leave"
                " it out"
            )


def to_json(config: Any) -> dict[str, Any]:
    """The configuration as JSON values, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(
    cls: type[T], values: Any, *, source: Path | str, again: str = "train again"
) -> T:
    """Reads what `to_json` wrote. An error names the file and an unknown or wrong
    field, and ``again``. Options that an earlier version lacked have their defaults."""
    if not isinstance(values, dict):
        raise UserError(f"{source} has no options; {again}")
    try:
        config = TypeAdapter(cls).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        with on_command_line(only=()):
            problem = _option_error(error)
        raise UserError(f"{source}: {problem}; {again}") from None
    return config


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested dicts by their dotted names."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Dotted names of the fields in which two `to_json` values differ, with both
    values."""
    before, after = flat(old), flat(new)
    return [
        f"{name} was {before.get(name)}, is now {after.get(name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def value_of(config: Any, dotted: str) -> Any:
    """The field of a dotted name, with dashes or underscores."""
    return functools.reduce(getattr, dotted.replace("-", "_").split("."), config)


def with_value(config: T, dotted: str, value: Any) -> T:
    """The configuration with another value in the field of a dotted name."""
    name, _, rest = dotted.replace("-", "_").partition(".")
    inner = with_value(getattr(config, name), rest, value) if rest else value
    return dataclasses.replace(config, **{name: inner})  # type: ignore[type-var]


def _option_error(error: ValidationError) -> UserError:
    """The first fault, in words. A field of several types has a fault for each."""
    faults = error.errors(include_url=False)
    field = _field(faults[0]["loc"])
    if faults[0]["type"] == "unexpected_keyword_argument":
        return UserError(f"there is no option {option_text(field)}")
    same = [fault for fault in faults if _field(fault["loc"]) == field]
    allowed = dict.fromkeys(
        fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        for fault in same
    )
    given = " ".join(repr(faults[0]["input"]).split())
    return OptionError(field, ", or ".join(allowed), given[:SHOWN])


def _field(place: Collection[int | str]) -> str:
    """The dotted name at pydantic's place of a fault, without items of tuples and
    names of types."""
    return ".".join(str(name) for name in place if str(name).isidentifier())
