"""A whole transformer layer: alternating descent on a pairwise and a feed-forward energy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.descent import Anchor, Descent, as_anchor
from unroll_jax.energies.feedforward import FeedForwardParams, feedforward
from unroll_jax.energies.inputs import guarded
from unroll_jax.energies.layer_norm import layer_norm
from unroll_jax.energies.pairwise import attention
from unroll_jax.energies.penalty import Proximal, penalty_of_present
from unroll_jax.energies.proximal import resolve_proximal
from unroll_jax.energies.rho import RhoLike

__all__ = [
    "TransformerParams",
    "TransformerParts",
    "transformer",
    "transformer_parts",
]

AnchorRule = Callable[[Any], Any]  # of the input x


class TransformerParams(NamedTuple):
    """W_a (d, k) of the attention energy, W_f (d, d) of the feed-forward one, and learnable anchors (1, d), if any."""

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
      phi: the penalty and its prox.
      step_size: a2.
      layer_norm: the energy that layer normalisation lowers, and its step; or None.
    """

    attention: Descent
    feedforward: Descent
    phi: Proximal
    step_size: float
    layer_norm: Descent | None = None


@typed
def transformer(
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
    anchor: str | AnchorRule = "input",
    attention_anchor: str | AnchorRule = "input",
    norm_radius: float | None = None,
    spectrum: tuple[float, float] | None = None,
    attention_factory: Callable[..., Descent] = attention,
    **attention_options: Any,
) -> Descent:
    r"""Transformer layer as one round of alternating inexact minimisation.

    .. math:: E(Y) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |W_a^T (y_u - y_v)|^2) + \tfrac{r}{2} |(Y - A) W_a|_F^2
                   + \tfrac12 Tr(Y W_f Y^T) + \tfrac12 |Y - B|_F^2 + \phi(Y) ,

    an `attention` step on the first two terms, then a `feedforward` step on the rest. With the defaults, where r = 0
    and B = x, and with a2 = ``step_size``, that is

    .. math:: Y' = prox_\phi( [softmax_\beta(Y W_a W_a^T Y^T) Y] W_f^s + a_2 B ) .

    The attention half always lowers its part, the feed-forward half for a2 at most 1 / L of its own. The whole E falls
    where attention leaves little undone: with f the first two terms, U the tokens after attention,
    :math:`W_f^s = (1 - a_2) I - a_2 (W_f + W_f^T) / 2` and a2 at most 1 / L of the smooth part (L at most
    :math:`(n \rho'(0) + r) |W_a|_2^2 + \max(0, \lambda_{max}) + 1`), E does not rise if

    .. math:: | a_2 \nabla f(Y) + (U - Y) W_f^s |_F \le \tfrac12 | Y' - Y |_F .

    That is the proof of Theorem 4.1 without its triangle inequality, and for any convex phi. A point that is stationary
    for both parts is a fixed point; one that is stationary for E alone need not be, since the halves take turns.

    **Residual connections.** (1) ``attention_step_size`` below 1 leaves that share of each token in place. (2) The
    anchor B adds a2 B to every layer: an initial residual for ``anchor="input"`` (B = x), for x = f(X) computed by the
    caller or with ``anchor=f`` (B = f(x)); a bias for ``anchor="row"`` (B a learnable row, the same for all tokens).
    (3) With ``ridge`` > 0, A does the same in the attention half, divided by the token's degree.

    **Layer norm.** With ``norm_radius`` R, `layer_norm` comes before attention, and its energy joins E (and f, which
    adds 1 to L). Tokens then have norm R when they meet attention, so that with W_a a multiple of an orthogonal matrix
    beta is constant and softmax_beta is the plain softmax; with any other W_a beta counts, and is kept.

    Args:
      dim: width d of the tokens.
      rank: columns k of W_a; None means ``dim``.
      rho: a name of `RHOS`, a `Rho`, or a function z -> rho(z), checked to be concave and nondecreasing.
      phi: a name of `PROXIMALS`, or a `Proximal`. E is infinite where phi is: for "relu" at a negative
        entry, so that the trace of signed tokens starts at inf; ``jax.nn.relu(y)`` starts it at a number.
      form: form of the attention step, "softmax" or "jacobi".
      ridge: r >= 0, weight of the pull to A in the attention half.
      attention_step_size: damping of the attention step, in (0, 1].
      step_size: a2 > 0 of the feed-forward step.
      mask: symmetric boolean (n, n) graph of the tokens; None is the complete graph.
      anchor: B: "input" is x (0 when x is None); "row" a learnable (1, d) in the params; or a function of x.
      attention_anchor: A, likewise; it needs ``ridge`` > 0 to count.
      norm_radius: radius R of the layer norm; None leaves it out.
      spectrum: (lower, upper), to use W_f with its eigenvalues clipped to that interval, see `feedforward`.
      attention_factory: what makes the attention half, with the keywords of `attention` and params that hold W_a alone:
        for several heads, ``functools.partial(multihead_attention, num_heads=...)``.
      **attention_options: further keywords of the attention half.

    Returns:
      A `Descent` with params `TransformerParams`; ``x`` is the input of the anchors, or None.

    Raises:
      ValueError: as `attention`, `feedforward` and `layer_norm`; if an anchor is neither of the names nor a function,
        or attention_anchor is given without ridge.
      TypeError: while tracing, if y or x is not floating.

    Source: Yang, Huang, Wipf (2022), Algorithm 2 and eq. 20, whose print drops the Y that softmax multiplies;
    supplement B.3, F.3; F.4, whose eq. 69 adds the anchor without the degree it is divided by.
    """
    parts = transformer_parts(
        dim,
        rank=rank,
        rho=rho,
        phi=phi,
        form=form,
        ridge=ridge,
        attention_step_size=attention_step_size,
        step_size=step_size,
        mask=mask,
        anchor=anchor,
        attention_anchor=attention_anchor,
        norm_radius=norm_radius,
        spectrum=spectrum,
        attention_factory=attention_factory,
        **attention_options,
    )

    def energy(params: TransformerParams, y: Array, x: Array | Anchor | None = None) -> Float[Array, "*batch"]:
        return parts.attention.energy(params, y, x) + rest(params, y, x)

    def step(params: TransformerParams, y: Array, x: Array | Anchor | None = None) -> Array:
        normed = y if parts.layer_norm is None else parts.layer_norm.step(params, y, x)
        return finish(params, parts.attention.step(params, normed, x), y, x)

    def step_and_energy(
        params: TransformerParams, y: Array, x: Array | Anchor | None = None
    ) -> tuple[Array, Float[Array, "*batch"]]:
        assert shared is not None
        attended, pairs = shared(params, y, x)
        return finish(params, attended, y, x), pairs + rest(params, y, x)

    def rest(params: TransformerParams, y: Array, x: Any) -> Array:
        total = parts.feedforward.energy(params, y, x) + penalty_of_present(parts.phi, y, as_anchor(x).present)
        return total if parts.layer_norm is None else total + parts.layer_norm.energy(params, y, x)

    def finish(params: TransformerParams, attended: Array, y: Array, x: Any) -> Array:
        present = as_anchor(x).present
        stepped = parts.phi.prox(parts.feedforward.step(params, attended, x), parts.step_size)
        return stepped if present is None else jnp.where(present[..., None], stepped, y)

    # After layer norm attention sees other tokens than the energy is asked for, and there is nothing to share.
    shared = parts.attention.step_and_energy if parts.layer_norm is None else None
    both = None if shared is None else step_and_energy
    return guarded(Descent(parts.attention.init, energy, step, both), TransformerParams)


@typed
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
      dim: as in `transformer`, and so are all other arguments; ``rho`` and ``mask`` are among the attention_options.
      rank: see `transformer`.
      phi: see `transformer`.
      form: see `transformer`.
      ridge: see `transformer`.
      attention_step_size: see `transformer`.
      step_size: see `transformer`.
      anchor: see `transformer`.
      attention_anchor: see `transformer`.
      norm_radius: see `transformer`.
      spectrum: see `transformer`.
      attention_factory: see `transformer`.
      **attention_options: further keywords of the attention half.

    Returns:
      `TransformerParts`, whose functions take the layer's `TransformerParams`.

    Raises:
      ValueError: as `transformer`.
    """
    if not 0.0 < attention_step_size <= 1.0:
        raise ValueError(f"attention_step_size must be in (0, 1], got {attention_step_size}")
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

    def of_pair(function: Callable) -> Callable:
        return lambda params, y, x=None: function(pair_params(params.W_a), y, find_A(params.attention_row, x))

    def of_features(function: Callable) -> Callable:
        return lambda params, y, x=None: function(FeedForwardParams(params.W_f), y, find_B(params.row, x))

    def of_norm(function: Callable) -> Callable:
        return lambda params, y, x=None: function(None, y, Anchor(None, as_anchor(x).present))

    both = None if pair.step_and_energy is None else of_pair(pair.step_and_energy)
    attention_part = Descent(init, of_pair(pair.energy), of_pair(pair.step), both)
    feedforward_part = Descent(init, of_features(features.energy), of_features(features.step))
    return TransformerParts(
        attention=guarded(attention_part, TransformerParams),
        feedforward=guarded(feedforward_part, TransformerParams),
        phi=resolve_proximal(phi, step_size),
        step_size=step_size,
        layer_norm=None if norm is None else Descent(init, of_norm(norm.energy), of_norm(norm.step)),
    )


def _resolve_anchor(name: str, anchor: str | AnchorRule) -> Callable[[Any, Any], Anchor]:
    """A function of (learnable row, input x) that gives the anchor, for the tokens that x says are there."""
    if not (anchor in ("input", "row") or callable(anchor)):
        raise ValueError(f"{name} must be 'input', 'row' or a function of x, got {anchor!r}")

    def find(row: Any, x: Any) -> Anchor:
        value, present = as_anchor(x)
        if anchor == "row":
            return Anchor(row, present)
        if value is None or isinstance(anchor, str):
            return Anchor(value, present)
        return Anchor(anchor(value), present)

    return find
