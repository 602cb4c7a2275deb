"""What every iteration keeps of each example: its best state, and whether it goes on."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.problem import CONVERGED, NONFINITE, STALLED, per_example

__all__ = ["Progress", "advance", "begin"]

RUNNING = -1


class Progress(NamedTuple):
    """Of each row.

    Attributes:
      best: the state of least residual met.
      residual: its relative residual.
      since: steps since it was met.
      status: how the row ended, or -1 while it goes on.
    """

    best: Float[Array, "b m"]
    residual: Float[Array, " b"]
    since: Int[Array, " b"]
    status: Int[Array, " b"]

    @property
    def going(self) -> Bool[Array, " b"]:
        """Which rows go on."""
        return self.status == RUNNING


def begin(z: Float[Array, "b m"], like: Float[Array, " b"]) -> Progress:
    """Before the first step from z; ``like`` has one number per row."""
    none = jnp.zeros_like(like, jnp.int32)
    return Progress(z, jnp.full_like(like, jnp.inf), none, jnp.full_like(none, RUNNING))


def advance(
    progress: Progress,
    z: Float[Array, "b m"],
    residual: Float[Array, " b"],
    *,
    tol: float,
    floor: float,
    patience: int,
) -> Progress:
    """After the residual of z is known: rows end at ``tol``, at round-off, or at a value that is not finite.

    A row is at round-off if ``patience`` steps have brought nothing better than a residual under ``floor``.
    """
    better = progress.going & (residual < progress.residual)
    best = per_example(better, z, progress.best)
    since = jnp.where(better, 0, progress.since + 1)
    lowest = jnp.where(better, residual, progress.residual)
    status = jnp.where(progress.going & (since >= patience) & (lowest <= floor), STALLED, progress.status)
    status = jnp.where(progress.going & ~jnp.isfinite(residual), NONFINITE, status)
    status = jnp.where(progress.going & (residual <= tol), CONVERGED, status)
    return Progress(best, lowest, since, status)
