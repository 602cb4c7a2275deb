"""OptEq: layers that are the gradient of a convex potential, and whose equilibria solve a convex problem."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.descent import Descent, Factored, compute_dtype

__all__ = ["ACTIVATIONS", "Activation", "OptEqParams", "opteq", "opteq_objective", "opteq_potential"]

# Spectral norm of W at initialisation: below 1, so that the equilibrium is unique and iterations contract.
INITIAL_NORM = 0.9


class Activation(NamedTuple):
    """A monotone function sigma, 1-Lipschitz, and its antiderivative s with s(0) = 0, both elementwise."""

    value: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    antiderivative: Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _log_cosh(t: Array) -> Array:
    return jnp.abs(t) + jnp.log1p(jnp.exp(-2.0 * jnp.abs(t))) - math.log(2.0)


def _sigmoid_antiderivative(t: Array) -> Array:
    return jax.nn.softplus(t) - math.log(2.0)


# 1-Lipschitz and monotone, as Assumption 1 of Xie et al. (2021) asks.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(jax.nn.relu, lambda t: 0.5 * jax.nn.relu(t) ** 2),
    "leaky_relu": Activation(jax.nn.leaky_relu, lambda t: 0.5 * jax.nn.leaky_relu(t) * t),
    "tanh": Activation(jnp.tanh, _log_cosh),
    "sigmoid": Activation(jax.nn.sigmoid, _sigmoid_antiderivative),
    "identity": Activation(lambda t: t, lambda t: 0.5 * t**2),
}


class OptEqParams(NamedTuple):
    """W (width, dim), U (width, input_dim), b (width,)."""

    W: Float[Array, "h m"]
    U: Float[Array, "h i"]
    b: Float[Array, " h"]


def opteq(dim: int, width: int, input_dim: int, *, activation: str = "relu", skip: float = 1.0) -> Descent:
    r"""OptEq: a layer that is the gradient of a convex potential.

    .. math:: f(z) = \nabla_z \psi(z) , \quad \psi(z) = 1^T s(W z + U x + b) , \quad s' = \sigma , \qquad
              z' = a f(z) + (1 - a) z , \qquad E(z) = \tfrac12 |z|^2 - \psi(z) .

    With :math:`|W|_2 \le 1` E is convex and its gradient z - f(z) is 1-Lipschitz, so the step is a gradient step of
    length a <= 1 on E and never raises it; its fixed points are those of f, for every a, and minimise both E and
    :math:`\phi = \psi^* - \tfrac12 |.|^2` (`opteq_objective`). With :math:`|W|_2 < 1` there is exactly one. Initial
    weights have norm 0.9; training may leave |W| <= 1 unless it is kept there (`spectral_normalise`).

    Args:
      dim: width m of the state z.
      width: hidden width h.
      input_dim: width of the input x.
      activation: a name of `ACTIVATIONS`.
      skip: a in (0, 1], unitless; 1 has no skip connection.

    Returns:
      A `Descent` with params `OptEqParams`; states are (*batch, dim), ``x`` is (*batch, input_dim).

    Raises:
      ValueError: if an option is outside what is stated here; while tracing, if z or x do not fit.
      TypeError: while tracing, if z or x is not floating.

    Source: Xie et al. (2021), eq. 3, Theorem 1 (mu = 1) and the Moreau form after it. E is the Toland dual of the
    paper's phi: same minimisers, and finite everywhere.

    Example:
      >>> import jax
      >>> layer = opteq(4, 8, 3)
      >>> params, x = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 3))
      >>> z = jax.numpy.zeros((5, 4))
      >>> bool((layer.energy(params, layer.step(params, z, x), x) < layer.energy(params, z, x)).all())
      True
    """
    for name, value in (("dim", dim), ("width", width), ("input_dim", input_dim)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
    if not 0.0 < skip <= 1.0:
        raise ValueError(f"skip must be in (0, 1], got {skip}")

    def init(key: jax.Array) -> OptEqParams:
        key_W, key_U = jax.random.split(key)
        W = jax.random.normal(key_W, (width, dim)) / math.sqrt(dim)
        U = jax.random.normal(key_U, (width, input_dim)) / math.sqrt(input_dim)
        return OptEqParams(W * (INITIAL_NORM / jnp.linalg.norm(W, 2)), U, jnp.zeros(width))

    def energy(params: OptEqParams, z: Array, x: Array) -> Float[Array, "*batch"]:
        _check(z, x, dim, input_dim)
        wide = z.astype(compute_dtype(z, params.W))
        return 0.5 * jnp.sum(wide**2, axis=-1) - opteq_potential(params, wide, x, activation=activation)

    def step(params: OptEqParams, z: Array, x: Array) -> Array:
        _check(z, x, dim, input_dim)
        wide = z.astype(compute_dtype(z, params.W))
        moved = jax.grad(lambda z: jnp.sum(opteq_potential(params, z, x, activation=activation)))(wide)
        return (moved if skip == 1.0 else wide + skip * (moved - wide)).astype(z.dtype)

    def factored(params: OptEqParams, x: Array) -> Factored:
        return Factored(params.W, _offset(params, x), ACTIVATIONS[activation].value)

    return Descent(init=init, energy=energy, step=step, factored=factored)


def opteq_potential(
    params: OptEqParams, z: Float[Array, "*batch m"], x: Float[Array, "*batch i"], *, activation: str = "relu"
) -> Float[Array, "*batch"]:
    """psi(z) = 1^T s(W z + U x + b), whose gradient is the layer (Xie et al. 2021, Theorem 1)."""
    return jnp.sum(ACTIVATIONS[activation].antiderivative(z @ params.W.T + _offset(params, x)), axis=-1)


def opteq_objective(
    params: OptEqParams, z: Float[Array, "*batch m"], x: Float[Array, "*batch i"], *, steps: int = 200
) -> Float[Array, "*batch"]:
    r"""phi(z) for ReLU and a square invertible W: the convex function whose prox the layer is.

    .. math:: \phi(z) = 1^T s^*(W^{-T} z) - \langle U x + b, W^{-T} z \rangle - \tfrac12 |z|^2 ,
              \quad s^*(t) = t^2 / 2 \;(t \ge 0), \; \infty \;(t < 0) .

    Raises:
      ValueError: if W is not square.

    Source: Xie et al. (2021), after Theorem 1.
    """
    if params.W.shape[0] != params.W.shape[1]:
        raise ValueError(f"W must be square and invertible, got shape {params.W.shape}")
    t = jnp.linalg.solve(params.W.T, z[..., None])[..., 0]
    # Round-off may put an entry that is 0 just below it.
    below = t < -jnp.sqrt(jnp.finfo(t.dtype).eps) * (1.0 + jnp.max(jnp.abs(t), axis=-1, keepdims=True))
    value = 0.5 * jnp.sum(t**2, axis=-1) - jnp.sum(_offset(params, x) * t, axis=-1) - 0.5 * jnp.sum(z**2, axis=-1)
    return jnp.where(jnp.any(below, axis=-1), jnp.inf, value)


def _offset(params: OptEqParams, x: Array) -> Array:
    return x @ params.U.T + params.b


def _check(z: Array, x: Array, dim: int, input_dim: int) -> None:
    for name, value, width in (("z", z, dim), ("x", x, input_dim)):
        if value is None or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(f"{name} must be a floating array, got {None if value is None else jnp.result_type(value)}")
        if jnp.ndim(value) < 1 or jnp.shape(value)[-1] != width:
            raise ValueError(f"{name} must be (*batch, {width}), got shape {jnp.shape(value)}")
    if jnp.shape(z)[:-1] != jnp.shape(x)[:-1]:
        raise ValueError(f"z and x must share their batch axes, got shapes {jnp.shape(z)} and {jnp.shape(x)}")
