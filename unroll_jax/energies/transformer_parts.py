"""The terms of a transformer layer's energy: attention, feed-forward layer, penalty."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from unroll_jax.arguments import SHARE, SIZE, checked, one_of
from unroll_jax.descent import Descent
from unroll_jax.energies.attention.pairwise import AttentionParams, attention
from unroll_jax.energies.attention.rho import RhoLike
from unroll_jax.energies.feedforward import FeedForwardParams, feedforward
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.energies.tokens import Tokens, on_tokens, unchecked, zero_masked

__all__ = ["TransformerParams", "TransformerParts", "transformer_parts"]


class TransformerParams(NamedTuple):
    """Parameters of `transformer`.

    Attributes:
      W_a: (d, k), of the attention energy.
      W_f: (d, d), of the feed-forward energy.
      row: (1, d), a learnable anchor, or None.

    Example: see `transformer_parts`.
    """

    W_a: Float[Array, "d k"]
    W_f: Float[Array, "d d"]
    row: Float[Array, "1 d"] | None = None


class TransformerParts(NamedTuple):
    r"""The terms of the energy of `transformer`, as functions of ``(params, y, x)``.

    The params are those of the layer. Its energy is the sum of the energies of the
    parts. Its step is
    ``phi.prox(feedforward.step(params, attention.step(params, y, x), x), step_size)``.

    Attributes:
      attention: f, the pairwise energy with its ridge, and its step.
      feedforward: g, the quadratic energy without phi, and its plain gradient step of
        length ``step_size``.
      phi: the penalty and its prox.
      step_size: a2.
      dim: width of the tokens.

    Example: see `transformer_parts`.
    """

    attention: Descent
    feedforward: Descent
    phi: Proximal
    step_size: float
    dim: int


@checked(attention_step_size=SHARE, dim=SIZE, anchor=one_of(("input", "row")))
def transformer_parts(
    dim: int,
    *,
    rank: int | None = None,
    rho: RhoLike = "softmax",
    phi: str | Proximal = "relu",
    form: str = "softmax",
    ridge: float = 0.0,
    attention_step_size: float = 1.0,
    step_size: float = 0.5,
    mask: Any = None,
    anchor: str = "input",
    spectrum: tuple[float, float] | None = None,
) -> TransformerParts:
    """Returns the terms of ``transformer(dim, ...)``, for certificates and diagnostics.

    Args: as in `transformer`.

    Returns:
      `TransformerParts`, whose functions take the layer's `TransformerParams`.

    Source: Yang, Huang, Wipf (2022), Algorithm 2 and eq. 20, see `transformer`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import transformer
      >>> parts: TransformerParts = transformer_parts(4)
      >>> layer = transformer(4)
      >>> params: TransformerParams = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jnp.eye(3, 4)
      >>> attended = jax.jit(parts.attention.step)(params, y, y)
      >>> mixed = jax.jit(parts.feedforward.step)(params, attended, y)
      >>> by_parts = parts.phi.prox(mixed, parts.step_size)
      >>> whole = jax.jit(layer.step)(params, y, y)
      >>> bool(jnp.allclose(by_parts, whole, atol=1e-6))
      True
    """
    pair = attention(
        rho=rho,
        form=form,
        ridge=ridge,
        step_size=attention_step_size,
        mask=mask,
        dim=dim,
        rank=rank,
    )
    features = feedforward(dim, step_size=step_size, spectrum=spectrum)

    def init(key: jax.Array) -> TransformerParams:
        key_a, key_f, key_row = jax.random.split(key, 3)
        row = None
        if anchor == "row":
            row = jax.nn.initializers.xavier_normal()(key_row, (1, dim))
        W_a = pair.init(key_a).W_a
        W_f = features.init(key_f).W_f
        return TransformerParams(W_a, W_f, row)

    def of_pair(
        params: TransformerParams, tokens: Tokens
    ) -> tuple[AttentionParams, Tokens]:
        return AttentionParams(params.W_a), tokens

    def of_features(
        params: TransformerParams, tokens: Tokens
    ) -> tuple[FeedForwardParams, Tokens]:
        if anchor == "row":
            tokens = tokens._replace(x=zero_masked(params.row, tokens.present))
        return FeedForwardParams(params.W_f), tokens

    def part(
        layer: Descent,
        arguments: Callable[[TransformerParams, Tokens], tuple[Any, Tokens]],
    ) -> Descent:
        """Returns a layer as a function of the whole layer's params."""

        def with_arguments(function: Any) -> Any:
            if function is None:
                return None
            return lambda params, tokens: function(*arguments(params, tokens))

        return on_tokens(init, *map(with_arguments, unchecked(layer)), dim=dim)

    penalty = resolve_proximal(phi, step_size)
    return TransformerParts(
        part(pair, of_pair), part(features, of_features), penalty, step_size, dim
    )
