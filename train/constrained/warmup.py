"""The warm-up that an experiment has by default, in runs that are shorter than it."""

from collections.abc import Callable
from typing import Any

from train.config import with_value

__all__ = ["fitting_warmup"]


def fitting_warmup(config: Any, usual: Any, *, chosen: bool, log: Callable[[str], None] = print) -> Any:
    """The configuration with a default warm-up that fits its steps; `check_training` refuses one that was chosen.

    A default that is as long as the run, or longer, becomes as large a share of it as it has by default.

    Args:
      config: of the run, of any kind.
      usual: the experiment's own.
      chosen: whether the warm-up was given on the command line.
      log: where a cut is told.
    """
    if chosen or not hasattr(config, "constraints"):
        return config
    steps, warmup = config.steps, config.constraints.warmup_steps
    if not 1 <= steps <= warmup:
        return config
    fits = steps * usual.constraints.warmup_steps // usual.steps
    log(f"--constraints.warmup-steps is {fits} here: the default, {warmup}, does not fit --steps {steps}")
    return with_value(config, "constraints.warmup_steps", fits)
