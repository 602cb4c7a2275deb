"""The resolved configuration of a run: frozen dataclasses, parsed by tyro, saved as JSON."""

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from train.errors import UserError

__all__ = [
    "PrimalConfig",
    "Remat",
    "Rule",
    "RunConfig",
    "check_fields",
    "check_used",
    "differences",
    "from_json",
    "nonnegative",
    "positive",
    "run_rules",
    "to_json",
    "value_of",
    "with_value",
]

T = TypeVar("T")
Rule = tuple[str, str, bool]
Remat = Literal["none", "everything", "dots", "dots_without_batch"]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How a run computes, whatever it trains."""

    accumulate: int = 1
    """Parts that a batch is computed in, one after the other: less memory, the same step."""
    average: float | None = None
    """Decay in (0, 1) of a moving average of the parameters, which validation, evaluation and export then use in their
    place; None for none."""
    remat: Remat = "none"
    """What the backward pass recomputes in place of storing it: none; everything; dots, everything but matrix products,
    which saves little where layers are narrow; dots_without_batch, everything but products with weights. Of each layer
    for video and text, else of the whole network."""
    mesh: str | None = None
    """Devices by axis, as in data=2,fsdp=4 (data, fsdp, tensor); None means data over all that divide the batch."""
    profile: str | None = None
    """STEP:COUNT writes a trace of COUNT steps from step STEP on into the run folder, for TensorBoard or Perfetto."""
    out: str | None = None
    """Run folder; None makes one under runs/ named after the experiment."""


@dataclasses.dataclass(frozen=True)
class PrimalConfig:
    """Adam on the parameters: linear warm-up, then a schedule."""

    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup_share: float = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """After the warm-up: cosine and linear fall to 0 at the last step."""
    clip_norm: float | None = 1.0
    """Largest global norm of a gradient; None for no bound."""


def check_fields(config: Any, rules: Iterable[Rule]) -> None:
    """Checks rules (dotted field as on the command line, what is allowed, whether it holds).

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    for field, allowed, holds in rules:
        if not holds:
            raise UserError(f"--{field} must be {allowed}, got {value_of(config, field)}")


def check_used(config: Any, defaults: Any, conditions: Iterable[tuple[str, str, bool]]) -> None:
    """Refuses options that are not used (dotted field, what they need, whether that is given) and yet were changed.

    Raises:
      UserError: naming the field, its value and what it needs.
    """
    for field, needed, used in conditions:
        if not used and value_of(config, field) != value_of(defaults, field):
            raise UserError(f"{_as_typed(field, value_of(config, field))} has no effect without {needed}; leave it out")


def run_rules(config: Any) -> tuple[Rule, ...]:
    """What `check_fields` is to check of a `RunConfig` that has a batch size; `parse_profile` checks the profile."""
    parts, size = config.accumulate, config.batch_size
    return (
        ("accumulate", f"a divisor of --batch-size {size}", parts < 1 or size % parts == 0),
        ("average", "in (0, 1), or None", config.average is None or 0.0 < config.average < 1.0),
    )


def to_json(config: Any) -> dict[str, Any]:
    """The configuration as JSON values, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(cls: type[T], values: dict[str, Any], *, source: Path) -> T:
    """The dataclass that `to_json` wrote.

    Raises:
      UserError: naming ``source`` and the field that is missing, unknown or of another type.
    """
    hints = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        fields = ", ".join(hints)
        raise UserError(
            f"{source} is damaged: {values!r} is of the wrong type in place of {fields}; restore it, or train again"
        )
    odd = sorted(set(values) ^ set(hints))
    if odd:
        raise UserError(
            f"{source} does not fit this version of the code: field {odd[0]!r} is unknown or missing; train again"
        )
    built, types = {}, get_type_hints(cls)
    for name, field in hints.items():
        value = values[name]
        if field.default_factory is not dataclasses.MISSING and dataclasses.is_dataclass(
            part := field.default_factory()
        ):
            value = from_json(type(part), value, source=source)
        built[name] = tuple(value) if isinstance(value, list) else value
        if not _fits(built[name], types[name]):
            raise UserError(
                f"{source} is damaged: {name} is {value!r}, which is of the wrong type; restore it, or train again"
            )
    return cls(**built)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two `to_json` values differ, with both values."""
    found = []
    for name in sorted(set(old) | set(new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append(f"{prefix}{name} was {before}, is now {after}")
    return found


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
    """Whether a number is above 0 and finite, or there is none."""
    return value is None or (value > 0.0 and math.isfinite(value))


def nonnegative(value: float) -> bool:
    """Whether a number is at least 0 and finite."""
    return value >= 0.0 and math.isfinite(value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type that fields of configurations have."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(one, parts[0]) for one in value)
    if hint is float:
        return type(value) in (int, float)
    return isinstance(value, hint) and (hint is bool) == isinstance(value, bool)


def _as_typed(field: str, value: Any) -> str:
    """An option as a command line has it: a switch is --a.field or --a.no-field."""
    if isinstance(value, bool):
        group, dot, name = field.rpartition(".")
        return f"--{field}" if value else f"--{group}{dot}no-{name}"
    return f"--{field} {value}"
