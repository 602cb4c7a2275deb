"""Hopfield energies of tokens against stored patterns, and cross-attention as the
step that lowers them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, SIZE, checked
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.tokens import InputRows, Tokens, on_tokens, sum_present

__all__ = ["HopfieldParams", "cross_attention_example", "hopfield", "hopfield_example"]


class HopfieldParams(NamedTuple):
    """S (num_patterns, dim), or None when the patterns come from x.

    Example: see `hopfield`.
    """

    S: Float[Array, "m d"] | None


@checked(dim=SIZE, num_patterns=SIZE, inverse_temperature=POSITIVE, step_size=SHARE)
def hopfield(
    dim: int,
    *,
    num_patterns: int | None = None,
    inverse_temperature: float = 1.0,
    step_size: float = 1.0,
) -> Descent:
    r"""Cross-attention as a descent step on the energy of a modern Hopfield network.

    Each row y of Y, on its own, looks up the rows s_j of S; with b =
    ``inverse_temperature`` and an anchor B,

    .. math:: E(y) = -\tfrac1b \log \sum_j e^{b s_j . y} + \tfrac12 |y - B|^2 , \qquad
              y' = (1 - a) y + a ( S^T softmax(b S y) + B ) ,

    summed over the rows. The patterns S are learned (``num_patterns`` of them; then x
    is B, None for 0), or they are the input x itself, keys and values at once
    (``num_patterns=None``; then B = 0): cross-attention.

    The step, a gradient step of length a, never raises E, for every S, b > 0 and a in
    (0, 1]. Log-sum-exp is convex, so E lies below a quadratic that is least at p + B,
    with :math:`p = S^T softmax(b S y)`, and
    :math:`E(y') \le E(y) - a (1 - \tfrac a2) |p + B - y|^2` (the concave-convex
    procedure).

    Args:
      dim: width d of tokens and patterns.
      num_patterns: m >= 1, rows of the learned S; None takes the patterns from x.
      inverse_temperature: b > 0, unitless for tokens without units; attention's usual
        choice is 1 / sqrt(d).
      step_size: damping a in (0, 1]; 1 is the paper's step.

    Returns:
      A `Descent` with params `HopfieldParams`. With learned patterns x is the anchor,
      broadcastable to y, or None; an `Anchor` marks the tokens present. Without, x is
      the keys (*batch, m, dim), their leading axes broadcasting to y's; an `Anchor`
      with ``present`` (*batch, m) marks the keys present. Without any, E has no
      log-sum-exp and p = 0.

    Source: Yang, Huang, Wipf (2022), eqs. 6 and 7, after Ramsauer et al. (2021).
    Mended: eq. 6 sums over the d features where it must sum over the patterns, and eq.
    7 prints S for the outer S^T (the same only for a symmetric S). The anchor is ours;
    with it the step is attention plus an initial residual.

    Example:
      >>> import jax
      >>> layer = hopfield(3)
      >>> params: HopfieldParams = layer.init(jax.random.key(0))
      >>> y, keys = jax.random.normal(jax.random.key(1), (2, 5, 3))
      >>> bool(
      ...     layer.energy(params, layer.step(params, y, keys), keys)
      ...     < layer.energy(params, y, keys)
      ... )
      True
    """
    is_cross = num_patterns is None

    def init(key: jax.Array) -> HopfieldParams:
        if num_patterns is None:
            return HopfieldParams(None)
        # of length about 1
        return HopfieldParams(
            jax.random.normal(key, (num_patterns, dim)) / math.sqrt(dim)
        )

    def lookup(
        params: HopfieldParams, tokens: Tokens
    ) -> tuple[Array, Array, Array, Array | None, Array | None]:
        """The keys, their scores and the shift taken off them, the keys that count,
        and whether any does, or None."""
        keys = tokens.x if params.S is None else params.S
        # The energy is a small difference of large numbers, so accelerators must not
        # shorten the products.
        products = jnp.matmul(
            tokens.y, jnp.swapaxes(keys, -1, -2), precision=jax.lax.Precision.HIGHEST
        )
        seen, some = None, None
        if is_cross and tokens.present is not None:
            some = jnp.any(tokens.present, axis=-1)[..., None]
            # All keys where all are masked: no -inf then enters the derivatives, and
            # the result is not used.
            seen = (tokens.present | ~some)[..., None, :]
        # Taken off before they are scaled: compiled code may round a scaled maximum
        # otherwise than its product.
        top = jax.lax.stop_gradient(
            jnp.max(products, axis=-1, keepdims=True, where=seen, initial=-jnp.inf)
        )
        top = jnp.where(jnp.isinf(top), 0.0, top)
        return keys, inverse_temperature * (products - top), top[..., 0], seen, some

    def energy(params: HopfieldParams, tokens: Tokens) -> Float[Array, "*batch"]:
        _, scores, top, seen, some = lookup(params, tokens)
        largest = (
            top + jax.nn.logsumexp(scores, axis=-1, where=seen) / inverse_temperature
        )
        largest = largest if some is None else jnp.where(some, largest, 0.0)
        distance = tokens.y if is_cross or tokens.x is None else tokens.y - tokens.x
        return sum_present(
            0.5 * jnp.sum(distance**2, axis=-1) - largest,
            None if is_cross else tokens.present,
        )

    def step(params: HopfieldParams, tokens: Tokens) -> Array:
        keys, scores, _, seen, some = lookup(params, tokens)
        target = jnp.matmul(
            jax.nn.softmax(scores, where=seen),
            keys,
            precision=jax.lax.Precision.HIGHEST,
        )
        target = target if some is None else jnp.where(some[..., None], target, 0.0)
        target = target if is_cross or tokens.x is None else target + tokens.x
        return tokens.y + step_size * (target - tokens.y)

    return on_tokens(
        init,
        energy,
        step,
        dim=dim,
        rows=InputRows("keys", dim, separate=True) if is_cross else None,
    )


def hopfield_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Learned patterns, and an anchor."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, num_patterns=3, inverse_temperature=2.0), y, x


def cross_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The same with the input for patterns, damped."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, step_size=0.7), y, x[..., :3, :]
