"""Losses and constraints on the losses of loops, and measures of their states."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, in_interval, one_of, require
from unroll_jax.constrained import LayerConstraints
from unroll_jax.constrained.layer_bounds import FORMS
from unroll_jax.constrained.trees import as_losses, as_numbers, check_each

__all__ = ["all_loops_loss", "never_rise", "path_independence", "progressive_loss"]

Losses = Float[Array, "*batch loops_and_one"]


@checked(floor=POSITIVE, form=one_of(FORMS))
def never_rise(floor: float, *, form: str = "ratio", proxy: bool = True) -> LayerConstraints:
    r"""Violations of "no loop of a window is worse than its start": :math:`f_{n+l} \le \max(f_n, \text{floor})`.

    The first loss of a window is its reference, so the bounds do not depend on the number of loops before it. The
    floor keeps them from chasing the digits of a loss that is small enough. On the worst samples:
    ``sample_constraints(never_rise(0.02), tail_mean(0.9))``. For schedules with a floor, and for bounds on the size of
    states, see `unroll_jax.constrained.level_constraints`.

    Args:
      floor: positive, in units of the losses.
      form: one of `unroll_jax.constrained.FORMS`.
      proxy: take the reference for a constant in gradients: no start is rewarded for a larger loss.

    Returns:
      ``violations(losses)``: f_n..f_(n + L) on the last axis, (..., L + 1), give (..., L).

    Raises:
      ValueError: if an option is out of range; while tracing, if losses have fewer than two entries.

    Source: ours; the reference of Porras-Valenzuela, Hadou, Ribeiro is the layer before.

    Example:
      >>> import jax.numpy as jnp
      >>> never_rise(0.5)(jnp.array([2.0, 1.0, 3.0])).tolist(), never_rise(0.5)(jnp.array([0.1, 0.25])).tolist()
      ([-0.5, 0.5], [-0.5])
    """

    def bounds(losses: Losses) -> Float[Array, "*batch constraints"]:
        first = jax.lax.stop_gradient(losses[..., :1]) if proxy else losses[..., :1]
        return jnp.broadcast_to(jnp.maximum(first, floor), losses[..., 1:].shape)

    return LayerConstraints(bounds, form)


def all_loops_loss(losses: Float[Array, "loops_and_one"], weights: Any = None) -> Float[Array, ""]:
    """Deep supervision: the weighted mean of the losses of loops 1..L.

    Args:
      losses: f_0..f_L.
      weights: at least 0, one for each of loops 1..L or one for all; None weights all alike.

    Returns:
      The mean.

    Raises:
      ValueError: if a weight is negative, or there is not one for each loop.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([8.0, 2.0, 1.0])
      >>> float(all_loops_loss(losses)), float(all_loops_loss(losses, [1.0, 3.0]))
      (1.5, 1.25)
    """
    rest = as_losses("losses", losses)[1:]
    given = as_numbers("weights", 1.0 if weights is None else weights, in_interval("[0, inf)"), each="loop")
    check_each("weights", given, rest.size)
    return jnp.average(rest, weights=jnp.broadcast_to(jnp.asarray(given, rest.dtype), rest.shape))


@checked(alpha=in_interval("[0, 1]"))
def progressive_loss(
    last: float | Float[Array, ""], segment: float | Float[Array, ""], *, alpha: float = 1.0
) -> float | Float[Array, ""]:
    """The progressive loss, ``(1 - alpha) last + alpha segment``.

    Args:
      last: loss after all loops of training, with gradients through all; unused where ``alpha`` is 1.
      segment: loss after a segment of `sample_segment`, with gradients through its loops alone.
      alpha: weight, in [0, 1]: 1 for prefix sums, 0.01 for mazes, 0.5 for chess puzzles.

    Returns:
      The loss.

    Raises:
      ValueError: if ``alpha`` is outside [0, 1].

    Source: Bansal et al. (2022), Algorithm 1 and Appendix A.

    Example:
      >>> float(progressive_loss(2.0, 4.0, alpha=0.25))
      2.5
    """
    return segment if alpha == 1.0 else (1.0 - alpha) * last + alpha * segment


def path_independence(states: Any, *, batch_ndim: int = 1) -> Float[Array, "*batch"]:
    """Agreement of the states that loops reach from different starts: the mean cosine with the first of them.

    1 for each example where the limit does not depend on the start; about 0 for states that have nothing in common.

    Args:
      states: arrays (starts, *batch, ...) of at least two starts, such as zeros, noise, and the states of other
        examples, each after the same number of loops.
      batch_ndim: number of batch axes.

    Returns:
      A number in [-1, 1] for each example.

    Raises:
      ValueError: if there are fewer than two starts.

    Source: Anil et al. (2022), Section 4, the asymptotic alignment score.

    Example:
      >>> import jax.numpy as jnp
      >>> path_independence(jnp.array([[[1.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]]])).tolist()
      [1.0, 0.0]
    """
    leaves = jax.tree.leaves(states)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    several = leaves and all(len(shape) > batch_ndim and shape[0] >= 2 for shape in shapes)
    require(several, "states", f"be (starts, *batch, ...) with 2 starts or more, batch_ndim={batch_ndim}", shapes)
    rows = [leaf.reshape(*leaf.shape[: 1 + batch_ndim], -1) for leaf in leaves]
    joined = jnp.concatenate(rows, axis=-1)
    norms = jnp.linalg.norm(joined, axis=-1, keepdims=True)
    unit = joined / jnp.maximum(norms, jnp.finfo(joined.dtype).tiny)
    return jnp.mean(jnp.sum(unit[:1] * unit[1:], axis=-1), axis=0)
