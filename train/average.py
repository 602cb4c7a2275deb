"""The moving average of parameters that validation, evaluation and export use when it is on."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

__all__ = ["first_average", "next_average"]


def first_average(params: Any, decay: float | None) -> Any:
    """The average before the first step, of which nothing is left after it; None without a decay."""
    return None if decay is None else jax.tree.map(jnp.copy, params)


def next_average(average: Any, params: Any, step: Int[Array, ""], decay: float | None) -> Any:
    r"""The average with the parameters :math:`p_t` after one more step, free of the bias of its start:

    .. math:: a_t = \frac{\sum_{i=1}^t d^{t-i} p_i}{\sum_{i=1}^t d^{t-i}}
        = a_{t-1} + \frac{1 - d}{1 - d^t} (p_t - a_{t-1}) .

    Args:
      average: a_(t-1).
      params: p_t.
      step: steps done before this one, t - 1.
      decay: d in (0, 1); None for no average.
    """
    if decay is None:
        return None
    # 1 - d^t loses all its digits for d close to 1.
    share = (1.0 - decay) / -jnp.expm1((step + 1) * math.log(decay))
    return jax.tree.map(lambda old, new: old + share.astype(old.dtype) * (new - old), average, params)
