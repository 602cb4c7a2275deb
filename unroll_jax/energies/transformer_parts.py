"""The terms of a transformer layer's energy: attention, feed-forward layer, penalty and layer norm, with anchors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from unroll_jax.arguments import SHARE, SIZE, checked, require
from unroll_jax.arrays import broadcasts
from unroll_jax.descent import Descent
from unroll_jax.energies.attention.pairwise import attention
from unroll_jax.energies.feedforward import FeedForwardParams, feedforward
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.energies.tokens import Tokens, blank_absent, on_tokens, plain

__all__ = ["TransformerParams", "TransformerParts", "transformer_parts"]

AnchorRule = Callable[[Any], Any]  # of the input x


class TransformerParams(NamedTuple):
    """W_a (d, k) of the attention energy, W_f (d, d) of the feed-forward one, and learnable anchors (1, d), if any.

    Example: see `transformer_parts`.
    """

    W_a: Float[Array, "*heads d k"]
    W_f: Float[Array, "d d"]
    row: Float[Array, "1 d"] | None = None
    attention_row: Float[Array, "1 d"] | None = None


class TransformerParts(NamedTuple):
    r"""The terms of a `transformer`'s energy, each a function of the layer's own ``(params, y, x)``.

    The layer's energy is the sum of the parts', and its step is
    ``phi.prox(feedforward.step(params, attention.step(params, N, x), x), step_size)`` with
    ``N = layer_norm.step(params, y, x)``, or y itself where layer_norm is None.

    Attributes:
      attention: f, the pairwise energy with its ridge, and its step.
      feedforward: g, the quadratic energy without phi, and its plain gradient step of length ``step_size``.
      phi, step_size: the penalty and its prox; a2.
      layer_norm: the energy that layer normalisation lowers, and its step; or None.

    Example: see `transformer_parts`.
    """

    attention: Descent
    feedforward: Descent
    phi: Proximal
    step_size: float
    layer_norm: Descent | None = None


@checked(attention_step_size=SHARE, dim=SIZE)
def transformer_parts(
    dim: int,
    *,
    rank: int | None = None,
    phi: str | Proximal = "relu",
    form: str = "softmax",
    ridge: float = 0.0,
    attention_step_size: float = 1.0,
    step_size: float = 0.5,
    anchor: str | AnchorRule = "input",
    attention_anchor: str | AnchorRule = "input",
    norm_radius: float | None = None,
    spectrum: tuple[float, float] | None = None,
    attention_factory: Callable[..., Descent] = attention,
    **attention_options: Any,
) -> TransformerParts:
    """The terms of ``transformer(dim, ...)``, for certificates and for the energy of each component.

    Args:
      **attention_options: of the attention half, ``rho`` and ``mask`` too. All other arguments are as in `transformer`.

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
      >>> by_parts = parts.phi.prox(parts.feedforward.step(params, attended, y), parts.step_size)
      >>> bool(jnp.allclose(by_parts, jax.jit(layer.step)(params, y, y), atol=1e-6))
      True
    """
    if ridge == 0.0 and attention_anchor != "input":
        raise ValueError(f"attention_anchor must be 'input' while ridge is 0, got {attention_anchor!r}")
    options = {"form": form, "ridge": ridge, "step_size": attention_step_size, "dim": dim, "rank": rank}
    pair = attention_factory(**options, **attention_options)
    pair_params = type(jax.eval_shape(pair.init, jax.random.key(0)))
    features = feedforward(dim, step_size=step_size, spectrum=spectrum)
    norm = None if norm_radius is None else layer_norm(dim, radius=norm_radius)
    find_B = _resolve_anchor("anchor", anchor)
    find_A = _resolve_anchor("attention_anchor", attention_anchor)

    def init(key: jax.Array) -> TransformerParams:
        key_a, key_f = jax.random.split(key)
        rows = [
            jax.nn.initializers.xavier_normal()(jax.random.fold_in(key, place), (1, dim)) if kind == "row" else None
            for place, kind in enumerate((anchor, attention_anchor))
        ]
        return TransformerParams(pair.init(key_a).W_a, features.init(key_f).W_f, *rows)

    def of_pair(params: TransformerParams, tokens: Tokens) -> tuple[Any, Tokens]:
        return pair_params(params.W_a), find_A(params.attention_row, tokens)

    def of_features(params: TransformerParams, tokens: Tokens) -> tuple[FeedForwardParams, Tokens]:
        return FeedForwardParams(params.W_f), find_B(params.row, tokens)

    def of_norm(params: TransformerParams, tokens: Tokens) -> tuple[None, Tokens]:
        return None, tokens._replace(x=None)

    def part(layer: Descent, of: Callable[[TransformerParams, Tokens], tuple[Any, Tokens]]) -> Descent:
        def on_own(function: Any) -> Any:
            return function and (lambda params, tokens: function(*of(params, tokens)))

        return on_tokens(init, *map(on_own, plain(layer)), dim=dim)

    return TransformerParts(
        attention=part(pair, of_pair),
        feedforward=part(features, of_features),
        phi=resolve_proximal(phi, step_size),
        step_size=step_size,
        layer_norm=None if norm is None else part(norm, of_norm),
    )


def _resolve_anchor(name: str, anchor: str | AnchorRule) -> Callable[[Any, Tokens], Tokens]:
    """A function of (learnable row, tokens with the input as x) that puts the anchor in the place of x."""
    require(anchor in ("input", "row") or callable(anchor), name, "be 'input', 'row' or a function of x", f"{anchor!r}")

    def find(row: Any, tokens: Tokens) -> Tokens:
        if anchor == "row":
            return tokens._replace(x=blank_absent(row, tokens.present))
        if tokens.x is None or isinstance(anchor, str):
            return tokens
        B, shape = anchor(tokens.x), tokens.y.shape
        require(broadcasts(B.shape, shape), name, f"give what broadcasts to y's shape {shape}", f"shape {B.shape}")
        return tokens._replace(x=blank_absent(B.astype(tokens.y.dtype), tokens.present))

    return find
