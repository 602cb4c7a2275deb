"""Weighted means whose weights are known by their logarithms, so that far tokens neither under- nor overflow."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["combine", "weighted_mean"]


def combine(pulls: list[tuple[Any, Array]]) -> tuple[Float[Array, "*batch n 1"], Float[Array, "*batch n d"]]:
    """Points and their log-weights as one: log of the summed weight (-inf for none), and the weighted mean (then 0).

    Args:
      pulls: pairs of a log-weight and of points (*batch, n, d); the first log-weight is (*batch, n, 1), the others
        broadcast to it.
    """
    template, _ = pulls[0]
    # Zeros of the template lend constants their sharding too.
    logs = jnp.stack([jnp.asarray(log_weight, template.dtype) + jnp.zeros_like(template) for log_weight, _ in pulls])
    total = jax.nn.logsumexp(logs, axis=0)
    shares = jnp.exp(logs - jnp.where(jnp.isneginf(total), 0.0, total))
    # Term by term: points are not copied into one array, and have no axis more than they had.
    return total, functools.reduce(jnp.add, [share * point for share, (_, point) in zip(shares, pulls, strict=True)])


def weighted_mean(
    logits: Float[Array, "*batch n m"], values: Float[Array, "*batch m d"]
) -> tuple[Float[Array, "*batch n 1"], Float[Array, "*batch n d"]]:
    """Log of each row's summed weight exp(logits) (-inf for none), and its mean of the values (then 0)."""
    largest = jnp.max(logits, axis=-1, keepdims=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    weights = jnp.exp(logits - largest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    nobody = total == 0.0
    total = jnp.where(nobody, 1.0, total)
    return jnp.where(nobody, -jnp.inf, largest + jnp.log(total)), (weights @ values) / total
