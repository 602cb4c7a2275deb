"""Numbers that are written down: as JSON has them, as ratios of layers; those that are not finite are refused."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .config.errors import UserError

# The last bin is open: it holds every ratio above 2.
RATIO_EDGES = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)


class NotFiniteError(UserError):
    """A number of a training run is not finite; the loop adds what is kept, and the way out."""


def require_finite(step: int, values: Any, what: str, *, each: str | None = None) -> None:
    """Refuses a number, or a list of them, that is not finite; of a list the first place, as "layer", is named."""
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def plain(value: Any, name: str) -> Any:
    """A figure as JSON has it, numbers and arrays of NumPy and JAX as Python's; ``name`` says whose it is.

    Raises:
      UserError: if it is not finite, or no number, text, list or dict.
    """
    if isinstance(value, Mapping):
        return {key: plain(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, f"{name}[{place}]") for place, part in enumerate(value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), name)
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
        "ratio_histogram": {"edges": numbers(RATIO_EDGES), "counts": counts},
        "share_descending": float(np.mean(after < before)),
        "mean_ratio_all": float(np.mean(known)) if known.size else None,
    }


def numbers(values: Iterable[float], *, length: int = 0) -> list[float | None]:
    """Numbers as JSON has them: null for what is not finite, and nulls in front to make up ``length``."""
    finite = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(finite)) + finite
