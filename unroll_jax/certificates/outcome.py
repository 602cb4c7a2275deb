"""The outcome of each layer for its energy, and the scan over layers that collects the outcomes."""

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check
from unroll_jax.descent import Params
from unroll_jax.summaries import energy_lines

__all__ = [
    "Energy",
    "Outcome",
    "Smoothness",
    "certificate_lines",
    "check_smoothness",
    "evaluate",
    "judge_layers",
    "outcome_of",
]

Energy = Callable[[Params, Any, Any], Float[Array, "*batch"]]
Smoothness = float | Float[Array, "*batch"] | Energy
Verdict = TypeVar("Verdict", bound=Any)  # a NamedTuple with a field `energy`


class Outcome(enum.IntEnum):
    """The outcome of a layer for its energy.

    GUARANTEED: it did not rise, and could not. DESCENDED: it did not rise, though nothing here guarantees it. ROSE: it
    rose, or is not a number.

    Example:
      >>> [outcome.name for outcome in Outcome]
      ['GUARANTEED', 'DESCENDED', 'ROSE']
    """

    GUARANTEED = 0
    DESCENDED = 1
    ROSE = 2


def certificate_lines(outcome: Array, energy: Array) -> list[str]:
    """A summary of the outcomes (num_layers, *batch) of a pass, and of its energy."""
    shares = [
        f"{name.lower()} {np.mean(np.asarray(outcome) == value):.1%}" for name, value in Outcome.__members__.items()
    ]
    size, run, rises = energy_lines(energy, np.asarray(outcome) == Outcome.ROSE)
    return [size, f"steps: {', '.join(shares)}", run, rises]


def outcome_of(before: Array, after: Array, guaranteed: Array, tolerance: float | None) -> Array:
    """The `Outcome` of each example; a rise by less than ``tolerance`` of the energy is rounding."""
    share = 16 * jnp.finfo(before.dtype).eps if tolerance is None else tolerance
    kept = after <= before + share * jnp.where(jnp.isfinite(before), jnp.abs(before), 0.0)
    held = jnp.where(guaranteed, int(Outcome.GUARANTEED), int(Outcome.DESCENDED))
    return jnp.where(kept, held, int(Outcome.ROSE)).astype(jnp.int32)


def evaluate(smoothness: Smoothness, params: Params, y: Any, x: Any, like: Array) -> Array:
    """A smoothness at y, one number an example, as ``like``."""
    value = smoothness(params, y, x) if callable(smoothness) else smoothness
    return jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape)


def check_smoothness(**smoothness: Smoothness | None) -> None:
    """Checks that each is a number at least 0 where it is known, an array, a function or None.

    Raises:
      TypeError: if it is anything else.
      ValueError: if it is a negative number.
    """
    for name, value in smoothness.items():
        if value is None or callable(value) or hasattr(value, "dtype"):
            continue
        if not isinstance(value, float | int):
            raise TypeError(f"{name} must be a number, an array or a function, got {value!r}")
        check(name, value, at_least(0.0))


def judge_layers(
    layer: Callable[[Any, Params], tuple[Any, Verdict]],
    energy: Energy,
    params: Params,
    y: Any,
    x: Any,
    *,
    num_layers: int,
    tied: bool,
) -> Verdict:
    """The verdicts of all layers, stacked, with the energy after the last behind those before each."""
    last, verdicts = jax.lax.scan(layer, y, None if tied else params, length=num_layers)
    final = energy(params if tied else jax.tree.map(lambda leaf: leaf[-1], params), last, x)
    return verdicts._replace(energy=jnp.concatenate([verdicts.energy, final[None]]))
