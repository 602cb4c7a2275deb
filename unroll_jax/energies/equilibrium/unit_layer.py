r"""The unit layer :math:`W^T \sigma(W z + U x + b)`, a proximal operator, and the energies that it lowers."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, SIZE, checked, one_of, require
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal, moreau_envelope
from unroll_jax.energies.tokens import Rows, Tokens, on_tokens, sum_present

__all__ = ["ENERGIES", "UnitLayerParams", "unit_layer", "unit_layer_example"]

ENERGIES = ("envelope", "conjugate")
INITIAL_NORM = 0.95  # of W; below 1 the layer contracts and has one fixed point


class UnitLayerParams(NamedTuple):
    """W (width, dim), U (width, input_dim) or None without an input, b (width,).

    Example: see `unit_layer`.
    """

    W: Float[Array, "width d"]
    U: Float[Array, "width e"] | None
    b: Float[Array, " width"]


@checked(dim=SIZE, width=SIZE, input_dim=SIZE, mu=POSITIVE, skip=SHARE, energy=one_of(ENERGIES))
def unit_layer(
    dim: int,
    width: int | None = None,
    input_dim: int | None = None,
    *,
    activation: str | Proximal = "relu",
    mu: float = 1.0,
    skip: float = 1.0,
    energy: str = "envelope",
) -> Descent:
    r"""A layer with tied weights as a proximal step, or a gradient step on its Moreau envelope.

    Each row z of Y, on its own, with x the row of the input, c = U x + b, sigma the activation,
    :math:`\nabla s = \sigma` and :math:`\psi(z) = \tfrac1\mu s(W z + c)`:

    .. math:: f(z) = \tfrac1\mu W^T \sigma(W z + c) = \nabla \psi(z) = prox_\phi(z) , \qquad z' = (1 - a) z + a f(z) ,

    .. math:: \phi(z) = \psi^*(z) - \tfrac12 |z|^2 , \qquad
              E(z) = \tfrac12 |z|^2 - \psi(z) = \min_u \phi(u) + \tfrac12 |u - z|^2 ,

    summed over the rows. ``energy="envelope"`` reports E, the Moreau envelope of phi: finite everywhere, for every W.
    ``energy="conjugate"`` reports phi itself, for a square invertible W, where it is

    .. math:: \phi(z) = \tfrac1\mu s^*(\mu W^{-T} z) - \langle c, W^{-T} z \rangle - \tfrac12 |z|^2 ,

    infinite off the range of f (with "relu", where :math:`W^{-T} z` has a negative entry).

    **Neither ever rises**, for any W, mu and a in (0, 1]. Since psi is convex, -psi lies below its tangent. Hence
    :math:`E(z') \le E(z) - a (1 - \tfrac a2) |f(z) - z|^2`. By Fenchel's inequality :math:`\phi(z) \ge E(z)`, and
    :math:`\phi(f(z)) = E(z) - \tfrac12 |f(z) - z|^2`. As :math:`\psi^*` is convex between z and f(z), that gives
    :math:`\phi(z') \le \phi(z) - \tfrac12 a^2 |f(z) - z|^2`. What :math:`\mu \ge |W|_2^2` adds is that both are convex:
    their stationary points, which are the fixed points of the layer, are then their minimisers.

    Args:
      dim: width d of the tokens.
      width: rows of W; None means ``dim``.
      input_dim: width of x, to learn U; None leaves the input out.
      activation: sigma, a name of `PROXIMALS` or a `Proximal` whose prox at step size 1 is sigma; every nondecreasing
        function that is 1-Lipschitz is one, see `unroll_jax.energies.activation`.
      mu: mu > 0, see above; the papers' layer has 1.
      skip: a in (0, 1]; below 1 the layer has a skip connection of weight 1 - a.
      energy: "envelope" or "conjugate", see above.

    Returns:
      A `Descent` with params `UnitLayerParams`; ``x`` is the input, (*batch, n, input_dim) or broadcasting to it, or
      None for 0; or an `Anchor` of it that marks the tokens present.

    Source: Yang, Huang, Wipf (2022), eqs. 3 and 4, after Xie et al. (2021), Theorem 1, whose Lipschitz constant of
    sigma is 1 here. Eq. 3 needs W invertible. Phi is convex only for :math:`\mu \ge |W|_2^2`, which Theorem 1 asks.

    Example:
      >>> import jax
      >>> layer = unit_layer(3, width=8)
      >>> params: UnitLayerParams = layer.init(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 3))
      >>> bool(layer.energy(params, layer.step(params, y, None), None) < layer.energy(params, y, None))
      True
    """
    rows = dim if width is None else width
    fits = energy == "envelope" or rows == dim
    require(fits, "energy", f"be 'envelope' unless width = dim = {dim}", f"{energy!r}")
    sigma = resolve_proximal(activation)

    def init(key: jax.Array) -> UnitLayerParams:
        key_W, key_U = jax.random.split(key)
        W = jax.random.normal(key_W, (rows, dim))
        U = None if input_dim is None else jax.nn.initializers.xavier_normal()(key_U, (rows, input_dim))
        return UnitLayerParams(W * (INITIAL_NORM / jnp.linalg.norm(W, 2)), U, jnp.zeros(rows))

    def envelope(params: UnitLayerParams, tokens: Tokens) -> Float[Array, "*batch"]:
        hidden = tokens.y @ params.W.T + _shift(params, tokens)
        half_square = 0.5 * jnp.sum(tokens.y**2, axis=-1)
        potential = 0.5 * jnp.sum(hidden**2, axis=-1) - _per_token(lambda t: moreau_envelope(sigma, t, 1.0), hidden)
        # Beyond the range of the dtype both are infinite; where |W|^2 <= mu the first is the larger.
        return sum_present(jnp.where(jnp.isinf(half_square), jnp.inf, half_square - potential / mu), tokens.present)

    def conjugate(params: UnitLayerParams, tokens: Tokens) -> Float[Array, "*batch"]:
        flat, shift = tokens.y.reshape(-1, dim), _shift(params, tokens)
        preimage = mu * jnp.linalg.solve(params.W.T, flat.T).T.reshape(tokens.y.shape)
        # Points of the range's boundary, where sigma puts many, leave it by round-off: the nearest inside counts.
        epsilon = float(jnp.finfo(tokens.y.dtype).eps)
        inside = sigma.prox(preimage, epsilon)
        gap, size = (jnp.max(jnp.abs(t), axis=-1) for t in (preimage - inside, preimage))
        convex = _per_token(sigma.penalty, inside) + jnp.sum((0.5 * inside - shift) * inside, axis=-1)
        per_token = convex / mu - 0.5 * jnp.sum(tokens.y**2, axis=-1)
        outside = gap > math.sqrt(epsilon) * (1.0 + size)  # false for NaN, which stays NaN
        return sum_present(jnp.where(outside, jnp.inf, per_token), tokens.present)

    def step(params: UnitLayerParams, tokens: Tokens) -> Array:
        layer = sigma.prox(tokens.y @ params.W.T + _shift(params, tokens), 1.0) @ params.W / mu
        return tokens.y + skip * (layer - tokens.y)

    chosen = envelope if energy == "envelope" else conjugate
    return on_tokens(init, chosen, step, dim=dim, rows=Rows("features", input_dim or 0, optional=True))


def unit_layer_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The unit layer, wider than its tokens, with an input and a skip connection."""
    y, x = normal(key, 2, batch)
    return unit_layer(DIM, 2 * DIM, DIM - 1, skip=0.8), y, x[..., : DIM - 1]


def _shift(params: UnitLayerParams, tokens: Tokens) -> Array:
    """c = b + x U^T."""
    return params.b if tokens.x is None or params.U is None else params.b + tokens.x @ params.U.T


def _per_token(function: Any, tokens: Float[Array, "*batch n d"]) -> Float[Array, "*batch n"]:
    return function(tokens[..., None, :])
