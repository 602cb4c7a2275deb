"""Options of a user's task, made from functions and arrays by `train.tasks.own`."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from .constrained import ConstrainedConfig
from .fields import Condition

NOISE = "noise and collapse, which a user's task does not have"
WITHOUT_EFFECT = {
    "train_gamma": NOISE,
    "test_gammas": NOISE,
    "on_collapse": NOISE,
    "unroll": "a loop over layers of this package",
}


@dataclasses.dataclass(frozen=True)
class OwnConfig(ConstrainedConfig):
    """Options of a user's task, which gets no noise.

    Example:
      >>> from unroll_jax.train import ConstraintConfig, PrimalConfig
      >>> constraints, primal = ConstraintConfig(alpha=(0.1,)), PrimalConfig(learning_rate=1e-2)
      >>> config = OwnConfig(steps=100, constraints=constraints, primal=primal)
      >>> config.check()  # of every number
      >>> config.label()
      'constrained-seed0'
    """

    task: ClassVar[str] = "own"
    metric: ClassVar[str] = "validation loss"

    def conditions(self) -> Iterator[Condition]:
        """Yields those of all such runs, and the options that a user's task cannot have."""
        yield from super().conditions()
        yield from ((name, of, False) for name, of in WITHOUT_EFFECT.items())

    def label(self) -> str:
        """Method and seed."""
        return f"{self.method}-seed{self.seed}"
