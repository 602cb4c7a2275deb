"""Decisions of the loop: constants, phases, and one function each, with its reason.

The loop calls `plan_block` after every check of all rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.rows import any_rows
from unroll_jax.fixed_point.stopping import Sizes, StopRule

__all__ = [
    "ACCELERATED",
    "CHECK_INTERVAL",
    "ENDED",
    "GIVEN_UP",
    "PLAIN",
    "Schedule",
    "is_near_zero",
    "must_return",
    "next_phase",
    "plan_block",
]

# Constants of speed, tuned on the cells of `python -m benchmarks gradients`. Half and
# twice of each lead to the same solutions in other times.
#
# Plain steps between two checks of residuals.
CHECK_INTERVAL = 4
# Plain steps are quick if each makes every residual this many times smaller.
MIN_REDUCTION = 1.25
# Plain steps continue if so many more blocks at the last rate reach the tolerance.
NEAR_BLOCKS = 8
# A trial is this many accelerated steps. The first trial begins with the acceleration,
# and each next one where the last ended. `plan_block` and `has_gained` count with it.
TRIAL_STEPS = 10
# At the end of a trial |f(z) - z| of some row must be below this share of what as many
# plain steps would leave. Otherwise acceleration is given up.
MIN_GAIN = 0.5

# Constants of safety. They keep what is not a fixed point from counting as one.
#
# A row returns to its best state if |f(z) - z| rises beyond this many times its least.
MAX_RISE = 2.0
# Factor by which the gap must fall on a plateau of the residual, for a row to count as
# converging to 0.
MIN_SHRINKAGE = 4.0

# The phases of a loop, see `next_phase`.
ENDED, PLAIN, GIVEN_UP, ACCELERATED = range(4)


class Schedule(NamedTuple):
    """The next block of steps. All rows are checked at the end of the block.

    Attributes:
      phase: of the block.
      block: number of evaluations in the block; 1 in the accelerated phase.
      number: evaluations before the block.
      updates: updates of the solver before the block, 0 until acceleration begins.
      is_trial_end: 1 if the block ends a trial of accelerated steps, or 0.
    """

    phase: Int[Array, ""]
    block: Int[Array, ""]
    number: Int[Array, ""]
    updates: Int[Array, ""]
    is_trial_end: Int[Array, ""]


def plan_block(
    rule: StopRule,
    last: Schedule,
    sizes: Sizes,
    base: Float[Array, " b"],
    rate: Float[Array, " b"],
    pace: Float[Array, " b"],
    active: Bool[Array, " b"],
) -> tuple[Schedule, Float[Array, " b"]]:
    """The schedule of the next block, and the gaps where its trial began.

    Args:
      last: the block that has been checked.
      sizes: of its last state.
      base: gaps where the trial of the last block began.
      rate: factor of the residual in a step of the last block.
      pace: factor of |f(z) - z| in a plain step.
      active: rows that have not ended.
    """
    number = last.number + last.block
    left = rule.max_steps - number
    slow = is_slow(rule, sizes.residual, rate, last.block)
    far = is_far(rule, sizes.residual, rate)
    gains = has_gained(sizes.gap, base, pace)
    any_active, any_slow, any_far, any_gains = any_rows(
        active, active & slow, active & far, active & gains
    )

    within_trial = (last.phase == ACCELERATED) & (last.is_trial_end == 0)
    base = jnp.where(within_trial, base, sizes.gap)
    phase = next_phase(last, any_active & (left > 0), any_slow, any_gains)

    # One step says little of the distance to the tolerance.
    check_late = (phase != ACCELERATED) & (any_far | (last.block == 1))
    block = jnp.where(check_late, jnp.minimum(CHECK_INTERVAL, left), 1)
    updates = jnp.where(phase == ACCELERATED, last.updates + 1, last.updates)
    is_multiple = jax.lax.rem(updates, jnp.int32(TRIAL_STEPS)) == 0
    is_trial_end = jnp.where(phase == ACCELERATED, is_multiple.astype(jnp.int32), 0)
    return Schedule(phase, block, number, updates, is_trial_end), base


def next_phase(
    last: Schedule, any_active: Array, any_slow: Array, any_gains: Array
) -> Int[Array, ""]:
    """The phase after a check of all rows.

    PLAIN steps come first. They become ACCELERATED for all rows once one row is slow.
    They are GIVEN_UP, for plain steps to the end, after a trial without gain for any
    row. The loop has ENDED without an active row or without steps left.
    """
    accelerate = (last.phase == PLAIN) & any_slow
    give_up = (last.is_trial_end == 1) & ~any_gains
    phase = jnp.where(accelerate, ACCELERATED, last.phase)
    phase = jnp.where(give_up, GIVEN_UP, phase)
    return jnp.where(any_active, phase, ENDED)


def is_slow(rule: StopRule, residual: Array, rate: Array, block: Array) -> Array:
    """Rows that plain steps do not bring to the tolerance soon.

    One step says little of the rate, unless the residual rises. |f(z) - z| may rise
    while the state grows, as of a map that is not normal. Acceleration from there takes
    half as many steps again.
    """
    quick = rate < 1.0 / MIN_REDUCTION
    near = rate ** (NEAR_BLOCKS * CHECK_INTERVAL) * residual <= rule.tol
    rises = ~(rate < 1.0)
    return (block == CHECK_INTERVAL) & ~quick & ~near | rises


def is_far(rule: StopRule, residual: Array, rate: Array) -> Array:
    """Rows that another block of plain steps leaves above the tolerance.

    The next check then comes after a block, otherwise after one step.
    """
    return rate**CHECK_INTERVAL * residual > rule.tol


def has_gained(gap: Array, base: Array, pace: Array) -> Array:
    """Rows for which the trial beat as many plain steps by `MIN_GAIN`.

    An accelerated step costs more than a plain one.
    """
    return gap < MIN_GAIN * base * pace**TRIAL_STEPS


def must_return(gap: Array, pace: Array, least: Array, age: Array) -> Array:
    """Rows whose gap has risen too far, and that return to their best state.

    A row whose plain steps raise the gap may rise by as much more. No row returns in
    two updates in turn. `anderson` forgets its differences from before the return.

    Args:
      gap: |f(z) - z| of each row, relative to the scale.
      pace: factor of |f(z) - z| in a plain step.
      least: the gap of the best state so far.
      age: updates since the last return.
    """
    allowed = MAX_RISE * jnp.fmax(pace, 1.0) * least
    return ~(gap <= allowed) & (least < jnp.inf) & (age > 0)


def is_near_zero(gap: Array, before: Array, limit: float) -> Array:
    """Rows that go to 0, and are within ``limit`` of their scale.

    On the way to 0 a relative residual is meaningless: it is constant, 1 / c - 1 for
    f(z) = c z. There gap and state have shrunk to a quarter since the residual last
    halved, where the gap was ``before``. Near another fixed point z* they stop, about
    2 |z*| from 0.
    """
    return (gap <= before / MIN_SHRINKAGE) & (gap <= limit)
