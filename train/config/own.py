"""The options of a task of your own, which `train.tasks.own` makes of functions and arrays."""

import dataclasses
from typing import ClassVar

from .checks import check_training
from .constraints import ConstrainedConfig
from .fields import check_used

NOISE = "noise and collapse, which a task of your own has none of"
WITHOUT_EFFECT = {
    "train-gamma": NOISE,
    "test-gammas": NOISE,
    "on-collapse": NOISE,
    "unroll": "a loop over layers of ours, while yours are in your function",
}


@dataclasses.dataclass(frozen=True)
class OwnConfig(ConstrainedConfig):
    """Options of a task of your own; no noise is added to it.

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

    def check(self) -> None:
        """Checks every number; what depends on the depth is checked with the task."""
        check_training(self)
        unused = ((name, of, False) for name, of in WITHOUT_EFFECT.items())
        check_used(self, OwnConfig(), unused)

    def label(self) -> str:
        """Method and seed."""
        return f"{self.method}-seed{self.seed}"
