"""The terms of a transformer layer's energy: attention, feed-forward layer and
penalty, with anchors."""

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
    """W_a (d, k) of the attention energy, W_f (d, d) of the feed-forward one, and a
    learnable anchor (1, d), if any.

    Example: see `transformer_parts`.
    """

    W_a: Float[Array, "d k"]
    W_f: Float[Array, "d d"]
    row: Float[Array, "1 d"] | None = None


class TransformerParts(NamedTuple):
    r"""The terms of a `transformer`'s energy, each a function of the layer's own
    ``(params, y, x)``.

    The layer's energy is the sum of the parts', and its step is
    ``phi.prox(feedforward.step(params, attention.step(params, y, x), x), step_size)``.

    Attributes:
      attention: f, the pairwise energy with its ridge, and its step.
      feedforward: g, the quadratic energy without phi, and its plain gradient step of
        length ``step_size``.
      phi, step_size: the penalty and its prox; a2.

    Example: see `transformer_parts`.
    """

    attention: Descent
    feedforward: Descent
    phi: Proximal
    step_size: float


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
    """The terms of ``transformer(dim, ...)``, for certificates and for the energy of
    each component.

    Args: as in `transformer`.

    Returns:
      `TransformerParts`, whose functions take the layer's `TransformerParams`.

    Source: Yang, Huang, Wipf (2022), Algorithm 2 and eq. 20; see `transformer`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import transformer
      >>> parts: TransformerParts = transformer_parts(4)
      >>> layer, y = transformer(4), jnp.eye(3, 4)
      >>> params: TransformerParams = layer.init(jax.random.key(0))
      >>> attended = jax.jit(parts.attention.step)(params, y, y)
      >>> by_parts = parts.phi.prox(
      ...     parts.feedforward.step(params, attended, y), parts.step_size
      ... )
      >>> bool(jnp.allclose(by_parts, jax.jit(layer.step)(params, y, y), atol=1e-6))
      True
    """
    options = {
        "rho": rho,
        "form": form,
        "ridge": ridge,
        "step_size": attention_step_size,
        "mask": mask,
    }
    pair = attention(**options, dim=dim, rank=rank)
    features = feedforward(dim, step_size=step_size, spectrum=spectrum)

    def init(key: jax.Array) -> TransformerParams:
        key_a, key_f, key_row = jax.random.split(key, 3)
        row = (
            jax.nn.initializers.xavier_normal()(key_row, (1, dim))
            if anchor == "row"
            else None
        )
        return TransformerParams(pair.init(key_a).W_a, features.init(key_f).W_f, row)

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
        layer: Descent, of: Callable[[TransformerParams, Tokens], tuple[Any, Tokens]]
    ) -> Descent:
        def on_own(function: Any) -> Any:
            return function and (lambda params, tokens: function(*of(params, tokens)))

        return on_tokens(init, *map(on_own, unchecked(layer)), dim=dim)

    penalty = resolve_proximal(phi, step_size)
    return TransformerParts(
        part(pair, of_pair), part(features, of_features), penalty, step_size
    )
