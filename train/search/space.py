"""The space of a search: ranges and choices as the command line has them, and configurations with values put in."""

import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from ..config.errors import UserError
from ..config.fields import to_json, value_of, with_value
from ..config.run import RunConfig, Tunable
from ..system.files import check_out

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

NONE = "none"
FORMS = "LOW:HIGH, LOW:HIGH:COUNT, or values with commas between"
MOST_VALUES = 1000  # of one parameter
TRIALS = 20
MOST_TRIALS = 100_000  # of which Optuna's journal is read as a whole, again and again

C = TypeVar("C", bound=RunConfig)
Sampler = Literal["tpe", "grid"]
Values = Mapping[str, float | None]


class Parameter(NamedTuple):
    """One number that a search varies, by its name and as it was given: in a range, or among its choices."""

    name: str
    text: str
    tunable: Tunable
    low: float
    high: float
    choices: tuple[float | None, ...] = ()

    @property
    def ends(self) -> tuple[float | None, ...]:
        """Values that a configuration must accept for all of them to be worth trying."""
        return self.choices or (self.low, self.high)

    @property
    def extremes(self) -> tuple[float | None, ...]:
        """The ends of the range, and none where it is a choice."""
        return (self.low, self.high, None) if None in self.choices else (self.low, self.high)

    @property
    def distribution(self) -> "BaseDistribution":
        """The parameter as Optuna has it, which is imported here: ranges are refused before."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        return FloatDistribution(self.low, self.high, log=self.tunable.log)

    def to_json(self) -> dict[str, Any]:
        """Returns the parameter as search.json has it."""
        over = {"choices": list(self.choices)} if self.choices else {"low": self.low, "high": self.high}
        return {"field": self.tunable.field, "log": self.tunable.log, **over}


def read_search(
    config: RunConfig, over: Mapping[str, str | None], *, sampler: Sampler, trials: int | None
) -> tuple[list[Parameter], int]:
    """The parameters of a search and how many trials it has, in all; ``trials`` None is 20 or the whole grid."""
    config.check()
    if config.out:
        check_out(config.out)
    if len(config.variants()) > 1:
        raise UserError(
            "a search trains one variant a trial, and this is several; pass --method constrained, erm or "
            "deep_supervision"
        )
    parameters = read_space(over, config.tunables(), grid=sampler == "grid")
    if trials is not None and not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"--trials must be from 1 to {MOST_TRIALS}, got {trials}")
    if sampler == "tpe":
        return parameters, TRIALS if trials is None else trials
    points = math.prod(len(parameter.choices) for parameter in parameters)
    if points > MOST_TRIALS:
        raise UserError(f"--sampler grid has {points} combinations, of which {MOST_TRIALS} may be; give fewer values")
    return parameters, points if trials is None else min(trials, points)


def read_space(given: Mapping[str, str | None], tunables: Mapping[str, Tunable], *, grid: bool) -> list[Parameter]:
    """The parameters given, or where none is, all those that have a default; a grid needs choices."""
    texts = {name: text for name, text in given.items() if text is not None}
    for name, text in texts.items():
        if name not in tunables:
            raise UserError(f"--over.{name} {text}: this experiment has no {name}; it has {', '.join(tunables)}")
    if not texts and grid:
        raise UserError(f"--sampler grid needs values, as in --over.{next(iter(tunables))} 1e-4:1e-2:3")
    texts = texts or {name: tunable.default for name, tunable in tunables.items() if tunable.default is not None}
    parameters = [_read(name, text, tunables[name]) for name, text in texts.items()]
    for parameter in parameters if grid else ():
        if not parameter.choices:
            raise UserError(
                f"--over.{parameter.name} {parameter.text}: a grid needs values; say how many, as in "
                f"{parameter.text}:3, or list them with commas between"
            )
    return parameters


def grid(parameters: Sequence[Parameter]) -> list[dict[str, float | None]]:
    """Every combination of the choices, the last parameter changing fastest."""
    names = [parameter.name for parameter in parameters]
    points = itertools.product(*(parameter.choices for parameter in parameters))
    return [dict(zip(names, point, strict=True)) for point in points]


def configured(config: C, parameters: Sequence[Parameter], values: Values) -> C:
    """The configuration with the values in their fields; a field of one number a layer gets one for all layers."""
    for parameter in parameters:
        if parameter.name in values:
            field, value = parameter.tunable.field, values[parameter.name]
            config = with_value(config, field, (value,) if isinstance(value_of(config, field), tuple) else value)
    return config


def as_options(config: Any, default: Any) -> str:
    """The options of the command line that make a configuration of the experiment's own."""
    from ..report.record import flat  # Matplotlib comes with it

    usual, parts = flat(to_json(default)), []
    for name, value in flat(to_json(config)).items():
        group, dot, field = name.replace("_", "-").rpartition(".")
        if name == "out" or value == usual.get(name):
            continue
        if isinstance(value, bool):
            parts.append(f"--{group}{dot}{field}" if value else f"--{group}{dot}no-{field}")
        else:
            values = value if isinstance(value, list) else [value]
            parts.append(" ".join([f"--{group}{dot}{field}", *(shlex.quote(str(one)) for one in values)]))
    return " ".join(parts)


def words(values: Values) -> str:
    """Values as the log has them."""
    return ", ".join(f"{name} {NONE if value is None else f'{value:.4g}'}" for name, value in values.items())


def _read(name: str, text: str, tunable: Tunable) -> Parameter:
    try:
        if ":" in text:
            return _range(name, text, tunable)
        choices = tuple(_value(part, tunable) for part in text.split(","))
        if len(choices) < 2:
            raise ValueError(f"a search needs two values or more; a fixed one is --{_option(tunable)} {text}")
        if len(set(choices)) < len(choices):
            raise ValueError("a value is given twice")
    except ValueError as error:
        raise UserError(f"--over.{name} {text}: {error}") from None
    numbers = [value for value in choices if value is not None]
    return Parameter(name, text, tunable, min(numbers), max(numbers), choices)


def _range(name: str, text: str, tunable: Tunable) -> Parameter:
    parts = text.split(":")
    low, high = (_number(part) for part in parts[:2])
    if not low < high:
        raise ValueError(f"{low:g} is not below {high:g}")
    if tunable.log and low <= 0.0:
        raise ValueError(f"the range is searched on a log scale and must lie above 0, but begins at {low:g}")
    if len(parts) == 2:
        return Parameter(name, text, tunable, low, high)
    if len(parts) > 3 or not parts[2].strip().isdecimal() or not 2 <= int(parts[2]) <= MOST_VALUES:
        raise ValueError(f"must be {FORMS}, with a whole COUNT from 2 to {MOST_VALUES}")
    spaced = (np.geomspace if tunable.log else np.linspace)(low, high, int(parts[2]))
    # Six digits: what a name, a table and a command show is the value itself.
    return Parameter(name, text, tunable, low, high, tuple(float(f"{value:.6g}") for value in spaced))


def _value(text: str, tunable: Tunable) -> float | None:
    if text.strip().lower() != NONE:
        return _number(text)
    if not tunable.optional:
        raise ValueError(f"--{_option(tunable)} cannot be none")
    return None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text.strip()!r} is no number; must be {FORMS}") from None
    if not math.isfinite(value):
        raise ValueError(f"{text.strip()} is not finite")
    return value


def _option(tunable: Tunable) -> str:
    return tunable.field.replace("_", "-")
