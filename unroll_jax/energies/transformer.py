"""A transformer layer: alternating descent on a pairwise and a feed-forward energy."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, TOKENS, Example, normal
from unroll_jax.energies.proximal.penalty import penalty_of_present
from unroll_jax.energies.tokens import Tokens, on_tokens, unchecked
from unroll_jax.energies.transformer_parts import (
    TransformerParams,
    TransformerParts,
    transformer_parts,
)

__all__ = [
    "residual_transformer_descends",
    "residual_transformer_example",
    "transformer",
    "transformer_descends",
    "transformer_example",
]

P = ParamSpec("P")

# 1 / L of these layers is about 0.04: L is n |W_a|_2^2 (about 20) and a little.
EXAMPLE: dict[str, Any] = {"step_size": 0.02}
RESIDUAL_EXAMPLE: dict[str, Any] = {
    "step_size": 0.02,
    "attention_step_size": 0.5,
    "form": "jacobi",
    "ridge": 0.5,
    "anchor": "row",
    "phi": "tanh",
}


def _with_arguments_of(
    source: Callable[P, Any],
) -> Callable[[Callable[..., Descent]], Callable[P, Descent]]:
    """Gives a function that passes its arguments on to ``source`` its signature."""

    def decorate(function: Callable[..., Descent]) -> Callable[P, Descent]:
        signature = inspect.signature(source)
        signature = signature.replace(return_annotation=Descent)
        function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate


@_with_arguments_of(transformer_parts)
def transformer(*arguments: Any, **options: Any) -> Descent:
    r"""Transformer layer as one round of alternating inexact minimisation.

    .. math:: E(Y) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |W_a^T (y_u - y_v)|^2)
                   + \tfrac{r}{2} |(Y - X) W_a|_F^2
                   + \tfrac12 Tr(Y W_f Y^T) + \tfrac12 |Y - B|_F^2 + \phi(Y) ,

    an `attention` step on the first two terms, then a `feedforward` step on the rest.
    With the defaults, where r = 0 and B = x, and with a2 = ``step_size``, that is

    .. math:: Y' = prox_\phi( [softmax_\beta(Y W_a W_a^T Y^T) Y] W_f^s + a_2 B ) .

    The attention half always lowers its part of E. The feed-forward half lowers its
    part for a2 at most its 1 / L. The sum falls if attention has little left to do. Let
    f be the first two terms, U the tokens after attention,
    :math:`W_f^s = (1 - a_2) I - a_2 (W_f + W_f^T) / 2`, and a2 at most 1 / L of the
    smooth part, with L at most
    :math:`(n \rho'(0) + r) |W_a|_2^2 + \max(0, \lambda_{max}) + 1`. E does not rise if

    .. math:: | a_2 \nabla f(Y) + (U - Y) W_f^s |_F \le \tfrac12 | Y' - Y |_F .

    This follows the proof of Theorem 4.1, without its triangle inequality and for any
    convex phi. A point that is stationary for both parts is a fixed point. One that is
    stationary only for E need not be.

    **Residual connections.** (1) ``attention_step_size`` below 1 damps the attention
    half. (2) The anchor B adds a2 B to every layer. For ``anchor="input"`` (B = x) it
    is an initial residual, for ``anchor="row"`` (B a learnable row, the same for all
    tokens) a bias. (3) With ``ridge`` > 0 the attention half adds the input x too,
    divided by the token's degree.

    Args:
      dim: width d of the tokens.
      rank, rho, form, mask: as in `attention`.
      phi: a name of `PROXIMALS`, or a `Proximal`. E is infinite where phi is: for
        "relu" at a negative entry. The trace of signed tokens then starts at inf.
        ``jax.nn.relu(y)`` starts it at a number.
      ridge: r >= 0, weight of the pull to the input X = x in the attention half.
      attention_step_size: damping of the attention step, in (0, 1].
      step_size: a2 > 0 of the feed-forward step.
      anchor: B. "input" is x, or 0 if x is None. "row" is a learnable (1, d) in the
        params.
      spectrum: (lower, upper), to use W_f with its eigenvalues clipped to that
        interval, see `feedforward`.

    Returns:
      A `Descent` with params `TransformerParams`. ``x`` is the input, or None.

    Source: Yang, Huang, Wipf (2022), Algorithm 2, eq. 20 and supplement B.3, F.3, F.4.
    See docs/explanation/errata.md.

    Example:
      >>> import jax
      >>> layer = transformer(4, rank=2)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.uniform(jax.random.key(1), (8, 5, 4))
      >>> step, energy = jax.jit(layer.step), jax.jit(layer.energy)
      >>> step(params, y, y).shape, energy(params, y, y).shape
      ((8, 5, 4), (8,))
    """
    parts = transformer_parts(*arguments, **options)
    attend = unchecked(parts.attention)
    mix = unchecked(parts.feedforward)

    def energy(params: TransformerParams, tokens: Tokens) -> Float[Array, "*batch"]:
        return attend.energy(params, tokens) + rest(params, tokens)

    def step(params: TransformerParams, tokens: Tokens) -> Array:
        return finish(params, tokens, attend.step(params, tokens))

    def step_and_energy(
        params: TransformerParams, tokens: Tokens
    ) -> tuple[Array, Float[Array, "*batch"]]:
        assert attend.step_and_energy is not None
        attended, pairs = attend.step_and_energy(params, tokens)
        return finish(params, tokens, attended), pairs + rest(params, tokens)

    def rest(params: TransformerParams, tokens: Tokens) -> Array:
        penalty = penalty_of_present(parts.phi, tokens.y, tokens.present)
        return mix.energy(params, tokens) + penalty

    def finish(params: TransformerParams, tokens: Tokens, attended: Array) -> Array:
        mixed = mix.step(params, tokens._replace(y=attended))
        return parts.phi.prox(mixed, parts.step_size)

    return on_tokens(parts.attention.init, energy, step, step_and_energy, dim=parts.dim)


def transformer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Nonnegative tokens that spread about a consensus, over three orders."""
    y, x = _spread(key, batch)
    return transformer(DIM, **EXAMPLE), jnp.abs(y), x


def transformer_descends(
    params: TransformerParams, y: Array, x: Array | None
) -> Bool[Array, "*batch"]:
    """The condition of `transformer` for `transformer_example`."""
    return _descends(transformer_parts(DIM, **EXAMPLE), params, y, x, ridge=0.0)


def residual_transformer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """A damped layer, anchored in both halves, with a smooth activation."""
    y, x = _spread(key, batch)
    return transformer(DIM, **RESIDUAL_EXAMPLE), jnp.tanh(y), x


def residual_transformer_descends(
    params: TransformerParams, y: Array, x: Array | None
) -> Bool[Array, "*batch"]:
    """The condition of `transformer` for `residual_transformer_example`.

    Tokens must also lie where phi is finite.
    """
    inside = jnp.all(jnp.abs(y) <= 1.0, axis=(-2, -1))
    parts = transformer_parts(DIM, **RESIDUAL_EXAMPLE)
    return inside & _descends(parts, params, y, x, ridge=RESIDUAL_EXAMPLE["ridge"])


def _spread(key: jax.Array, batch: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns tokens about a consensus, and anchors elsewhere.

    Attention has little to do for some examples, and much for others.
    """
    key_y, key_spread, key_tokens, key_x = jax.random.split(key, 4)
    consensus = 2.0 + jax.random.uniform(key_y, (*batch, 1, DIM))
    digits = jax.random.uniform(key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0)
    y = consensus + 10.0**digits * normal(key_tokens, 1, batch)[0]
    return y, jax.random.uniform(key_x, (*batch, TOKENS, DIM))


def _descends(
    parts: TransformerParts,
    params: TransformerParams,
    y: Array,
    x: Array | None,
    *,
    ridge: float,
) -> Array:
    # Norms are bounded by Frobenius's, which needs no decomposition.
    W_a, W_f, _ = params
    step_size = parts.step_size
    smoothness = (y.shape[-2] + ridge) * jnp.sum(W_a**2) + jnp.linalg.norm(W_f) + 1.0

    gradient = jax.grad(lambda y: jnp.sum(parts.attention.energy(params, y, x)))(y)
    attended = parts.attention.step(params, y, x)
    identity = jnp.eye(W_f.shape[0], dtype=y.dtype)
    mixing = (1.0 - step_size) * identity - step_size * 0.5 * (W_f + W_f.T)
    stepped = parts.phi.prox(parts.feedforward.step(params, attended, x), step_size)
    left = step_size * gradient + (attended - y) @ mixing
    error = jnp.linalg.norm(left, axis=(-2, -1))
    length = jnp.linalg.norm(stepped - y, axis=(-2, -1))
    return (step_size * smoothness <= 1.0) & (error <= 0.5 * length)
