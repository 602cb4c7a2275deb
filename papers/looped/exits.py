"""Exit by improvement: examples loop until their state changes little."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

__all__ = ["exit_loops", "exit_threshold", "state_changes"]

# Accuracy that exits may cost on validation examples, with its standard error.
TOLERATED = 0.005
NUM_THRESHOLDS = 40


def state_changes(
    states: Float[Array, "loops_and_one batch ..."],
) -> Float[Array, "loops batch"]:
    r"""The change of each example by every loop, :math:`|h_l - h_{l-1}| / |h_l|`.

    NaN if a state is not finite: it has diverged, and does not exit.
    """
    rows = states.reshape(*states.shape[:2], -1)
    before, after = rows[:-1], rows[1:]
    entries = jnp.maximum(jnp.abs(before), jnp.abs(after))
    largest = jnp.max(entries, axis=-1, keepdims=True)
    # squares of the states themselves may overflow or vanish
    scale = jnp.where(largest > 0.0, largest, 1.0)
    moved = jnp.linalg.norm(after / scale - before / scale, axis=-1)
    size = jnp.linalg.norm(after / scale, axis=-1)
    return moved / jnp.maximum(size, jnp.finfo(size.dtype).tiny)


def exit_loops(changes: np.ndarray, threshold: float) -> Int[np.ndarray, "examples"]:
    """The first loop that changes an example by less than the threshold, or the last.

    ``changes`` holds loops 1..L, (L, examples). Loops count from 1.
    """
    still = changes < threshold
    return np.where(still.any(axis=0), still.argmax(axis=0) + 1, len(still))


def exit_threshold(changes: np.ndarray, correct: np.ndarray) -> float:
    """The threshold of fewest loops that costs at most `TOLERATED` of accuracy.

    Args:
      changes: by loops 1..L of validation examples, (L, examples).
      correct: True for right answers after these loops, (L, examples).
    """
    levels = np.unique(np.quantile(changes, np.linspace(0.0, 1.0, NUM_THRESHOLDS)))
    thresholds = [*levels, np.nextafter(levels[-1], np.inf)]
    loops = [exit_loops(changes, threshold) for threshold in thresholds]
    # The first threshold lets no example exit early, and costs nothing.
    costs = [_cost(exits, correct) for exits in loops]
    kept = [place for place, cost in enumerate(costs) if cost <= TOLERATED]
    return float(thresholds[min(kept, key=lambda place: loops[place].mean())])


def _cost(loops: np.ndarray, correct: np.ndarray) -> float:
    """Accuracy lost by exits at these loops, with its standard error."""
    lost = correct[-1].astype(float) - correct[loops - 1, np.arange(len(loops))]
    return float(lost.mean() + lost.std() / np.sqrt(len(lost)))
