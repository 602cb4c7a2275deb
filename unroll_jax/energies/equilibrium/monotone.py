"""Monotone functions, the antiderivative of each, and the conjugate of that."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from unroll_jax.arguments import look_up
from unroll_jax.numerics import infinite_outside

__all__ = ["MONOTONES", "Monotone", "antiderivative", "resolve_monotone"]

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]


class Monotone(NamedTuple):
    r"""A nondecreasing and 1-Lipschitz function :math:`\sigma` of one variable.

    Attributes:
      value: :math:`\sigma`, elementwise.
      integral: s with :math:`s' = \sigma` and s(0) = 0. Its derivative is taken to be
        ``value``.
      conjugate: :math:`s^*(t) = \max_w t w - s(w)`, inf off sigma's closed range, for
        `opteq_objective`. None if unknown.

    Example:
      >>> import jax
      >>> half = Monotone(lambda t: t / 2, lambda t: t**2 / 4, lambda t: t**2)
      >>> float(half.value(3.0)), float(jax.grad(half.integral)(3.0))
      (1.5, 1.5)

    Any layer takes it, as in ``opteq(..., activation=half)``.
    """

    value: Elementwise
    integral: Elementwise
    conjugate: Elementwise | None = None


def antiderivative(sigma: Monotone) -> Elementwise:
    """s of a `Monotone`, whose derivative under autodiff is sigma itself.

    It is exact where s is written with kinks.
    """

    @jax.custom_jvp
    def integral(t: Array) -> Array:
        return sigma.integral(t)

    @integral.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return integral(primals[0]), sigma.value(primals[0]) * tangents[0]

    return integral


def resolve_monotone(activation: str | Monotone) -> Monotone:
    """The `Monotone` of a name of `MONOTONES`, or the `Monotone` given.

    Anything else is a ValueError or TypeError.
    """
    return look_up("activation", activation, MONOTONES, Monotone)


LEAK = 0.01  # slope of leaky_relu below 0, as in `jax.nn.leaky_relu`


#: Activations of equilibrium layers by name, each with its potential. They are
#: 1-Lipschitz and monotone: Assumptions 1 and 2 of Xie et al. (2021).
MONOTONES: dict[str, Monotone] = {
    "identity": Monotone(lambda t: t, lambda t: 0.5 * t**2, lambda t: 0.5 * t**2),
    "leaky_relu": Monotone(
        lambda t: jax.nn.leaky_relu(t, LEAK),
        lambda t: 0.5 * jax.nn.leaky_relu(t, LEAK) * t,
        lambda t: 0.5 * t**2 * jnp.where(t >= 0.0, 1.0, 1.0 / LEAK),
    ),
    "relu": Monotone(
        jax.nn.relu,
        lambda t: 0.5 * jax.nn.relu(t) ** 2,
        lambda t: infinite_outside(lambda t: 0.5 * t**2, t, 0.0),
    ),
    "sigmoid": Monotone(
        jax.nn.sigmoid,
        lambda t: jax.nn.softplus(t) - math.log(2.0),
        lambda t: infinite_outside(
            lambda t: xlogy(t, t) + xlogy(1.0 - t, 1.0 - t) + math.log(2.0), t, 0.0, 1.0
        ),
    ),
    "tanh": Monotone(
        jnp.tanh,
        lambda t: jnp.abs(t) + jnp.log1p(jnp.exp(-2.0 * jnp.abs(t))) - math.log(2.0),
        lambda t: infinite_outside(
            lambda t: 0.5 * (xlogy(1.0 + t, 1.0 + t) + xlogy(1.0 - t, 1.0 - t)),
            t,
            -1.0,
            1.0,
        ),
    ),
}
