"""Verification of drafted tokens by the logits of all layers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.models.language.sampling import (
    Sampling,
    Stream,
    draw_tokens,
    likeliest_tokens,
    log_probabilities,
    position_keys,
)

__all__ = ["Draft", "judge_draft", "verify"]


class Draft(NamedTuple):
    """Drafted tokens, for verification.

    Attributes:
      states: outputs of the exit layer, at the last token and the drafted ones.
      tokens: the drafted tokens.
      log_probabilities: of the distributions of the tokens. None if all are greedy.
    """

    states: Float[Array, "batch d_and_one dim"]
    tokens: Int[Array, "batch d"]
    log_probabilities: Float[Array, "batch d vocabulary"] | None


def judge_draft(
    target: Float[Array, "batch d_and_one vocabulary"],
    draft: Float[Array, "batch d vocabulary"],
    tokens: Int[Array, "batch d"],
    uniforms: Float[Array, "batch d"],
) -> tuple[Int[Array, "batch"], Float[Array, "batch vocabulary"]]:
    r"""Accepts or rejects drafted tokens.

    The accepted ones, and the token after them, have the distribution of the target.

    A token x drawn from q is accepted with probability :math:`\min(1, p(x) / q(x))`.
    The next token is from :math:`\max(p - q, 0)`, normalised, or from p if all are
    accepted.

    Args:
      target: logarithms of p, at the drafted tokens and the one after them.
      draft, tokens: logarithms of q, and tokens drawn from it.
      uniforms: one number in [0, 1) for each.

    Returns:
      The number of leading tokens that are accepted, and logarithms of the
      probabilities of the next one.

    Source: Leviathan, Kalman, Matias (2023), algorithm 1 and appendix A.1.
    """
    count = tokens.shape[1]
    p = jnp.take_along_axis(target[:, :count], tokens[..., None], axis=2)[..., 0]
    q = jnp.take_along_axis(draft, tokens[..., None], axis=2)[..., 0]
    # u < p / q, in logarithms, and False if either is NaN
    accepted = _leading(jnp.log(uniforms) < p - q)

    def at_end(each: Array) -> Array:
        return jnp.take_along_axis(each, accepted[:, None, None], axis=1)[:, 0]

    # Where all are accepted, the next token is from p: its draft has probability 0.
    no_draft = jnp.full_like(draft[:, :1], -jnp.inf)
    wanted = jnp.exp(at_end(target))
    drawn = jnp.exp(at_end(jnp.concatenate([draft, no_draft], axis=1)))
    left = jnp.maximum(wanted - drawn, 0.0)
    # Equal distributions leave nothing, up to round-off. No token is then rejected.
    left = jnp.where(jnp.any(left > 0.0, axis=1, keepdims=True), left, wanted)
    return accepted, jnp.log(left) - jnp.log(jnp.sum(left, axis=1, keepdims=True))


def verify(
    logits: Float[Array, "batch d_and_one vocabulary"],
    draft: Draft,
    places: Int[Array, "batch d_and_one"],
    keys: jax.Array | None,
    sampling: Sampling,
) -> tuple[Int[Array, "batch d_and_one"], Int[Array, "batch"]]:
    """Returns tokens for the positions, and the number accepted.

    Only the accepted tokens and the next one count.
    """
    if draft.log_probabilities is None or keys is None:
        wanted = likeliest_tokens(logits)
        return wanted, _leading(wanted[:, :-1] == draft.tokens)

    verdict_keys = position_keys(keys, Stream.VERDICT, places[:, :-1])
    uniforms = jax.vmap(jax.vmap(jax.random.uniform))(verdict_keys)
    target = log_probabilities(logits, sampling)
    accepted, remaining = judge_draft(
        target, draft.log_probabilities, draft.tokens, uniforms
    )

    end = accepted[:, None]
    place = jnp.take_along_axis(places, end, axis=1)
    token_keys = position_keys(keys, Stream.TOKEN, place)[:, 0]
    following = draw_tokens(token_keys, remaining)[:, None]
    tokens = jnp.concatenate([draft.tokens, following], axis=1)
    # Tokens after the end are rejected drafts, which the caller's count leaves out.
    is_end = jnp.arange(tokens.shape[1]) == end
    return jnp.where(is_end, following, tokens), accepted


def _leading(accepted: Bool[Array, "batch d"]) -> Int[Array, "batch"]:
    """Returns the number of tokens of each row before the first that is rejected."""
    return jnp.sum(jnp.cumprod(accepted.astype(jnp.int32), axis=1), axis=1)
