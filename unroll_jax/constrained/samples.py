"""Constraints on the losses of single samples: on the worst of them, or on their
mean."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import in_interval, require
from unroll_jax.constrained.layer_bounds import Constraints
from unroll_jax.constrained.trees import as_numbers, as_samples, check_function, wide

__all__ = ["Reduction", "sample_constraints", "tail_mean"]

#: One number for each constraint from the violations of N samples: (N, C) to (C,).
Reduction = Callable[[Float[Array, "samples constraints"]], Float[Array, "constraints"]]


def sample_constraints(constraints: Constraints, reduction: Reduction) -> Constraints:
    """Constraints on the losses of every sample, (N, L + 1), whose violations a
    reduction brings down to one each.

    N must be the global batch, as it is under `jax.jit` on a sharded one: the mean of
    the tails of parts is too low.

    Args:
      constraints: ``layer_losses -> violations`` on the last axis, such as
        `descent_constraints`.
      reduction: ``(N, C) -> (C,)``, such as `tail_mean`.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> losses = jnp.array([[4.0, 1.0], [4.0, 2.0], [4.0, 3.0], [4.0, 4.0]])
      >>> constraints = unroll_jax.descent_constraints(0.25)
      >>> [
      ...     sample_constraints(constraints, tail_mean(level))(losses).tolist()
      ...     for level in (0.0, 0.5, 0.75)
      ... ]
      [[-0.5], [0.5], [1.0]]
      >>> violations = sample_constraints(constraints, tail_mean(0.5))(losses)
      >>> float(
      ...     unroll_jax.lagrangian(
      ...         jnp.mean(losses[:, -1]), violations, jnp.array([2.0])
      ...     )
      ... )
      3.5
    """
    check_function("constraints", constraints, "descent_constraints(0.2)")
    check_function("reduction", reduction, "tail_mean(0.5)")
    return lambda sample_losses: reduction(constraints(as_samples(sample_losses)))


def tail_mean(level: float | Sequence[float] | np.ndarray) -> Reduction:
    r"""CVaR, ``(N, C) -> (C,)``: the mean violation of the worst samples, a share 1 - q
    of all.

    .. math:: \mathrm{CVaR}_q(c) = \min_t \; t + \frac{1}{1 - q} \frac1N \sum_i [c_i - t]_+
        = \sum_j w_j c_{(j)} , \quad w_j = \frac{\min(1, [N (1 - q) - j]_+)}{N (1 - q)} ,

    :math:`c_{(0)} \ge c_{(1)} \ge \dots` sorted. At most 0, it leaves at least a share
    q of these samples without a violation (the q-quantile lies below CVaR), which the
    mean does not.

    The gradient is that sum with the gradients of the :math:`c_{(j)}`: each of the
    worst floor(N(1 - q)) samples has weight 1 / (N(1 - q)), the next one the rest to 1,
    all others none. That is the exact gradient where the violations at the boundary
    differ, and a subgradient where they tie.

    Args:
      level: q in [0, 1), one number or one for each constraint; 0 is the paper's mean,
        q near 1 the worst sample.

    Source: Rockafellar, Uryasev (2000), "Optimization of conditional value-at-risk",
    eqs. 4 and 9.

    Example:
      >>> import jax.numpy as jnp
      >>> tail_mean(0.5)(jnp.array([[1.0], [3.0], [-2.0], [0.0]])).tolist()
      [2.0]
    """
    levels = as_numbers("level", level, in_interval("[0, 1)"), each="constraint")

    def reduce(
        violations: Float[Array, "samples constraints"],
    ) -> Float[Array, "constraints"]:
        violations = wide("violations", violations)
        fits = violations.ndim == 2 and len(violations)
        require(
            fits,
            "violations",
            "be (samples, constraints) of one sample or more",
            violations.shape,
        )
        count, fits = (
            violations.shape[1],
            levels.ndim == 0 or levels.size == violations.shape[1],
        )
        require(
            fits,
            "level",
            f"be one number or one for each of {count} constraints",
            levels,
        )
        if np.all(levels == 0.0):
            return jnp.mean(violations, axis=0)
        mass = violations.shape[0] * (1.0 - levels)
        rank = np.arange(violations.shape[0])[:, None]
        weights = np.clip(mass - rank, 0.0, 1.0) / mass
        worst_first = jnp.flip(jnp.sort(violations, axis=0), axis=0)
        # not 0 times -inf
        return jnp.sum(
            weights.astype(violations.dtype) * worst_first, axis=0, where=weights > 0.0
        )

    return reduce
