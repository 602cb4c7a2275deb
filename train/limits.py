"""The range of every number of an experiment's configuration: what is absurd is refused before it takes memory."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from train.config import Rule

__all__ = ["LARGEST", "SMALLEST", "WHOLE", "count_rules", "size_rules"]

LONGEST = 10**9  # steps: counters on devices are int32
WIDEST = 2**14  # a square matrix of this width takes a gigabyte
DEEPEST = 2**10  # layers are compiled one by one

# Whole numbers, by the last part of their names: least and most.
WHOLE: dict[str, tuple[int, int]] = {
    "accumulate": (1, 2**20),
    "augment": (0, WIDEST),
    "batch_size": (1, 2**20),
    "channels": (1, WIDEST),
    "decay_every": (1, LONGEST),
    "dim": (1, WIDEST),
    "epochs": (1, 10**6),
    "every": (1, LONGEST),
    "features": (1, WIDEST),
    "freeze_after": (0, LONGEST),
    "hidden_dim": (1, 4 * WIDEST),
    "input_layers": (1, DEEPEST),
    "max_length": (3, 2**16),
    "max_steps": (1, 10**6),
    "min_count": (1, LONGEST),
    "norm_steps": (1, 10**6),
    "num_heads": (1, DEEPEST),
    "num_layers": (1, DEEPEST),
    "num_steps": (1, 10**4),
    "pool": (1, WIDEST),
    "rank": (1, WIDEST),
    "reduction": (1, WIDEST),
    "seed": (0, 2**32 - 1),
    "stem": (1, WIDEST),
    "steps": (1, LONGEST),
    "test_examples": (1, LONGEST),
    "train_examples": (1, LONGEST),
    "validate_every": (1, LONGEST),
    "validation_examples": (1, LONGEST),
    "warmup_steps": (0, LONGEST),
    "widths": (1, WIDEST),
}
# Other numbers: sizes whose squares float32 holds, and 0.
SMALLEST, LARGEST = 1e-15, 1e9


def count_rules(config: Any) -> Iterator[Rule]:
    """What `check_fields` is to check of the whole numbers of a configuration: before the rest."""
    for name, short, values in _numbers(config):
        if short in WHOLE:
            least, most = WHOLE[short]
            yield name, f"a whole number from {least} to {most}", all(least <= value <= most for value in values)


def size_rules(config: Any) -> Iterator[Rule]:
    """The same of all other numbers: behind the rest, whose ranges are narrower."""
    for name, short, values in _numbers(config):
        if short not in WHOLE:
            yield name, f"finite, and 0 or of a size from {SMALLEST:g} to {LARGEST:g}", all(map(_is_sane, values))


def _is_sane(value: float) -> bool:
    return value == 0.0 or (math.isfinite(value) and SMALLEST <= abs(value) <= LARGEST)


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, str, list[Any]]]:
    """Options that hold numbers, one or several: dotted name, the field's own name, and the numbers."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        elif numbers := [one for one in (value if isinstance(value, tuple) else (value,)) if _is_number(one)]:
            yield name, field.name, numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
