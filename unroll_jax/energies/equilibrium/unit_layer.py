r"""The unit layer :math:`W^T \sigma(W z + U x + b)`, a proximal operator, and the energy that it lowers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, SIZE, checked
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal, moreau_envelope
from unroll_jax.energies.tokens import Rows, Tokens, on_tokens, sum_present

__all__ = ["UnitLayerParams", "unit_layer", "unit_layer_example"]

INITIAL_NORM = 0.95  # of W; below 1 the layer contracts and has one fixed point


class UnitLayerParams(NamedTuple):
    """W (width, dim), U (width, input_dim) or None without an input, b (width,).

    Example: see `unit_layer`.
    """

    W: Float[Array, "width d"]
    U: Float[Array, "width e"] | None
    b: Float[Array, " width"]


@checked(dim=SIZE, width=SIZE, input_dim=SIZE, mu=POSITIVE, skip=SHARE)
def unit_layer(
    dim: int,
    width: int | None = None,
    input_dim: int | None = None,
    *,
    activation: str | Proximal = "relu",
    mu: float = 1.0,
    skip: float = 1.0,
) -> Descent:
    r"""A layer with tied weights as a proximal step, or a gradient step on its Moreau envelope.

    Each row z of Y, on its own, with x the row of the input, c = U x + b, sigma the activation,
    :math:`\nabla s = \sigma` and :math:`\psi(z) = \tfrac1\mu s(W z + c)`:

    .. math:: f(z) = \tfrac1\mu W^T \sigma(W z + c) = \nabla \psi(z) = prox_\phi(z) , \qquad z' = (1 - a) z + a f(z) ,

    .. math:: \phi(z) = \psi^*(z) - \tfrac12 |z|^2 , \qquad
              E(z) = \tfrac12 |z|^2 - \psi(z) = \min_u \phi(u) + \tfrac12 |u - z|^2 ,

    summed over the rows. The energy is E, the Moreau envelope of phi: finite everywhere, for every W.

    **It never rises**, for any W, mu and a in (0, 1]. Since psi is convex, -psi lies below its tangent. Hence
    :math:`E(z') \le E(z) - a (1 - \tfrac a2) |f(z) - z|^2`. What :math:`\mu \ge |W|_2^2` adds is that E is convex: its
    stationary points, which are the fixed points of the layer, are then its minimisers.

    Args:
      dim: width d of the tokens.
      width: rows of W; None means ``dim``.
      input_dim: width of x, to learn U; None leaves the input out.
      activation: sigma, a name of `PROXIMALS` or a `Proximal` whose prox at step size 1 is sigma; every nondecreasing
        function that is 1-Lipschitz is one, see `unroll_jax.energies.activation`.
      mu: mu > 0, see above; the papers' layer has 1.
      skip: a in (0, 1]; below 1 the layer has a skip connection of weight 1 - a.

    Returns:
      A `Descent` with params `UnitLayerParams`; ``x`` is the input, (*batch, n, input_dim) or broadcasting to it, or
      None for 0; or an `Anchor` of it that marks the tokens present.

    Source: Yang, Huang, Wipf (2022), eqs. 3 and 4, after Xie et al. (2021), Theorem 1, whose Lipschitz constant of
    sigma is 1 here. Phi is convex only for :math:`\mu \ge |W|_2^2`, which Theorem 1 asks.

    Example:
      >>> import jax
      >>> layer = unit_layer(3, width=8)
      >>> params: UnitLayerParams = layer.init(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 3))
      >>> bool(layer.energy(params, layer.step(params, y, None), None) < layer.energy(params, y, None))
      True
    """
    rows = dim if width is None else width
    sigma = resolve_proximal(activation)

    def init(key: jax.Array) -> UnitLayerParams:
        key_W, key_U = jax.random.split(key)
        W = jax.random.normal(key_W, (rows, dim))
        U = None if input_dim is None else jax.nn.initializers.xavier_normal()(key_U, (rows, input_dim))
        return UnitLayerParams(W * (INITIAL_NORM / jnp.linalg.norm(W, 2)), U, jnp.zeros(rows))

    def energy(params: UnitLayerParams, tokens: Tokens) -> Float[Array, "*batch"]:
        hidden = tokens.y @ params.W.T + _shift(params, tokens)
        half_square = 0.5 * jnp.sum(tokens.y**2, axis=-1)
        potential = 0.5 * jnp.sum(hidden**2, axis=-1) - _per_token(lambda t: moreau_envelope(sigma, t, 1.0), hidden)
        # Beyond the range of the dtype both are infinite; where |W|^2 <= mu the first is the larger.
        return sum_present(jnp.where(jnp.isinf(half_square), jnp.inf, half_square - potential / mu), tokens.present)

    def step(params: UnitLayerParams, tokens: Tokens) -> Array:
        layer = sigma.prox(tokens.y @ params.W.T + _shift(params, tokens), 1.0) @ params.W / mu
        return tokens.y + skip * (layer - tokens.y)

    return on_tokens(init, energy, step, dim=dim, rows=Rows("features", input_dim or 0, optional=True))


def unit_layer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The unit layer, wider than its tokens, with an input and a skip connection."""
    y, x = normal(key, 2, batch)
    return unit_layer(DIM, 2 * DIM, DIM - 1, skip=0.8), y, x[..., : DIM - 1]


def _shift(params: UnitLayerParams, tokens: Tokens) -> Array:
    """c = b + x U^T."""
    return params.b if tokens.x is None or params.U is None else params.b + tokens.x @ params.U.T


def _per_token(function: Any, tokens: Float[Array, "*batch n d"]) -> Float[Array, "*batch n"]:
    return function(tokens[..., None, :])
