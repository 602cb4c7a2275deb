"""Disturbances of the inputs of an evaluation other than Gaussian noise: words NAME=SIZE."""

from collections.abc import Sequence
from typing import NamedTuple

from .errors import OptionError
from .fields import Rule

SALT_AND_PEPPER, BLUR, DROPPED = "salt-and-pepper", "blur", "dropped"
WIDEST_BLUR = 100.0  # pixels: of anything wider, little but the mean grey is left
# Of every name: its largest size, and what the size is; all are above 0.
SIZES: dict[str, tuple[float, str]] = {
    SALT_AND_PEPPER: (1.0, "a share"),
    BLUR: (WIDEST_BLUR, "a deviation in pixels"),
    DROPPED: (1.0, "a share"),
}


class Disturbance(NamedTuple):
    """A kind of disturbance, one of `SIZES`, and how strong it is."""

    name: str
    size: float

    @property
    def label(self) -> str:
        """As it is typed, and as figures name it."""
        return f"{self.name}={self.size:g}"


def parse_disturbance(word: str) -> Disturbance:
    """The disturbance of a word NAME=SIZE."""
    name, _, size = word.partition("=")
    try:
        disturbance = Disturbance(name, float(size))
    except ValueError:
        raise OptionError("test_disturbances", "as in blur=1", word) from None
    if name not in SIZES:
        raise OptionError("test_disturbances", f"of {', '.join(SIZES)}", word)
    return disturbance


def disturbances(words: Sequence[str]) -> list[Disturbance]:
    """The disturbances of words, sorted by name and then by strength."""
    return sorted(map(parse_disturbance, words))


def disturbance_rules(words: Sequence[str], names: Sequence[str]) -> tuple[Rule, ...]:
    """Returns the rules for test_disturbances of a task that has the disturbances of these names."""
    parsed = disturbances(words)
    field, allowed = "test_disturbances", ", ".join(f"{name} ({SIZES[name][1]})" for name in names)
    return (
        (field, f"of {allowed} for this task", all(one.name in names for one in parsed)),
        *(
            (field, f"{name}=SIZE with {what} above 0 and at most {most:g}", _in_range(parsed, name, most))
            for name, (most, what) in SIZES.items()
        ),
        (field, "each once", len({one.label for one in parsed}) == len(parsed)),
    )


def _in_range(parsed: Sequence[Disturbance], name: str, most: float) -> bool:
    return all(0.0 < one.size <= most for one in parsed if one.name == name)
