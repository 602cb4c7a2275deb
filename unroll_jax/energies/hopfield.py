"""Hopfield energies of tokens against stored patterns, and cross-attention as the step that lowers them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, in_interval
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.descent import Anchor, Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.inputs import check_input, guarded
from unroll_jax.energies.tokens import as_anchor, blank_absent, check_tokens, sum_present
from unroll_jax.numerics import compute_dtype

__all__ = ["HopfieldParams", "cross_attention_example", "hopfield", "hopfield_example"]


class HopfieldParams(NamedTuple):
    """S (num_patterns, dim), or None when the patterns come from x.

    Example:
      >>> import jax
      >>> hopfield(3, num_patterns=5).init(jax.random.key(0)).S.shape, hopfield(3).init(jax.random.key(0)).S
      ((5, 3), None)
    """

    S: Float[Array, "m d"] | None


@checked(dim=at_least(1), num_patterns=at_least(1), inverse_temperature=POSITIVE, step_size=in_interval("(0, 1]"))
def hopfield(
    dim: int, *, num_patterns: int | None = None, inverse_temperature: float = 1.0, step_size: float = 1.0
) -> Descent:
    r"""Cross-attention as a descent step on the energy of a modern Hopfield network.

    Each row y of Y, on its own, looks up the rows s_j of S; with b = ``inverse_temperature`` and an anchor B,

    .. math:: E(y) = -\tfrac1b \log \sum_j e^{b s_j . y} + \tfrac12 |y - B|^2 , \qquad
              y' = (1 - a) y + a ( S^T softmax(b S y) + B ) ,

    summed over the rows. The patterns S are learned (``num_patterns`` of them; then x is B, None for 0), or they are
    the input x itself, keys and values at once (``num_patterns=None``; then B = 0): cross-attention.

    The step never raises E, for every S, b > 0 and a in (0, 1]. The log-sum-exp is convex, so E lies below
    :math:`Q(z) = E(y) - p . (z - y) + \tfrac12 |z - B|^2 - \tfrac12 |y - B|^2`, with :math:`p = S^T softmax(b S y)`,
    and touches it at z = y (the concave-convex procedure). Q is least at z = p + B, and along the way there

    .. math:: E(y') \le Q(y') = E(y) - a (1 - \tfrac a2) |p + B - y|^2 ,

    with equality only where :math:`\nabla E(y) = y - B - p` is zero: the step is a gradient step of length a.

    Args:
      dim: width d of tokens and patterns.
      num_patterns: m >= 1, rows of the learned S; None takes the patterns from x.
      inverse_temperature: b > 0, unitless for tokens without units; attention's usual choice is 1 / sqrt(d).
      step_size: damping a in (0, 1]; 1 is the paper's step.

    Returns:
      A `Descent` with params `HopfieldParams`. With learned patterns x is the anchor, broadcastable to y, or None; an
      `Anchor` marks the tokens present. Without, x is the keys (*batch, m, dim), their leading axes broadcasting to
      y's; an `Anchor` with ``present`` (*batch, m) marks the keys present. Where none is, E has no log-sum-exp and
      p = 0.

    Raises:
      ValueError: if an option is out of range; while tracing, if y and x do not fit.
      TypeError: while tracing, if y or x is not floating, or ``x.present`` not boolean.

    Source: Yang, Huang, Wipf (2022), eqs. 6 and 7, after Ramsauer et al. (2021). Mended: eq. 6 sums over the d features
    where it must sum over the patterns, and eq. 7 prints S for the outer S^T (the same only for a symmetric S). The
    anchor is ours; with it the step is attention plus an initial residual.

    Example:
      >>> import jax
      >>> layer = hopfield(3)
      >>> params, (y, keys) = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2, 5, 3))
      >>> bool(layer.energy(params, layer.step(params, y, keys), keys) < layer.energy(params, y, keys))
      True
    """

    def init(key: jax.Array) -> HopfieldParams:
        if num_patterns is None:
            return HopfieldParams(None)
        return HopfieldParams(jax.random.normal(key, (num_patterns, dim)) / math.sqrt(dim))  # of length about 1

    def energy(params: HopfieldParams, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        query = _prepare(params, y, x)
        lookup = jax.nn.logsumexp(query.scores, axis=-1, where=query.seen) / inverse_temperature
        lookup = lookup if query.some is None else jnp.where(query.some, lookup, 0.0)
        distance = query.tokens if query.anchor is None else query.tokens - query.anchor
        return sum_present(0.5 * jnp.sum(distance**2, axis=-1) - lookup, query.present)

    def step(params: HopfieldParams, y: Array, x: Any = None) -> Array:
        query = _prepare(params, y, x)
        shares = jax.nn.softmax(query.scores, axis=-1, where=query.seen)
        target = jnp.matmul(shares, query.keys, precision=jax.lax.Precision.HIGHEST)
        if query.some is not None:
            target = jnp.where(query.some[..., None], target, 0.0)
        if query.anchor is not None:
            target = target + query.anchor
        stepped = (query.tokens + step_size * (target - query.tokens)).astype(y.dtype)
        return stepped if query.present is None else jnp.where(query.present[..., None], stepped, y)

    def _prepare(params: HopfieldParams, y: Array, x: Any) -> _Query:
        x, present = as_anchor(x)
        if params.S is not None:
            check_tokens(y, Anchor(x, present), dim=dim)
            dtype = compute_dtype(y, params.S)
            tokens, keys = blank_absent(y, present).astype(dtype), params.S.astype(dtype)
            anchor = None if x is None else blank_absent(x, present).astype(dtype)
            return _Query(tokens, keys, inverse_temperature * _products(tokens, keys), anchor=anchor, present=present)
        check_tokens(y, dim=dim)
        _check_keys(y, x, present, dim)
        tokens = y.astype(compute_dtype(y))
        keys = blank_absent(x, present).astype(tokens.dtype)
        scores = inverse_temperature * _products(tokens, keys)
        if present is None:
            return _Query(tokens, keys, scores)
        some = jnp.any(present, axis=-1)[..., None]
        # All keys where all are masked: no -inf then enters the derivatives, and the result is not used.
        return _Query(tokens, keys, scores, seen=(present | ~some)[..., None, :], some=some)

    return guarded(Descent(init=init, energy=energy, step=step), HopfieldParams)


class _Query(NamedTuple):
    """Tokens against keys, in the dtype of the computation."""

    tokens: Float[Array, "*batch n d"]
    keys: Float[Array, "*keys m d"]
    scores: Float[Array, "*batch n m"]
    seen: Bool[Array, "*keys 1 m"] | None = None  # keys that count
    some: Bool[Array, "*keys 1"] | None = None  # whether any does
    anchor: Float[Array, "..."] | None = None
    present: Bool[Array, "..."] | None = None  # tokens that are there


def hopfield_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Learned patterns, and an anchor."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, num_patterns=3, inverse_temperature=2.0), y, x


def cross_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The same with the input for patterns, damped."""
    y, x = normal(key, 2, batch)
    return hopfield(DIM, step_size=0.7), y, x[..., :3, :]


def _products(tokens: Float[Array, "*batch n d"], keys: Float[Array, "*#batch m d"]) -> Float[Array, "*batch n m"]:
    # The energy is a small difference of large numbers, so accelerators must not shorten the products.
    return jnp.matmul(tokens, jnp.swapaxes(keys, -1, -2), precision=jax.lax.Precision.HIGHEST)


def _check_keys(y: Array, keys: Any, present: Any, dim: int) -> None:
    shape = () if keys is None else jnp.shape(keys)
    check_dtype("x.present", present, jnp.bool_)
    check_shape("x.present", present, shape[:-1], ", one entry a key")
    count = max(shape[-2], 1) if len(shape) >= 2 else 1
    check_input(keys, (*y.shape[:-2], count), width=dim, what="keys", present=present)
