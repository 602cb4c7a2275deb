"""Constraints on the worst of the samples."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import in_interval, require
from unroll_jax.constrained.trees import as_numbers, widen

__all__ = ["tail_mean"]


def tail_mean(
    level: float | Sequence[float] | np.ndarray,
) -> Callable[[Float[Array, "samples constraints"]], Float[Array, "constraints"]]:
    r"""CVaR: the mean violation of the worst samples, a share 1 - q of all.

    .. math::
        \mathrm{CVaR}_q(c)
        = \min_t \; t + \frac{1}{1 - q} \frac1N \sum_i [c_i - t]_+
        = \sum_j w_j c_{(j)} , \quad
        w_j = \frac{\min(1, [N (1 - q) - j]_+)}{N (1 - q)} ,

    :math:`c_{(0)} \ge c_{(1)} \ge \dots` sorted. At most 0, it leaves at least a share
    q of these samples without a violation (the q-quantile lies below CVaR), which the
    mean does not.

    The gradient is that sum with the gradients of the :math:`c_{(j)}`: each of the
    worst floor(N(1 - q)) samples has weight 1 / (N(1 - q)), the next one the rest to 1,
    all others none. That is the exact gradient where the violations at the boundary
    differ, and a subgradient where they tie. N must be the global batch, as it is under
    `jax.jit` on a sharded one: the mean of the tails of parts is too low.

    Args:
      level: q in [0, 1), one number or one for each constraint. 0 is the paper's mean,
        q near 1 the worst sample.

    Source: Rockafellar, Uryasev (2000), "Optimization of conditional value-at-risk",
    eqs. 4 and 9.

    Example:
      >>> import jax.numpy as jnp
      >>> tail_mean(0.5)(jnp.array([[1.0], [3.0], [-2.0], [0.0]])).tolist()
      [2.0]
      >>> import jax, unroll_jax  # on the worse half of the samples of a batch
      >>> losses = jnp.array([[4.0, 1.0], [4.0, 2.0], [4.0, 3.0], [4.0, 4.0]])
      >>> each = jax.vmap(unroll_jax.descent_constraints(0.25))(losses)
      >>> tail_mean(0.5)(each).tolist()
      [0.5]
    """
    levels = as_numbers("level", level, in_interval("[0, 1)"), each="constraint")

    def reduce(
        violations: Float[Array, "samples constraints"],
    ) -> Float[Array, "constraints"]:
        violations = widen("violations", violations)
        shape = violations.shape
        wanted = "be (samples, constraints) of one sample or more"
        require(len(shape) == 2 and shape[0] > 0, "violations", wanted, shape)
        wanted = f"be one number or one for each of {shape[1]} constraints"
        require(levels.ndim == 0 or levels.size == shape[1], "level", wanted, levels)
        if np.all(levels == 0.0):
            return jnp.mean(violations, axis=0)
        mass = shape[0] * (1.0 - levels)
        rank = np.arange(shape[0])[:, None]
        weights = np.clip(mass - rank, 0.0, 1.0) / mass
        worst_first = jnp.flip(jnp.sort(violations, axis=0), axis=0)
        # not 0 times -inf
        return jnp.sum(
            weights.astype(violations.dtype) * worst_first, axis=0, where=weights > 0.0
        )

    return reduce
