"""A whole transformer layer: alternating descent on a pairwise and a feed-forward energy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.descent import Descent, check_tokens, compute_dtype
from unroll_jax.energies.feedforward import FeedForwardParams, feedforward
from unroll_jax.energies.pairwise import AttentionParams, attention
from unroll_jax.energies.proximal import Proximal
from unroll_jax.energies.rho import Rho

__all__ = ["TransformerParams", "UnrolledLayerParams", "transformer", "unrolled_layer"]


class TransformerParams(NamedTuple):
    """W_a (d, k) of the attention energy and W_f (d, d) of the feed-forward energy."""

    W_a: Float[Array, "d k"]
    W_f: Float[Array, "d d"]


class UnrolledLayerParams(NamedTuple):
    """V (k, d), W (d, d) and U (d, d) of one `unrolled_layer`."""

    V: Float[Array, "k d"]
    W: Float[Array, "d d"]
    U: Float[Array, "d d"]


def transformer(
    dim: int,
    *,
    rank: int | None = None,
    rho: str | Rho = "softmax",
    phi: str | Proximal = "relu",
    form: str = "softmax",
    attention_step_size: float = 1.0,
    step_size: float = 0.5,
    mask: Any = None,
) -> Descent:
    r"""Transformer layer as one round of alternating inexact minimisation.

    .. math:: E(Y) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |W_a^T (y_u - y_v)|^2)
                   + \tfrac12 Tr(Y W_f Y^T) + \tfrac12 |Y - B|_F^2 + \phi(Y) ,

    with B = x (0 when x is None): an `attention` step on the first term, then a `feedforward` step on the rest. With
    the defaults and a2 = ``step_size`` that is

    .. math:: Y' = prox_\phi( [softmax_\beta(Y W_a W_a^T Y^T) Y] W_f^s + a_2 B ) .

    The attention half always lowers its part, the feed-forward half for a2 at most 1 / L of its own. The whole E falls
    where attention leaves little undone: with f the first term, U the tokens after attention,
    :math:`W_f^s = (1 - a_2) I - a_2 (W_f + W_f^T) / 2` and a2 at most 1 / L of the smooth part (L at most
    :math:`n \rho'(0) |W_a|_2^2 + \max(0, \lambda_{max}) + 1`), E does not rise if

    .. math:: | a_2 \nabla f(Y) + (U - Y) W_f^s |_F \le \tfrac12 | Y' - Y |_F .

    That is the proof of Theorem 4.1 without its triangle inequality, and for any convex phi. A point that is stationary
    for both parts is a fixed point; one that is stationary for E alone need not be, since the halves take turns.

    Args:
      dim: width d of the tokens.
      rank: columns k of W_a; None means ``dim``.
      rho: a name of `RHOS`, or a `Rho`.
      phi: a name of `PROXIMALS`, or a `Proximal`. E is infinite where phi is (for "relu", at a negative entry).
      form: form of the attention step, "softmax" or "jacobi".
      attention_step_size: damping of the attention step, in (0, 1].
      step_size: a2 > 0 of the feed-forward step.
      mask: symmetric boolean (n, n) graph of the tokens; None is the complete graph.

    Returns:
      A `Descent` with params `TransformerParams`; ``x`` is the anchor B, or None.

    Raises:
      ValueError: as `attention` and `feedforward`.
      TypeError: while tracing, if y or x is not floating.

    Source: Yang, Huang, Wipf (2022), Algorithm 2 and eq. 20, whose print drops the Y that softmax multiplies.
    """
    if not 0.0 < attention_step_size <= 1.0:
        raise ValueError(f"attention_step_size must be in (0, 1], got {attention_step_size}")
    pair = attention(rho=rho, form=form, step_size=attention_step_size, mask=mask, dim=dim, rank=rank)
    features = feedforward(dim, step_size=step_size, phi=phi)

    def init(key: jax.Array) -> TransformerParams:
        key_a, key_f = jax.random.split(key)
        return TransformerParams(W_a=pair.init(key_a).W_a, W_f=features.init(key_f).W_f)

    def energy(params: TransformerParams, y: Array, x: Array | None = None) -> Float[Array, "*batch"]:
        first = pair.energy(AttentionParams(params.W_a), y, None)
        return first + features.energy(FeedForwardParams(params.W_f), y, x)

    def step(params: TransformerParams, y: Array, x: Array | None = None) -> Array:
        mixed = pair.step(AttentionParams(params.W_a), y, None)
        return features.step(FeedForwardParams(params.W_f), mixed, x)

    return Descent(init=init, energy=energy, step=step)


def unrolled_layer(params: UnrolledLayerParams, y: Float[Array, "*batch n d"]) -> Float[Array, "*batch n d"]:
    r"""A layer of the unrolled transformer (UT), with weights of its own.

    .. math:: Z = softmax(Y V^T V Y^T) Y , \qquad Y' = relu(Z W^+ + Y U) , \quad W^+ = (W + W^T) / 2 .

    With free U and weights that differ by layer it lowers no energy known in advance; descent of the task loss is what
    `unroll_jax.constrained` asks of it.

    Args:
      params: V (k, d), W (d, d), U (d, d).
      y: tokens as rows.

    Returns:
      Y', same shape and dtype as y.

    Raises:
      ValueError: while tracing, if y is not (*batch, n, d) with the d of V.
      TypeError: while tracing, if y is not floating.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48; tokens as rows.
    """
    check_tokens(y, dim=params.V.shape[-1])
    projected = y @ params.V.T
    logits = jnp.einsum("...uk,...vk->...uv", projected, projected, preferred_element_type=compute_dtype(y))
    weights = jax.nn.softmax(logits, axis=-1).astype(y.dtype)
    symmetric = 0.5 * (params.W + params.W.T)
    return jax.nn.relu((weights @ y) @ symmetric + y @ params.U)
