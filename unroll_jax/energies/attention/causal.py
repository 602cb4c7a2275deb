"""Attention to predecessors only, with its energy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.descent import Descent
from unroll_jax.energies.attention.pairs import by_rows
from unroll_jax.energies.attention.pairwise import AttentionParams, attention
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho
from unroll_jax.energies.attention.sums import combine, rectangle_energy, rectangle_sums
from unroll_jax.energies.examples import Example, normal
from unroll_jax.energies.tokens import Tokens, on_tokens, project

__all__ = ["causal_attention", "causal_attention_example"]


def causal_attention(
    *,
    rho: RhoLike = "softmax",
    form: str = "jacobi",
    step_size: float = 1.0,
    dim: int | None = None,
    rank: int | None = None,
    block: int | None = None,
) -> Descent:
    r"""Attention of each token to its predecessors, as descent on its energy.

    With a context C = x and N(u) the tokens v < u,

    .. math:: E(Y; C) = \sum_u \sum_{v \in N(u)}
                  \rho(\tfrac12 |W_a^T (y_u - c_v)|^2) , \qquad
              y_u' = (1 - a) y_u
                  + a \frac{\sum_{v \in N(u)} \gamma_{uv} c_v + s y_u}
                           {\sum_{v \in N(u)} \gamma_{uv} + s}

    with :math:`\gamma_{uv} = \rho'(\tfrac12 |W_a^T (y_u - c_v)|^2)`, s = 0 for
    ``form="jacobi"`` and s = rho'(0) for ``form="softmax"``. A token that attends to no
    token, with s = 0, stays. **x = None takes C = Y**, the state itself: a decoder's
    layer, in softmax form causal attention,
    :math:`softmax_{v \le u}( z_u . z_v - \tfrac12 |z_v|^2 ) Y`.

    *Descent.* With C held constant the step never raises E( . ; C), nor the term of any
    token, for rho concave and nondecreasing and a in (0, 1]. Each term depends on one
    token only, and the step with s = 0, a = 1 minimises its tangent majoriser. So a
    layer with C = Y lowers E( . ; Y), and layers on one context x lower E( . ; x).

    *Causality.* A token's step and its derivatives do not depend on later tokens, in
    any digit, nor on those that are NaN (tokens up to 1e18 in float32). Points are
    shifted by the first token present: distances err by the dtype's epsilon times the
    squared distances to it.

    *The price.* E(Y; Y) is the pair energy of `attention`, each pair once. A layer with
    C = Y may raise it: a step may raise the terms of its successors. With positive
    weights its fixed points are tokens that are all alike to W_a.

    Args:
      rho, form, step_size, dim, rank: as in `attention`.
      block: number of tokens that look back at a time. Memory is O(n block), in value
        and derivatives, and the backward pass computes them again. None takes all at
        once, O(n^2).

    Returns:
      A `Descent` with params `AttentionParams`. ``x`` is C, broadcastable to y, or None
      for y, or an `Anchor`.

    Source: ours. Yang, Huang, Wipf (2022) have only undirected graphs.

    Example:
      >>> import jax
      >>> layer = causal_attention(form="softmax")
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 3))
      >>> stepped = jax.jit(layer.step)(params, y, None)
      >>> energy = jax.jit(layer.energy)
      >>> bool(energy(params, stepped, y) < energy(params, y, y))
      True
    """
    # Checks the options, and draws W_a.
    undirected = attention(
        rho=rho, form=form, step_size=step_size, dim=dim, rank=rank, block=block
    )
    chosen = resolve_rho(rho)

    def energy(params: AttentionParams, tokens: Tokens) -> Float[Array, "*batch"]:
        def sums(
            rows: Array, columns: Array, values: Array, neighbours: Array
        ) -> tuple[Array]:
            return (rectangle_energy(chosen, rows, columns, neighbours),)

        (energies,) = by_predecessors(sums, params, tokens)
        return jnp.sum(energies, axis=(-2, -1))

    def step(params: AttentionParams, tokens: Tokens) -> Array:
        def sums(*rectangle: Array) -> tuple[Array, Array]:
            return rectangle_sums(chosen, *rectangle, bounded=form == "softmax")[1:]

        log_weight, mean = by_predecessors(sums, params, tokens)
        if form == "softmax":
            assert chosen.log_slope is not None
            itself = chosen.log_slope(jnp.zeros((), tokens.y.dtype))
            log_weight, mean = combine([(log_weight, mean), (itself, tokens.y)])
        # A token that attends to none stays.
        moved = jnp.where(jnp.isneginf(log_weight), tokens.y, mean)
        return tokens.y + step_size * (moved - tokens.y)

    def by_predecessors(
        sums: Callable[..., tuple[Array, ...]], params: AttentionParams, tokens: Tokens
    ) -> list[Array]:
        """Returns ``sums`` of every token against its predecessors in the context."""
        y = tokens.y
        context = y if tokens.x is None else jnp.broadcast_to(tokens.x, y.shape)
        # A weight of 0 times NaN is NaN. Tokens that are not finite enter as 0, and the
        # results that they reach become NaN at the end.
        broken_row = ~jnp.all(jnp.isfinite(y), axis=-1, keepdims=True)
        broken = ~jnp.all(jnp.isfinite(context), axis=-1, keepdims=True)
        finite = jnp.where(broken, 0.0, context)

        shift = _first_present(finite, tokens.present)
        rows = project(jnp.where(broken_row, 0.0, y) - shift, params.W_a)
        columns = project(finite - shift, params.W_a)

        def precedes(u: Array, v: Array) -> Array:
            return u > v

        size = block or y.shape[-2]
        results = by_rows(sums, rows, columns, finite, precedes, tokens.present, size)
        broken_before = jnp.cumsum(broken, axis=-2) > broken.astype(int)
        is_nan = broken_before | broken_row
        return [jnp.where(is_nan, jnp.nan, part) for part in results]

    return on_tokens(undirected.init, energy, step, dim=dim)


def causal_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Causal softmax attention. x is the context that its energy holds."""
    y, x = normal(key, 2, batch)
    return causal_attention(form="softmax"), y, x


def _first_present(context: Array, present: Array | None) -> Float[Array, "*batch 1 d"]:
    """Returns the first token present, a constant for autodiff.

    Distances do not change with a common shift, and keep more digits. The mean of the
    context would depend on later tokens.
    """
    if present is None:
        first = context[..., :1, :]
    else:
        place = jnp.argmax(present, axis=-1)[..., None, None]
        first = jnp.take_along_axis(context, place, axis=-2)
    return jax.lax.stop_gradient(first)
