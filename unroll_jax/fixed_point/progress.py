"""Progress of the rows of an iteration: residuals, the best state of each, and how a row ends."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.flat_states import per_example, ratio
from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONFINITE, STALLED

__all__ = [
    "GROWTH",
    "IDLE_AT_THE_CAP",
    "RUNNING",
    "STALL_PATIENCE",
    "Progress",
    "advance",
    "at_the_cap",
    "begin",
    "extend",
    "looks",
    "near_zero",
    "relative",
    "vanishing",
]

# States may grow to this many times their reach before residuals stop being relative to them: beyond, |f(z) - z| is
# small next to |f(z)| because z is large, as of a map without a fixed point.
GROWTH = 30.0

RUNNING = -1
IDLE_AT_THE_CAP = 3  # steps without a better residual, near round-off, after which a row that is cut off had stalled
PLATEAU = 2.0  # the relative residual may vary so much while a state goes to 0
SHRUNK = 4.0  # times smaller is a step, in the same time, than where the plateau began
UNSEEN = 8  # steps of a quick contraction between two looks at its residuals, at most
STALL_PATIENCE = 10  # steps without a better residual, near round-off, after which there is none to be had


class Progress(NamedTuple):
    """The progress of each row.

    Attributes:
      best: the state of least residual met; among residuals of a plateau, that of the least step.
      residual: its relative residual.
      since: steps since it was met.
      status: how the row ended, or -1 while it runs.
      reach: see `extend`.
      step: |f(z) - z| of the best state.
      plateau: relative residual and step where the last plateau of the relative residual began, see `_vanishing`.
    """

    best: Float[Array, "b m"]
    residual: Float[Array, " b"]
    since: Int[Array, " b"]
    status: Int[Array, " b"]
    reach: Float[Array, " b"]
    step: Float[Array, " b"]
    plateau: tuple[Float[Array, " b"], Float[Array, " b"]]

    @property
    def going(self) -> Bool[Array, " b"]:
        """True in rows that go on."""
        return self.status == RUNNING


def begin(z: Float[Array, "b m"], reach: Float[Array, " b"]) -> Progress:
    """Before the first step from z, whose norm is ``reach``."""
    none, unknown = jnp.zeros_like(reach, jnp.int32), jnp.full_like(reach, jnp.inf)
    return Progress(z, unknown, none, jnp.full_like(none, RUNNING), reach, unknown, (unknown, unknown))


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
    offset: float = 0.0,
    nought: float = 0.0,
) -> tuple[Progress, Float[Array, " b"]]:
    """After |f(z) - z| and |f(z)| are known: rows end at ``tol``, at round-off, or at a value that is not finite.

    A row is at round-off if ``patience`` steps have brought nothing better than a residual under ``floor``. A row that
    goes to 0 ends where |f(z) - z| is at most ``nought`` times its reach, see `vanishing`; ``offset`` is that of
    `relative`.

    Returns:
      ``(progress, residual)``, the latter relative to ``size``, or see `relative`.
    """
    reach = extend(progress.reach, step, first=jnp.isinf(progress.residual))
    reach = jnp.where(progress.going, reach, progress.reach)
    step = jnp.where(size > GROWTH * reach, jnp.maximum(step, epsilon * size), step)
    residual = relative(step, size, reach, epsilon, offset)
    lower = residual < progress.residual
    level, height = progress.plateau
    better = progress.going & (lower | (step < progress.step) & (residual <= PLATEAU * level))
    best = per_example(better, z, progress.best)
    since = jnp.where(better, 0, progress.since + 1)
    lowest = jnp.where(better, residual, progress.residual)
    shortest = jnp.where(better, step, progress.step)
    fell = progress.going & ((residual <= level / PLATEAU) | jnp.isinf(level))
    plateau = (jnp.where(fell, residual, level), jnp.where(fell, step, height))
    status = jnp.where(progress.going & (since >= patience) & (lowest <= floor), STALLED, progress.status)
    status = jnp.where(progress.going & ~jnp.isfinite(residual), NONFINITE, status)
    status = jnp.where(progress.going & (residual <= tol), CONVERGED, status)
    after = Progress(best, lowest, since, status, reach, shortest, plateau)
    if nought:
        ended = progress.going & vanishing(after) & (shortest <= nought * reach)
        after = after._replace(status=jnp.where(ended, CONVERGED, status))
    return after, residual


def vanishing(progress: Progress) -> Bool[Array, " b"]:
    """True in rows whose best state is on its way to 0.

    There the relative residual tells nothing: it is constant, 1 / c - 1 for f(z) = c z. The step has shrunk to less
    than a quarter since the relative residual last halved, so that the state has at least halved. A state that tends
    to another fixed point z* stops to do so once it is within about 2 |z*| of 0.
    """
    return progress.step <= progress.plateau[1] / SHRUNK


def near_zero(progress: Progress, status: Int[Array, " b"], tol: float) -> tuple[Float[Array, " b"], Int[Array, " b"]]:
    """The residuals and ends of rows, where those of rows that go to 0 are relative to their reach."""
    residual = ratio(progress.step, progress.reach)
    ended = vanishing(progress) & (residual <= tol) & (status != NONFINITE)
    return jnp.where(ended, residual, progress.residual), jnp.where(ended, CONVERGED, status)


def at_the_cap(progress: Progress, floor: float | Float[Array, " b"], rounding: float) -> Int[Array, " b"]:
    """Returns the status of rows at the cap on steps: a row that is still going has stalled, or was cut off.

    A residual under ``rounding`` is less than rounding the values of the map leaves: more steps tell nothing.
    """
    idle = (progress.since >= IDLE_AT_THE_CAP) | (progress.residual <= rounding)
    stalled = (progress.residual <= floor) & idle
    return jnp.where(progress.going, jnp.where(stalled, STALLED, MAX_STEPS), progress.status)


def relative(
    step: Float[Array, " b"], size: Float[Array, " b"], reach: Float[Array, " b"], epsilon: float, offset: float = 0.0
) -> Float[Array, " b"]:
    """The residual |f(z) - z| relative to |f(z)|, or to `GROWTH` times ``reach`` where |f(z)| has outgrown that.

    Args:
      step: |f(z) - z|.
      size: |f(z)|.
      reach: see `extend`.
      epsilon: relative spacing of the numbers f is computed in; an outgrown state is not known any better.
      offset: added to the size that the residual is relative to: atol / tol, as a residual of at most tol then means
        |f(z) - z| <= atol + tol |f(z)|.
    """
    limit = GROWTH * reach
    outgrown = ratio(jnp.maximum(step, epsilon * size), limit + offset)
    return jnp.where(size > limit, outgrown, ratio(step, size + offset))


def extend(reach: Float[Array, " b"], step: Float[Array, " b"], first: Bool[Array, "..."] | bool) -> Float[Array, " b"]:
    """The size that states of an iteration have by right, after a step |f(z) - z|.

    It is the norm of the first state or of the first step, and grows with later ones, at most twofold each: where an
    extrapolation has gone far astray, one step tells nothing about the size of a fixed point.
    """
    return jnp.fmax(reach, jnp.where(first, step, jnp.minimum(step, 2.0 * reach)))


def looks(
    before: Float[Array, " b"],
    after: Float[Array, " b"],
    bound: float | Float[Array, " b"],
    going: Bool[Array, " b"],
    count: Int[Array, ""],
    fall: float,
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The plain steps to take until the next look at residuals, and whether the last were quick.

    As many as take every row to its bound at the rate of the last ones, but at most twice as many as those were, and at
    most `UNSEEN`.

    Args:
      before: residuals at the look before.
      after: residuals now, ``count`` steps later.
      bound: where rows have converged.
      going: rows that have not.
      count: steps since the look before.
      fall: how many times smaller each step must have made every residual to be quick.
    """
    share = (after / before) ** (1.0 / count.astype(after.dtype))
    left = jnp.where(going, jnp.log(bound / after) / jnp.log(share), 0.0)
    following = jnp.clip(jnp.ceil(jnp.max(left, initial=0.0)), 1.0, UNSEEN).astype(count.dtype)
    return jnp.minimum(following, 2 * count), jnp.all((share <= 1.0 / fall) | ~going)
