"""Axes of a sweep, as `--over.OPTION` gives them, and its cells: a name and a
configuration each."""

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..cli import HELP, given, parse
from ..config.errors import UserError
from ..config.options import flat, to_json, value_of, with_value
from ..config.run import FREE, RunConfig

PROGRAM = "unroll-jax sweep EXPERIMENT"
OVER = "--over."
AS_IN = "`--over.seed 0,1,2`"
UNSAFE = re.compile(r"[^\w.+-]+")  # characters that folder names are kept without
NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)"
RANGE = re.compile(f"{NUMBER}:{NUMBER}")


class Axis(NamedTuple):
    """An option that a sweep varies: its name as typed, its whole name, with dashes, as
    ``field``, and its values by their texts. Of a ``range`` they are its two ends.
    """

    name: str
    field: str
    values: dict[str, Any]
    range: bool = False


class Cell(NamedTuple):
    """One run of a sweep: the name of its folder, its values by axis, and its
    configuration without `out`. ``searched`` is False until a search has chosen the
    values of its ranges.
    """

    name: str
    values: dict[str, str]
    config: RunConfig
    searched: bool = True

    def at(self, axis: Axis, text: str, value: Any) -> "Cell":
        """Returns the cell at a value of an axis, which is checked."""
        config = with_value(self.config, axis.field, value)
        values = self.values | {axis.name: text}
        return self._replace(values=values, config=config)

    def checked(self) -> "Cell":
        """Returns the cell without defaults that its values rule out. Raises UserError
        for values that do not fit each other, and for several runs."""
        try:
            config = self.config.resolved()
            config.check()
        except UserError as error:
            where = [f"--over.{axis} {text}" for axis, text in self.values.items()]
            raise UserError(f"{', '.join(where)}: {error}") from error
        if len(config.variants()) > 1:
            raise UserError(
                "each cell is one run, not several of --method or --seeds; give"
                " `--over.method plain,constrained` or `--over.seed 0,1,2`"
            )
        return self._replace(config=config)


class Sweep(NamedTuple):
    """A sweep: options that all cells share, without `out`, the axes, and the number of
    trials that search the ranges among them in each cell."""

    experiment: str
    folder: Path
    config: RunConfig
    axes: tuple[Axis, ...]
    trials: int = 0

    @property
    def ranges(self) -> list[Axis]:
        """The axes that a search takes values of, between their ends."""
        return [axis for axis in self.axes if axis.range]


def split_over(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Splits the words of a command into the texts of --over.OPTION, by option, and
    all others."""
    over, rest, words = dict[str, str](), list[str](), iter(arguments)
    for word in words:
        option, equals, text = word.partition("=")
        if not option.startswith(OVER):
            rest.append(word)
            continue
        name = option.removeprefix(OVER).replace("_", "-")
        text = text if equals else next(words, "")
        if not name:
            raise UserError(f"{word} names no option; give one, as in {AS_IN}")
        if not text.strip() or text.startswith("--"):
            raise UserError(
                f"{option} has no values; list them with commas between, as in {AS_IN}"
            )
        if name in over:
            raise UserError(f"{option} is given more than once; give it once")
        over[name] = text
    return over, rest


def read_axes(
    over: Mapping[str, str], config: RunConfig, options: Sequence[str]
) -> tuple[Axis, ...]:
    """Returns the axes of a sweep. ``options``, the other words, must not set one."""
    axes: dict[str, Axis] = {}
    for name, text in over.items():
        axis = _read_axis(name, text, config, options)
        if other := axes.get(axis.field):
            raise UserError(
                f"--over.{other.name} and --over.{name} are one option; give it once"
            )
        axes[axis.field] = axis
    return tuple(axes.values())


def grid(sweep: Sweep) -> list[Cell]:
    """Returns the cells of every combination of values, the last axis changing
    fastest. All are checked, with a search at both ends of its ranges."""
    axes = [axis for axis in sweep.axes if not axis.range]
    cells: dict[str, Cell] = {}
    for texts in itertools.product(*(axis.values for axis in axes)):
        cell = Cell("search", {}, sweep.config, not sweep.ranges)
        parts = []
        for axis, text in zip(axes, texts, strict=True):
            cell = cell.at(axis, text, axis.values[text])
            short = f"{axis.name.rpartition('.')[2]}-{text}"
            parts.append(UNSAFE.sub("+", text if axis.name == "method" else short))
        cell = cell._replace(name="_".join(parts) or cell.name)
        for end in (0, -1):
            tried = cell
            for axis in sweep.ranges:
                tried = tried.at(axis, *list(axis.values.items())[end])
            tried = tried.checked()
        cells[cell.name] = cell if sweep.ranges else tried
    if len(cells) < math.prod(len(axis.values) for axis in axes):
        raise UserError(
            "two cells would share the folder; give values whose letters and digits"
            " differ, each once"
        )
    return list(cells.values())


# A search reads the values of a trial several times, and tyro takes 40 ms for one.
@functools.lru_cache(maxsize=4096)
def read_value(axis: str, field: str, text: str, config: RunConfig) -> Any:
    """Returns the value of a field that a text on the command line gives it."""
    words, place = text.split(), f"--over.{axis} {text}"
    if isinstance(value_of(config, field), bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"--over.{axis} must be true or false, got {text!r}")
        return text.lower() == "true"
    for word in words:
        if word in HELP or word.startswith("--"):
            raise UserError(
                f"{place}: {word} is an option, not a value; list values, as in {AS_IN}"
            )
    try:
        read = parse(type(config), [f"--{field}", *words], PROGRAM, config)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    return value_of(read, field)


def _read_axis(name: str, text: str, config: RunConfig, options: Sequence[str]) -> Axis:
    field = _field(name, config, options)
    ends = RANGE.fullmatch(text.strip())
    parts = list(ends.groups()) if ends else [part.strip() for part in text.split(",")]
    values: dict[str, Any] = {}
    for part in parts:
        if not part:
            raise UserError(
                f"--over.{name} {text}: a value is empty; list values with commas"
                f" between, as in {AS_IN}"
            )
        value = read_value(name, field, part, config)
        listed = isinstance(value, tuple | list)
        values[" ".join(map(str, value)) if listed else str(value)] = value
    if ends and float(parts[0]) > float(parts[1]):
        raise UserError(f"--over.{name} {text}: a range has its lower end first")
    if len(values) < len(parts):
        raise UserError(
            f"--over.{name} {text}: a value is there twice; give each value once"
        )
    return Axis(name, field, values, bool(ends))


def _field(name: str, config: RunConfig, options: Sequence[str]) -> str:
    """Returns the whole name of the option that an axis names, whole or by the last
    parts."""
    fields = [field.replace("_", "-") for field in flat(to_json(config))]
    matches = [field for field in fields if field.endswith(f".{name}")]
    if name in fields:
        matches = [name]
    if not matches:
        parse(type(config), [f"--{name}"], PROGRAM, config)  # says which are near
    if len(matches) != 1:
        raise UserError(
            f"--over.{name} may be {' or '.join(matches)}; give the whole name"
        )
    (field,) = matches
    if field.replace("-", "_") in FREE or field.startswith(("data.", "test-")):
        raise UserError(
            f"--over.{name}: cells share data, tests and machine; give --{field} as an"
            " option of all cells"
        )
    if given(options, f"--{field}"):
        raise UserError(
            f"--{field} is an axis of the sweep, --over.{name}; give it once"
        )
    return field
