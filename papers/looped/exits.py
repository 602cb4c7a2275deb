"""Exit by improvement: each example loops until a loop changes its state by less
than a threshold."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

__all__ = ["exit_loops", "exit_threshold", "state_changes"]

# accuracy that exits may cost on validation examples, with its standard error: half a
# point
TOLERATED = 0.005
NUM_THRESHOLDS = 40


def state_changes(
    states: Float[Array, "loops_and_one batch ..."],
) -> Float[Array, "loops batch"]:
    r"""The change of every loop, :math:`|h_l - h_{l-1}| / |h_l|`, over all that belongs
    to an example.

    NaN where a state is not finite: it has diverged, and is not still.
    """
    rows = states.reshape(*states.shape[:2], -1)
    before, after = rows[:-1], rows[1:]
    largest = jnp.max(
        jnp.maximum(jnp.abs(before), jnp.abs(after)), axis=-1, keepdims=True
    )
    # squares of the states themselves may overflow or vanish
    scale = jnp.where(largest > 0.0, largest, 1.0)
    moved, size = (
        jnp.linalg.norm(each, axis=-1)
        for each in (after / scale - before / scale, after / scale)
    )
    return moved / jnp.maximum(size, jnp.finfo(size.dtype).tiny)


def exit_loops(changes: np.ndarray, threshold: float) -> Int[np.ndarray, "examples"]:
    """The first loop, from 1, of each example that changes its state by less than the
    threshold, else the last one.

    ``changes`` holds loops 1..L, (L, examples).
    """
    still = changes < threshold
    return np.where(still.any(axis=0), still.argmax(axis=0) + 1, len(still))


def exit_threshold(changes: np.ndarray, correct: np.ndarray) -> float:
    """The threshold of fewest loops that costs at most `TOLERATED` of accuracy against
    all loops.

    Both are of loops 1..L on validation examples, (L, examples); ``correct`` says which
    answers are right.
    """
    levels = np.unique(np.quantile(changes, np.linspace(0.0, 1.0, NUM_THRESHOLDS)))
    thresholds = [*levels, np.nextafter(levels[-1], np.inf)]
    loops = [exit_loops(changes, threshold) for threshold in thresholds]
    # The first threshold lets no example leave early, and costs nothing.
    kept = [
        place for place, exits in enumerate(loops) if _cost(exits, correct) <= TOLERATED
    ]
    return float(thresholds[min(kept, key=lambda place: loops[place].mean())])


def _cost(loops: np.ndarray, correct: np.ndarray) -> float:
    """Accuracy lost by leaving at these loops, with its standard error."""
    lost = correct[-1].astype(float) - correct[loops - 1, np.arange(len(loops))]
    return float(lost.mean() + lost.std() / np.sqrt(len(lost)))
