"""What every iteration keeps of each example: its best state, and whether it goes on."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONFINITE, STALLED, extend, per_example, relative

__all__ = ["IDLE_AT_THE_CAP", "Progress", "advance", "at_the_cap", "begin"]

RUNNING = -1
IDLE_AT_THE_CAP = 3  # steps without a better residual, near round-off, after which a row that is cut off had stalled


class Progress(NamedTuple):
    """Of each row.

    Attributes:
      best: the state of least residual met.
      residual: its relative residual.
      since: steps since it was met.
      status: how the row ended, or -1 while it goes on.
      reach: see `extend`.
    """

    best: Float[Array, "b m"]
    residual: Float[Array, " b"]
    since: Int[Array, " b"]
    status: Int[Array, " b"]
    reach: Float[Array, " b"]

    @property
    def going(self) -> Bool[Array, " b"]:
        """Which rows go on."""
        return self.status == RUNNING


def begin(z: Float[Array, "b m"], reach: Float[Array, " b"]) -> Progress:
    """Before the first step from z, whose norm is ``reach``."""
    none = jnp.zeros_like(reach, jnp.int32)
    return Progress(z, jnp.full_like(reach, jnp.inf), none, jnp.full_like(none, RUNNING), reach)


def advance(
    progress: Progress,
    z: Float[Array, "b m"],
    step: Float[Array, " b"],
    size: Float[Array, " b"],
    *,
    tol: float,
    epsilon: float,
    floor: float | Float[Array, " b"],
    patience: int,
) -> tuple[Progress, Float[Array, " b"]]:
    """After |f(z) - z| and |f(z)| are known: rows end at ``tol``, at round-off, or at a value that is not finite.

    A row is at round-off if ``patience`` steps have brought nothing better than a residual under ``floor``.

    Returns:
      ``(progress, residual)``, the latter relative to ``size``, or see `relative`.
    """
    reach = extend(progress.reach, step, first=jnp.isinf(progress.residual))
    reach = jnp.where(progress.going, reach, progress.reach)
    residual = relative(step, size, reach, epsilon)
    better = progress.going & (residual < progress.residual)
    best = per_example(better, z, progress.best)
    since = jnp.where(better, 0, progress.since + 1)
    lowest = jnp.where(better, residual, progress.residual)
    status = jnp.where(progress.going & (since >= patience) & (lowest <= floor), STALLED, progress.status)
    status = jnp.where(progress.going & ~jnp.isfinite(residual), NONFINITE, status)
    status = jnp.where(progress.going & (residual <= tol), CONVERGED, status)
    return Progress(best, lowest, since, status, reach), residual


def at_the_cap(progress: Progress, floor: float | Float[Array, " b"], rounding: float) -> Int[Array, " b"]:
    """How rows ended once no more steps are taken: one that goes on had stalled, or was cut off.

    A residual under ``rounding`` is less than rounding the values of the map leaves: more steps say nothing.
    """
    idle = (progress.since >= IDLE_AT_THE_CAP) | (progress.residual <= rounding)
    stalled = (progress.residual <= floor) & idle
    return jnp.where(progress.going, jnp.where(stalled, STALLED, MAX_STEPS), progress.status)
