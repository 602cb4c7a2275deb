"""Attacks on classifiers by projected gradients, in the Euclidean norm."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

SEED = 0  # of random starts, the same for every run
SHARE = 1.0 / 8.0  # of the budget that a step moves by


def attacked(
    logits: Callable[[Any, Array], Array],
    params: Any,
    pixels: Float[Array, "n *event"],
    labels: Int[Array, " n"],
    budget: float,
    num_steps: int,
) -> Bool[np.ndarray, " n"]:
    """Returns which images keep their label at all points of two attacks: from the
    image itself, and from a random start within the budget."""
    random = jax.random.normal(jax.random.key(SEED), pixels.shape, pixels.dtype)
    standing = np.ones(len(labels), bool)
    for start in (jnp.zeros_like(random), random):
        found = _survivors(logits, params, pixels, labels, budget, start, num_steps)
        standing &= np.asarray(found)
    return standing


@functools.partial(jax.jit, static_argnames=("logits", "num_steps"))
def _survivors(
    logits: Callable[[Any, Array], Array],
    params: Any,
    pixels: Array,
    labels: Array,
    budget: Any,
    start: Array,
    num_steps: int,
) -> Array:
    axes = tuple(range(1, pixels.ndim))

    def margin(moved: Array) -> Array:
        found = logits(params, pixels + moved)
        chosen = labels[:, None] == jnp.arange(found.shape[-1])
        others = jnp.max(jnp.where(chosen, -jnp.inf, found), axis=-1)
        return jnp.sum(jnp.where(chosen, found, 0.0), axis=-1) - others

    def length(moved: Array) -> Array:
        return jnp.sqrt(jnp.sum(moved**2, axis=axes, keepdims=True))

    def project(moved: Array) -> Array:
        return moved * jnp.minimum(1.0, budget / jnp.maximum(length(moved), 1e-12))

    def step(carry: tuple[Array, Array], _: None) -> tuple[Any, None]:
        moved, right = carry
        slope = jax.grad(lambda moved: jnp.sum(margin(moved)))(moved)
        towards = slope / jnp.maximum(length(slope), 1e-12)
        moved = project(moved - SHARE * budget * towards)
        return (moved, right & (margin(moved) > 0.0)), None

    first = project(start)
    unmoved = margin(jnp.zeros_like(first)) > 0.0
    carry = first, unmoved & (margin(first) > 0.0)
    (_, standing), _ = jax.lax.scan(step, carry, length=num_steps)
    return standing
