"""Finite numbers: checks of training, and values of JSON."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .config.errors import UserError

# The last bin is open: it holds every ratio above 2.
RATIO_EDGES = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)


class NotFiniteError(UserError):
    """A number of a training run is not finite; the loop adds the last checkpoint and the way out."""


def require_finite(step: int, values: Any, what: str, *, each: str | None = None) -> None:
    """Checks that a number, or each of a list, is finite; the error names the first place of a list, as "layer"."""
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def json_value(value: Any, name: str) -> Any:
    """A figure as a value of JSON, from numbers and arrays of NumPy and JAX; ``name`` is for messages.

    Raises:
      UserError: if it is not a finite number, a text, a list or a dict.
    """
    if isinstance(value, Mapping):
        return {key: json_value(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part, f"{name}[{place}]") for place, part in enumerate(value)]
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), name)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    given = value if isinstance(value, float) else type(value).__name__
    raise UserError(f"{name} must be finite numbers, texts, None, or lists or dicts of these, got {given}; mend it")


def ratio_figures(sample_losses: np.ndarray) -> dict[str, Any]:
    """Distribution of f_l / f_{l-1} over samples, layer by layer, and the share of steps that descend."""
    before, after = sample_losses[:, :-1], sample_losses[:, 1:]
    ratios = np.divide(after, before, out=np.full_like(after, np.nan), where=before > 0.0)
    counts = [np.histogram(column[np.isfinite(column)], RATIO_EDGES)[0].tolist() for column in ratios.T]
    known = ratios[np.isfinite(ratios)]
    return {
        "ratio_histogram": {"edges": json_numbers(RATIO_EDGES), "counts": counts},
        "share_descending": float(np.mean(after < before)),
        "mean_ratio_all": float(np.mean(known)) if known.size else None,
    }


def json_numbers(values: Iterable[Any], *, length: int = 0) -> list[float | None]:
    """Numbers for JSON: null for those that are not finite, and nulls in front to make up ``length``."""
    finite = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(finite)) + finite
