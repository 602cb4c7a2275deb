"""Hopfield energies of tokens against stored patterns, lowered by cross-attention."""

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

HIGHEST = jax.lax.Precision.HIGHEST


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
    r"""Cross-attention as descent on the energy of a modern Hopfield network.

    Each row y of Y, on its own, looks up the rows s_j of S. With b =
    ``inverse_temperature`` and an anchor B,

    .. math:: E(y) = -\tfrac1b \log \sum_j e^{b s_j . y} + \tfrac12 |y - B|^2 , \qquad
              y' = (1 - a) y + a ( S^T softmax(b S y) + B ) ,

    summed over the rows. With ``num_patterns`` the patterns S are learned, and x is B,
    None for 0. Without, they are the input x, keys and values at once, and B = 0:
    cross-attention.

    The step, a gradient step of length a, never raises E, for every S, b > 0 and a in
    (0, 1]. Log-sum-exp is convex, so E lies below a quadratic that is least at p + B,
    with :math:`p = S^T softmax(b S y)`, and
    :math:`E(y') \le E(y) - a (1 - \tfrac a2) |p + B - y|^2` (the concave-convex
    procedure).

    Args:
      dim: width d of tokens and patterns.
      num_patterns: m >= 1, rows of the learned S. None takes the patterns from x.
      inverse_temperature: b > 0, unitless for tokens without units. Attention's usual
        choice is 1 / sqrt(d).
      step_size: damping a in (0, 1]. 1 is the paper's step.

    Returns:
      A `Descent` with params `HopfieldParams`. With learned patterns x is the anchor,
      broadcastable to y, or None. An `Anchor` marks the tokens present. Without, x is
      the keys (*batch, m, dim), their leading axes broadcasting to y's. An `Anchor`
      with ``present`` (*batch, m) marks the keys present. Without any, E has no
      log-sum-exp and p = 0.

    Source: Yang, Huang, Wipf (2022), eqs. 6 and 7, after Ramsauer et al. (2021).
    Mended: eq. 6 sums over the d features where it must sum over the patterns, and eq.
    7 prints S for the outer S^T (the same only for a symmetric S). The anchor is ours.
    With it the step is attention plus an initial residual.

    Example:
      >>> import jax
      >>> layer = hopfield(3)
      >>> params: HopfieldParams = jax.jit(layer.init)(jax.random.key(0))
      >>> y, keys = jax.random.normal(jax.random.key(1), (2, 5, 3))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> stepped = step(params, y, keys)
      >>> bool(energy(params, stepped, keys) < energy(params, y, keys))
      True
    """
    is_cross = num_patterns is None

    def init(key: jax.Array) -> HopfieldParams:
        if num_patterns is None:
            return HopfieldParams(None)
        patterns = jax.random.normal(key, (num_patterns, dim))
        return HopfieldParams(patterns / math.sqrt(dim))  # of length about 1

    def lookup(
        params: HopfieldParams, tokens: Tokens
    ) -> tuple[Array, Array, Array, Array | None, Array | None]:
        """Returns keys, scores, the shift of the scores, keys seen, and rows with any.

        The last two are None where all keys are seen.
        """
        keys = tokens.x if params.S is None else params.S
        # The energy is a small difference of large numbers, so the products need full
        # precision.
        products = jnp.matmul(tokens.y, keys.mT, precision=HIGHEST)
        seen = some = None
        if is_cross and tokens.present is not None:
            some = jnp.any(tokens.present, axis=-1)[..., None]
            # If all keys are masked it sees all: no -inf enters the derivatives. The
            # result is not used.
            seen = (tokens.present | ~some)[..., None, :]
        # The maximum is subtracted before the scaling: compiled code may round a scaled
        # maximum differently from its product.
        top = jnp.max(products, axis=-1, keepdims=True, where=seen, initial=-jnp.inf)
        top = jax.lax.stop_gradient(jnp.where(jnp.isinf(top), 0.0, top))
        scores = inverse_temperature * (products - top)
        return keys, scores, top[..., 0], seen, some

    def anchor(tokens: Tokens) -> Array | None:
        return None if is_cross else tokens.x

    def energy(params: HopfieldParams, tokens: Tokens) -> Float[Array, "*batch"]:
        _, scores, top, seen, some = lookup(params, tokens)
        largest = jax.nn.logsumexp(scores, axis=-1, where=seen)
        largest = top + largest / inverse_temperature
        if some is not None:
            largest = jnp.where(some, largest, 0.0)
        B = anchor(tokens)
        distance = tokens.y if B is None else tokens.y - B
        values = 0.5 * jnp.sum(distance**2, axis=-1) - largest
        return sum_present(values, None if is_cross else tokens.present)

    def step(params: HopfieldParams, tokens: Tokens) -> Array:
        keys, scores, _, seen, some = lookup(params, tokens)
        weights = jax.nn.softmax(scores, where=seen)
        target = jnp.matmul(weights, keys, precision=HIGHEST)
        if some is not None:
            target = jnp.where(some[..., None], target, 0.0)
        B = anchor(tokens)
        if B is not None:
            target = target + B
        return tokens.y + step_size * (target - tokens.y)

    rows = InputRows("keys", dim, separate=True) if is_cross else None
    return on_tokens(init, energy, step, dim=dim, rows=rows)


def hopfield_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Learned patterns, and an anchor."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, num_patterns=3, inverse_temperature=2.0), y, x


def cross_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The same with the input for patterns, damped."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, step_size=0.7), y, x[..., :3, :]
