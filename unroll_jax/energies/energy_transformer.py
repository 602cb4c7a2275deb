"""The Energy Transformer: attention and memories as one energy of normalised tokens."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, at_least, checked
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.tokens import Tokens, on_tokens, sum_present
from unroll_jax.numerics import safe_sqrt, unit_powers
from unroll_jax.spectral import norm

__all__ = [
    "EnergyTransformerParams",
    "energy_transformer",
    "energy_transformer_example",
]


class EnergyTransformerParams(NamedTuple):
    """Parameters of `energy_transformer`.

    Attributes:
      W_Q, W_K: (heads, k, dim), queries and keys.
      memories: (m, dim).
      scale, shift: () and (dim,), of the layer norm.

    Example:
      >>> import jax
      >>> layer = energy_transformer(4, num_heads=2, head_dim=3, num_memories=8)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> params.W_Q.shape, params.memories.shape, params.scale.shape
      ((2, 3, 4), (8, 4), ())
    """

    W_Q: Float[Array, "h k d"]
    W_K: Float[Array, "h k d"]
    memories: Float[Array, "m d"]
    scale: Float[Array, ""]
    shift: Float[Array, " d"]


@checked(
    dim=at_least(2),
    num_heads=SIZE,
    head_dim=SIZE,
    num_memories=SIZE,
    step_size=POSITIVE,
    epsilon=POSITIVE,
)
def energy_transformer(
    dim: int,
    *,
    num_heads: int,
    head_dim: int,
    num_memories: int,
    step_size: float = 0.1,
    guaranteed: bool = True,
    epsilon: float = 1e-5,
) -> Descent:
    r"""Energy Transformer block: tokens y move down an energy of their layer norm g.

    With :math:`g = \gamma (y - mean) / s + \delta`, :math:`s^2 = var(y) + \epsilon`,
    and :math:`\beta = 1 / \sqrt k`,

    .. math:: E(Y) = - \tfrac1\beta \sum_h \sum_C \log \sum_{B \ne C}
                     \exp( \beta (W^K_h g_B) . (W^Q_h g_C) )
                     - \tfrac12 \sum_B |relu(\Xi g_B)|^2 ,
              \qquad Y' = Y - a \nabla_g E .

    The paper proves descent in continuous time: g is the gradient of the convex
    Lagrangian :math:`L(y) = d \gamma s + \delta . y`, so
    :math:`dE/dt = - \nabla_g E^T \, (\partial^2 L) \, \nabla_g E \le 0`. A step of
    fixed length a = ``step_size`` can raise E (``guaranteed=False``). tests/energies
    hold an example. With ``guaranteed=True`` each example takes the smaller of
    ``step_size`` and

    .. math:: a = \min_C \frac{s_C}{\gamma K + \delta_C} , \qquad
              K = n \sum_h |W^K_h|_2 |W^Q_h|_2 , \qquad
              \delta_C = |(\nabla_g E)_C| / \sqrt d ,

    which never raises E if :math:`\gamma > 0`. *Proof.* Log-sum-exp and squared ReLU
    are convex. E thus curves upwards in g only by the products of keys and queries, by
    at most K. Along the segment, L's Hessian is at most
    :math:`\gamma / \min s =: \lambda`, and s changes by at most :math:`a \delta_C`. So
    :math:`|g' - g|^2 \le \lambda (g' - g) . (y' - y)`, and, as
    :math:`a \le 1 / (K \lambda)`,
    :math:`E' - E \le (- 1 / a + K \lambda / 2) (g' - g) . (y' - y) \le 0`.

    Args:
      dim, num_heads, head_dim, num_memories: width d >= 2 of tokens, heads h, width k
        of queries, rows m of memory.
      step_size: a > 0 in units of tokens over energy. The paper's images use 0.1.
      guaranteed: shortens a step to the bound above.
      epsilon: added to the variance.

    Returns:
      A `Descent` with params `EnergyTransformerParams`. ``x`` only marks absent tokens
      (`Anchor`). A single token has no attention energy.

    Source: Hoover, Liang, Pham, Panda, Strobelt, Chau, Zaki, Krotov (2023), *Energy
    Transformer*, eqs. 1 to 8. The discrete step's bound is ours. In the public code
    tokens attend to themselves, here not, as in the paper.

    Example:
      >>> import jax
      >>> layer = energy_transformer(4, num_heads=2, head_dim=3, num_memories=8)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 4))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """

    def init(key: jax.Array) -> EnergyTransformerParams:
        key_q, key_k, key_m = jax.random.split(key, 3)
        heads = num_heads, head_dim, dim
        scale = 1.0 / math.sqrt(dim)
        return EnergyTransformerParams(
            scale * jax.random.normal(key_q, heads),
            scale * jax.random.normal(key_k, heads),
            scale * jax.random.normal(key_m, (num_memories, dim)),
            jnp.ones(()),
            jnp.zeros((dim,)),
        )

    def energy(
        params: EnergyTransformerParams, tokens: Tokens
    ) -> Float[Array, "*batch"]:
        normed, _ = _layer_norm(params, tokens.y, epsilon)
        return _energy(params, normed, tokens.present)

    def step(params: EnergyTransformerParams, tokens: Tokens) -> Array:
        normed, deviation = _layer_norm(params, tokens.y, epsilon)

        def total(g: Array) -> Array:
            return jnp.sum(_energy(params, g, tokens.present))

        gradient = jax.grad(total)(normed)
        if not guaranteed:
            return tokens.y - step_size * gradient

        present = tokens.present
        count: Any = tokens.y.shape[-2]
        if present is not None:
            count = jnp.sum(present, axis=-1, keepdims=True, dtype=tokens.y.dtype)
        # The bound is s_C / (gamma K + delta_C). The divisor is 0 if no token is
        # present, or nothing moves: the inner `where` keeps the derivative finite.
        delta = norm(gradient, gradient.ndim - 1) / math.sqrt(dim)
        divisor = params.scale * _curvature(params, count) + delta
        free = divisor == 0.0
        bound = jnp.where(free, jnp.inf, deviation / jnp.where(free, 1.0, divisor))
        if present is not None:
            bound = jnp.where(present, bound, step_size)
        length = jnp.minimum(jnp.min(bound, axis=-1), step_size)
        return tokens.y - length[..., None, None] * gradient

    return on_tokens(init, energy, step, dim=dim)


def energy_transformer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two heads and a memory, with the guaranteed step."""
    layer = energy_transformer(
        DIM, num_heads=2, head_dim=3, num_memories=6, step_size=1e3, epsilon=1e-12
    )
    return layer, normal(key, 1, batch)[0], None


def _layer_norm(
    params: EnergyTransformerParams, y: Array, epsilon: float
) -> tuple[Array, Array]:
    """Returns g (*batch, n, d) and s (*batch, n)."""
    # The larger of a token and of the smoothing is brought near 1.
    down, up = unit_powers(y, -1, math.sqrt(epsilon))
    centred = y * down - jnp.mean(y * down, axis=-1, keepdims=True)
    smoothing = math.sqrt(epsilon) * down
    square = jnp.mean(centred**2, axis=-1, keepdims=True) + smoothing**2
    # 0 for large tokens of equal entries, where the root has no derivative.
    none = square == 0.0
    least = jnp.maximum(smoothing, jnp.finfo(y.dtype).tiny)
    deviation = jnp.where(none, least, jnp.sqrt(jnp.where(none, 1.0, square)))
    return params.scale * centred / deviation + params.shift, (deviation * up)[..., 0]


def _energy(
    params: EnergyTransformerParams, g: Array, present
) -> Float[Array, "*batch"]:
    beta = 1.0 / math.sqrt(params.W_Q.shape[1])
    queries = jnp.einsum("...nd,hkd->...hnk", g, params.W_Q)
    keys = jnp.einsum("...nd,hkd->...hnk", g, params.W_K)
    scores = beta * jnp.einsum("...hck,...hbk->...hcb", queries, keys)
    seen = ~jnp.eye(g.shape[-2], dtype=bool)
    if present is not None:
        seen = seen & present[..., None, None, :]
    some = jnp.any(seen, axis=-1)  # a single token sees no other
    # The inner `where` keeps -inf out of derivatives where there is nothing to sum.
    lookup = jax.nn.logsumexp(scores, axis=-1, where=seen | ~some[..., None])
    overlaps = jnp.einsum("...nd,md->...nm", g, params.memories)
    memory = 0.5 * jnp.sum(jax.nn.relu(overlaps) ** 2, axis=-1)
    value = jnp.sum(jnp.where(some, lookup, 0.0), axis=-2) / beta + memory
    return -sum_present(value, present)


def _curvature(params: EnergyTransformerParams, count: int | Array) -> Array:
    """Returns K, a bound of E's upward curvature in g, for ``count`` tokens."""

    def norms(weight: Array) -> Array:
        return safe_sqrt(norm(weight @ weight.mT, 1))

    return count * jnp.sum(norms(params.W_Q) * norms(params.W_K))
