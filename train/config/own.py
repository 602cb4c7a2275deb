"""The options of a task of your own, which `train.tasks.own` makes of functions and arrays."""

import dataclasses
from typing import ClassVar

from .checks import check_training
from .constraints import ConstrainedConfig
from .fields import check_used

WITHOUT_EFFECT = ("train-gamma", "test-gammas", "on-collapse")


@dataclasses.dataclass(frozen=True)
class OwnConfig(ConstrainedConfig):
    """How a task of your own is trained; no noise is added to it."""

    task: ClassVar[str] = "own"
    metric: ClassVar[str] = "validation loss"

    def check(self) -> None:
        """Checks every number; what depends on the depth is checked with the task."""
        check_training(self)
        unused = ((name, "noise and collapse, which a task of your own has none of", False) for name in WITHOUT_EFFECT)
        check_used(self, OwnConfig(), unused)

    def label(self) -> str:
        """Method and seed."""
        return f"{self.method}-seed{self.seed}"
