"""The axes of a table, as the command line has them, and its cells: a configuration and a folder each."""

import dataclasses
import difflib
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.constrained import ConstrainedConfig
from ..config.errors import UserError
from ..config.fields import value_of, with_value
from ..config.run import FREE
from ..parsing import HELP, given, parse

OVER = "--over."
MOST_CELLS = 10_000
AS_IN = "`--over.seed 0,1,2`"
SAFE = re.compile(r"[^\w.+-]+")  # what the name of a folder is kept without


class Base(NamedTuple):
    """Base of all cells of an experiment: the options that they share, and the experiment's defaults."""

    experiment: str
    config: ConstrainedConfig
    usual: ConstrainedConfig


class Cell(NamedTuple):
    """One run of a table.

    Attributes:
      name: of its folder.
      experiment: by name.
      values: what it has on each axis, as text.
      config: all options, with `out` and what else says where a run is at its default.
      refusal: why there is no such run; None where there is.
    """

    name: str
    experiment: str
    values: dict[str, str]
    config: ConstrainedConfig
    refusal: str | None


class Plan(NamedTuple):
    """A table as its command line means it.

    Attributes:
      name: of the grid, or of its experiments.
      folder: where it goes.
      cells: all of them.
      over: the texts of the axes.
      words: of the command behind `table`, but for the options of one call.
    """

    name: str
    folder: Path
    cells: list[Cell]
    over: dict[str, str]
    words: list[str]

    @property
    def shown(self) -> str:
        """The experiments and the axes in a sentence."""
        experiments = ", ".join(dict.fromkeys(cell.experiment for cell in self.cells))
        return f"Cells: {experiments}, {axes_words(self.over)}."

    @property
    def command(self) -> str:
        """The command that goes on."""
        return shlex.join(["unroll-jax", "table", *self.words])


def split_over(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The texts of --over.OPTION by option, and all other words."""
    over, rest, words = {}, [], iter(arguments)
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
            raise UserError(f"{option} has no values; list them with commas between, as in {AS_IN}")
        if name in over:
            raise UserError(f"{option} is given more than once; give it once")
        over[name] = text
    return over, rest


def axes_words(over: Mapping[str, str]) -> str:
    """Describes the axes, as in "over num-layers 3,5; seed 0"."""
    return f"over {'; '.join(f'{name} {text}' for name, text in over.items())}" if over else "over no option"


def make_cells(bases: Sequence[Base], over: Mapping[str, str], options: Iterable[str]) -> list[Cell]:
    """Every combination of the values, experiment by experiment, the last axis changing fastest.

    A cell that its experiment refuses says why; a value that no cell can have is refused.

    Args:
      bases: the experiments.
      over: the texts of the axes.
      options: the other words of the command, which may not fix what is an axis.
    """
    count = len(bases) * math.prod(len(_texts(name, text)) for name, text in over.items())
    if count > MOST_CELLS:
        raise UserError(f"the table has {count} cells, of which {MOST_CELLS} may be; give fewer values")
    cells = [cell for base in bases for cell in _cells_of(base, over, list(options))]
    for cell in cells:
        if len(cell.config.variants()) > 1:
            raise UserError(
                f"a cell is one run, and --method {cell.config.method} is several of {cell.experiment}; name the "
                "methods, as in `--over.method erm,constrained`"
            )
    for name in over:
        for value in dict.fromkeys(cell.values[name] for cell in cells):
            _require_one([cell for cell in cells if cell.values[name] == value], f"--over.{name} {value}: ")
    _require_one(cells, "")
    names = [cell.name for cell in cells]
    if alike := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"two cells would share the folder {alike[0]}; give values that differ in more than punctuation"
        )
    return cells


def _require_one(cells: Sequence[Cell], what: str) -> None:
    """Refuses cells that are all refused, in the words of the first."""
    if all(cell.refusal for cell in cells):
        raise UserError(f"{what}{cells[0].refusal}")


def _cells_of(base: Base, over: Mapping[str, str], options: Sequence[str]) -> Iterator[Cell]:
    fields = {name: _field(name, base, options) for name in over}
    twice = [name for name in fields if list(fields.values()).count(fields[name]) > 1]
    if twice:
        raise UserError(f"{' and '.join(f'--over.{name}' for name in twice)} are one option; give it once")
    axes = [_values(name, text, fields[name], base) for name, text in over.items()]
    chosen = given(options, "--constraints.warmup-steps") or "constraints.warmup-steps" in fields.values()
    for point in itertools.product(*(axis.items() for axis in axes)):
        config, values = base.config, {}
        for name, (text, value) in zip(over, point, strict=True):
            config, values[name] = with_value(config, fields[name].replace("-", "_"), value), text
        config = config.fitting(base.usual, chosen=chosen, log=lambda _: None)
        yield Cell(_name(base.experiment, values), base.experiment, values, config, _refusal(config))


def _refusal(config: ConstrainedConfig) -> str | None:
    try:
        config.check()
    except UserError as error:
        return str(error)
    return None


def _name(experiment: str, values: Mapping[str, str]) -> str:
    """Returns the name of a cell, as in video-ut_num-layers-3_train-gamma-0.15_erm_seed-0."""
    parts = (text if name == "method" else f"{name.rpartition('.')[2]}-{text}" for name, text in values.items())
    return "_".join([experiment, *(SAFE.sub("+", part) for part in parts)])


def _field(name: str, base: Base, options: Sequence[str]) -> str:
    """The option of an experiment that an axis names, whole or by the last parts of its name."""
    fields = list(_options(base.config))
    matches = [name] if name in fields else [field for field in fields if field.endswith(f".{name}")]
    if not matches:
        near = difflib.get_close_matches(name, [*fields, *(field.rpartition(".")[2] for field in fields)], n=1)
        words = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"--over.{name}: {base.experiment} has no option {name}{words}")
    if len(matches) > 1:
        raise UserError(f"--over.{name} may be {' or '.join(matches)} of {base.experiment}; give the whole name")
    (field,) = matches
    if field.partition(".")[0].replace("-", "_") in FREE:
        raise UserError(f"--over.{name} does not change what is trained; give {name} as an option of all cells")
    if field.startswith(("data.", "test-")):
        raise UserError(f"--over.{name}: cells are compared on the same test; give {name} as an option of all cells")
    if given(options, f"--{field}"):
        raise UserError(f"--{field} is an axis of the table, --over.{name}; give it once")
    return field


def _options(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of the options of a configuration, with dashes."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name.replace('_', '-')}"
        yield from _options(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]


def _texts(name: str, text: str) -> list[str]:
    texts = [part.strip() for part in text.split(",")]
    if not all(texts):
        raise UserError(f"--over.{name} {text}: a value is empty; list values with commas between, as in {AS_IN}")
    return texts


def _values(name: str, text: str, field: str, base: Base) -> dict[str, Any]:
    """The values of an axis by their text, each once, read as the option itself is."""
    values: dict[str, Any] = {}
    for part in _texts(name, text):
        value = _read(name, part, field, base)
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if shown in values:
            raise UserError(f"--over.{name} {text}: {shown} is there twice; give each value once")
        values[shown] = value
    return values


def _read(name: str, text: str, field: str, base: Base) -> Any:
    if isinstance(value_of(base.config, field), bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"--over.{name} must be true or false, or both with a comma between, got {text!r}")
        return text.lower() == "true"
    words = text.split()
    if option := next((word for word in words if word in HELP or word.startswith("--")), None):
        raise UserError(f"--over.{name} {text}: {option} is an option, not a value; list values, as in {AS_IN}")
    try:
        program = f"unroll-jax table {base.experiment}"
        return value_of(parse(type(base.config), [f"--{field}", *words], program, base.config), field)
    except UserError as error:
        raise UserError(f"--over.{name} {text}: {error}") from error
