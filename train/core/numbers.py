"""Numbers of a run: those that are not finite, and numbers of JSON."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..config.errors import UserError


class NotFiniteError(UserError):
    """A number of a training run is not finite; the loop adds the last checkpoint
    and the way out."""


def require_finite(
    step: int, values: Any, what: str, *, each: str | None = None
) -> None:
    """Checks that a number, or each of a list, is finite; the error names the first
    place of a list, as "layer"."""
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def json_value(value: Any, name: str) -> Any:
    """Returns a figure as a value of JSON, from numbers and arrays of NumPy and JAX;
    ``name`` is for messages."""
    if isinstance(value, Mapping):
        parts = value.items()
        return {key: json_value(part, f"{name}[{key!r}]") for key, part in parts}
    if isinstance(value, list | tuple):
        parts = enumerate(value)
        return [json_value(part, f"{name}[{place}]") for place, part in parts]
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), name)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    given = value if isinstance(value, float) else type(value).__name__
    raise UserError(
        f"{name} must be finite numbers, texts, None, or lists or dicts of these, got"
        f" {given}; mend it"
    )


def json_numbers(values: Iterable[Any], *, length: int = 0) -> list[float | None]:
    """Returns numbers for JSON: null for those that are not finite, and nulls in front
    to make up ``length``."""
    finite = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(finite)) + finite
