"""Axes of a sweep, as `--over.OPTION` gives them, and its cells: a name and a
configuration each."""

import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..cli import HELP, given, parse
from ..config.constrained import SEVERAL
from ..config.errors import UserError
from ..config.options import flat, to_json, value_of, with_value
from ..config.run import FREE, RunConfig

OVER = "--over."
AS_IN = "`--over.seed 0,1,2`"
UNSAFE = re.compile(r"[^\w.+-]+")  # characters that folder names are kept without


class Axis(NamedTuple):
    """An option that a sweep varies: its name as typed, its whole name, with dashes, as
    ``field``, and its values by their texts.
    """

    name: str
    field: str
    values: dict[str, Any]


class Cell(NamedTuple):
    """One run of a sweep: the name of its folder, its values by axis, and its
    configuration without `out`."""

    name: str
    values: dict[str, str]
    config: RunConfig


class Sweep(NamedTuple):
    """A sweep: options that all cells share, without `out`, and the axes."""

    experiment: str
    folder: Path
    config: RunConfig
    axes: tuple[Axis, ...]

    def cell(self, texts: Sequence[str]) -> Cell:
        """Returns the cell with a value of each axis, by their texts; its name lists
        them."""
        config, shown = (
            self.config,
            {axis.name: text for axis, text in zip(self.axes, texts, strict=True)},
        )
        for axis in self.axes:
            config = with_value(config, axis.field, axis.values[shown[axis.name]])
        try:
            config = config.resolved()
            config.check()
        except UserError as error:
            where = ", ".join(f"--over.{axis} {text}" for axis, text in shown.items())
            raise UserError(f"{where}: {error}") from error
        if len(config.variants()) > 1:
            method = vars(config)["method"]
            if method in SEVERAL:
                raise UserError(
                    f"--method {method} is several runs; give `--over.method"
                    f" {','.join(SEVERAL[method])}`"
                )
            raise UserError(
                f"--seeds {vars(config)['seeds']} is several runs; give `--over.seed"
                " 0,1,2`"
            )
        parts = (
            text if axis == "method" else f"{axis.rpartition('.')[2]}-{text}"
            for axis, text in shown.items()
        )
        return Cell("_".join(UNSAFE.sub("+", part) for part in parts), shown, config)


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
    """Returns the axes of a sweep; ``options``, the other words, must not set one."""
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
    fastest; all are checked."""
    cells = {
        cell.name: cell
        for cell in map(
            sweep.cell, itertools.product(*(axis.values for axis in sweep.axes))
        )
    }
    if len(cells) < math.prod(len(axis.values) for axis in sweep.axes):
        raise UserError(
            "two cells would share the folder; give values whose letters and digits"
            " differ, each once"
        )
    return list(cells.values())


def _read_axis(name: str, text: str, config: RunConfig, options: Sequence[str]) -> Axis:
    field = _field(name, config, options)
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(
            f"--over.{name} {text}: a value is empty; list values with commas between,"
            f" as in {AS_IN}"
        )
    values = [_value(name, field, part, config) for part in parts]
    axis = Axis(name, field, {_shown(value): value for value in values})
    if len(axis.values) < len(values):
        raise UserError(
            f"--over.{name} {text}: a value is there twice; give each value once"
        )
    return axis


def _value(name: str, field: str, text: str, config: RunConfig) -> Any:
    words, place = text.split(), f"--over.{name} {text}"
    if isinstance(value_of(config, field), bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"--over.{name} must be true or false, got {text!r}")
        return text.lower() == "true"
    if field == "method" and text not in ("erm", *SEVERAL["all"]):
        raise UserError(
            f"--over.method must be of {', '.join(SEVERAL['all'])}, got {text}"
        )
    if option := next(
        (word for word in words if word in HELP or word.startswith("--")), None
    ):
        raise UserError(
            f"{place}: {option} is an option, not a value; list values, as in {AS_IN}"
        )
    try:
        return value_of(
            parse(
                type(config),
                [f"--{field}", *words],
                "unroll-jax sweep EXPERIMENT",
                config,
            ),
            field,
        )
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def _field(name: str, config: RunConfig, options: Sequence[str]) -> str:
    """Returns the whole name of the option that an axis names, whole or by the last
    parts."""
    fields = [field.replace("_", "-") for field in flat(to_json(config))]
    matches = (
        [name]
        if name in fields
        else [field for field in fields if field.endswith(f".{name}")]
    )
    if not matches:
        near = difflib.get_close_matches(
            name,
            [*fields, *(field.rpartition(".")[2] for field in fields)],
            n=1,
            cutoff=0.7,
        )
        raise UserError(
            f"--over.{name} is not an"
            f" option{' (did you mean ' + near[0] + '?)' if near else ''}"
        )
    if len(matches) > 1:
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


def _shown(value: Any) -> str:
    """Returns the text of a value, as it may be typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
