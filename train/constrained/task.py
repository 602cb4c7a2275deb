"""What constrained training needs to know of a task."""

from typing import Any, Protocol

from train.constrained.bounds import Bounds

__all__ = ["Task"]


class Task(Protocol):
    """A model, its data as they are drawn, and its losses by layers.

    Functions are Any here: pyright takes those of a NamedTuple for methods, which would lose their first argument.
    """

    @property
    def init(self) -> Any:
        """``key -> params``."""
        ...

    @property
    def trained(self) -> Any:
        """``params -> bool`` for each of them, whether it is trained; None where all are."""
        ...

    @property
    def draw(self) -> Any:
        """``(batch, key) -> batch`` with all that is random in a step, a row a sample."""
        ...

    @property
    def sample_losses(self) -> Any:
        """``(params, what was drawn) -> (samples, L + 1)``."""
        ...

    @property
    def bounds(self) -> Bounds:
        """Of the layer losses."""
        ...

    @property
    def steps_an_epoch(self) -> int:
        """Steps in which the train split is seen once, but for a rest that is smaller than a batch."""
        ...
