"""Schedules of multipliers: means over batches, smoothing, the steps in between, slack's decay.

Each is a gradient transformation around another, fed minus the violations, as `dual_ascent` feeds its optimiser.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from unroll_jax.arguments import POSITIVE, at_least, checked, in_interval, require
from unroll_jax.constrained.constraints import relaxed_violations

__all__ = ["averaged", "between", "relaxed", "scheduled", "smoothed", "steps_now"]


@checked(resilience=POSITIVE, every=at_least(1), smoothing=in_interval("[0, 1)"), warmup=at_least(0))
def scheduled(
    optimizer: optax.GradientTransformation,
    *,
    resilience: float | None,
    every: int,
    smoothing: float,
    warmup: int,
    freeze_after: int | None,
) -> optax.GradientTransformation:
    """``optimizer`` under the options of `dual_ascent`; itself under their defaults.

    Raises:
      ValueError: if an option is out of range, see `dual_ascent`.
    """
    late = freeze_after is None or freeze_after >= warmup
    require(late, "freeze_after", f"be at least warmup={warmup}, or None", freeze_after)
    if resilience is not None:
        optimizer = relaxed(optimizer, resilience)
    if smoothing > 0.0:
        optimizer = smoothed(optimizer, smoothing)
    if every > 1:
        optimizer = averaged(optimizer, every)
    if warmup > 0 or freeze_after is not None:
        optimizer = between(optimizer, warmup, freeze_after)
    return optimizer


def steps_now(
    state: Any, *, every: int, warmup: int, freeze_after: int | None, **unused: Any
) -> bool | Bool[Array, ""]:
    """True if the next call moves the multipliers, from the state of `scheduled` before it."""
    due: Any = True
    if warmup > 0 or freeze_after is not None:
        due, state = _inside(state.step, warmup, freeze_after), state.inner_state
    return due if every == 1 else due & (state.mini_step == every - 1)


def relaxed(optimizer: optax.GradientTransformation, resilience: float) -> optax.GradientTransformation:
    """``optimizer`` on the gradient of the resilient dual function, c - lambda / beta.

    A feedback loop; see `dual_ascent` for the least beta at which it converges.
    """

    def relaxed_gradient(gradient: Any, multiplier: Any) -> Any:
        return -relaxed_violations(-gradient, multiplier, resilience)

    def update(gradients: Any, state: optax.OptState, multipliers: Any = None) -> tuple[Any, optax.OptState]:
        return optimizer.update(jax.tree.map(relaxed_gradient, gradients, multipliers), state, multipliers)

    return optax.GradientTransformation(optimizer.init, update)  # type: ignore[arg-type]


def smoothed(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """``optimizer`` on the exponential moving average of its gradients, corrected for the bias of its start at 0."""
    return optax.chain(optax.ema(decay), optimizer)


def averaged(optimizer: optax.GradientTransformation, every: int) -> optax.GradientTransformation:
    """``optimizer`` once in ``every`` calls, on the mean of what they were fed; the calls between change nothing."""

    def steps(multipliers: Any) -> optax.MultiSteps:
        # MultiSteps sums in float32 unless told, which would round gradients in float64.
        widest = jnp.result_type(*jax.tree.leaves(multipliers))
        return optax.MultiSteps(optimizer, every, accumulator_dtype=widest)

    def init(multipliers: Any) -> optax.OptState:
        return steps(multipliers).init(multipliers)

    def update(gradients: Any, state: Any, multipliers: Any = None) -> tuple[Any, optax.OptState]:
        return steps(multipliers).update(gradients, state, multipliers)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def between(optimizer: optax.GradientTransformation, first: int, last: int | None) -> optax.GradientTransformation:
    """``optimizer`` on the calls ``first`` up to, but not including, ``last``, counted from 0; on others, nothing."""

    return optax.conditionally_mask(optimizer, lambda step, **unused: _inside(step, first, last))


def _inside(step: Any, first: int, last: int | None) -> Any:
    return step >= first if last is None else (step >= first) & (step < last)
