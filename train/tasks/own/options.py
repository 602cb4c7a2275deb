"""Options of a user's task."""

from typing import ClassVar

from ...config.constrained import ConstrainedConfig
from ...config.options import check_left_out, options


@options
class OwnConfig(ConstrainedConfig):
    """Options of a user's task, an `own_task` of functions and arrays, which gets no
    noise.

    Example:
      >>> from unroll_jax.train import ConstraintConfig, PrimalConfig
      >>> constraints, primal = (
      ...     ConstraintConfig(alpha=(0.1,)),
      ...     PrimalConfig(learning_rate=1e-2),
      ... )
      >>> config = OwnConfig(steps=100, constraints=constraints, primal=primal)
      >>> config.check()  # rules across options
      >>> config.describe()
      'constrained, seed 0'
    """

    task: ClassVar[str] = "own"
    metric: ClassVar[str] = "validation loss"

    def check(self) -> None:
        """Checks the rules of all such runs. A user's task has no noise."""
        super().check()
        check_left_out(self, ["train_gamma"], "noise, which a user's task lacks")
        check_left_out(self, ["test_gammas"], "noise, which a user's task lacks")
