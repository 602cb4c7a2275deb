"""Concave functions of half the squared distance of two tokens."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, checked, require
from unroll_jax.energies.attention.rho_checks import check_rho

__all__ = [
    "RHOS",
    "Rho",
    "RhoLike",
    "cauchy",
    "geman_mcclure",
    "log",
    "power",
    "resolve_rho",
    "softmax",
    "student",
    "truncated_quadratic",
]

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]


class Rho(NamedTuple):
    """A concave, nondecreasing function rho on [0, inf) and its slope, elementwise.

    Attention weights are its slopes.

    Attributes:
      value: ``z -> rho(z)``.
      slope: ``z -> rho'(z)``, at least 0, and finite at 0 too. None takes it from
        ``log_slope`` or `jax.grad`.
      log_slope: ``z -> log rho'(z)``. An explicit one keeps far tokens from underflow.
        None takes the slope's log.
      exponential: True for rho(z) = -exp(-z). The energy is then minus the sum of the
        slopes, without a separate pass.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import AttentionParams, attention
      >>> same_slope = Rho(lambda z: 2.0 * z)
      >>> layer = attention(rho=same_slope, form="softmax")
      >>> step = jax.jit(layer.step)
      >>> y = step(AttentionParams(None), jnp.array([[0.0], [4.0]]))
      >>> y.ravel().round(3).tolist()  # the mean
      [2.0, 2.0]
    """

    value: Elementwise
    slope: Elementwise | None = None
    log_slope: Elementwise | None = None
    exponential: bool = False


RhoLike = str | Rho | Elementwise  # a name of `RHOS`, a `Rho`, or just the function


def softmax() -> Rho:
    """rho(z) = -exp(-z), slope exp(-z): softmax attention.

    Yang et al. (2022), eq. 10. Plus 1 it is Welsch's function.
    """
    return Rho(value=lambda z: -jnp.exp(-z), log_slope=jnp.negative, exponential=True)


@checked(shift=POSITIVE)
def log(shift: float = 1.0) -> Rho:
    """rho(z) = log(z + shift), slope 1 / (z + shift).

    With unit-norm tokens z = 1 - y_i.y_j, so ``shift=1`` gives the weights 1 / (2 -
    y_i.y_j) of Yang et al. (2022), Section 7 (printed there for log(z + 2), which gives
    1 / (3 - y_i.y_j)).
    """
    return _logarithmic(shift, 1.0, math.log(shift))


@checked(scale=POSITIVE)
def cauchy(scale: float = 1.0) -> Rho:
    """rho(z) = c log(1 + z / c), slope 1 / (1 + z / c), c = scale.

    Cauchy's function, `log` with slope 1 at z = 0.
    """
    return _logarithmic(scale, scale)


@checked(degrees=POSITIVE)
def student(degrees: float = 3.0) -> Rho:
    r"""rho(z) = (m + 1)/2 log(1 + 2 z / m), slope (m + 1) / (m + 2 z).

    With m = degrees of freedom it is the negative log-density of Student's t at a
    distance of square 2 z. One degree is Cauchy's, many are near rho(z) = z.
    """
    return _logarithmic(0.5 * degrees, 0.5 * (degrees + 1.0))


@checked(scale=POSITIVE)
def geman_mcclure(scale: float = 1.0) -> Rho:
    """rho(z) = z / (1 + z / c), slope 1 / (1 + z / c)^2, c = scale.

    Geman and McClure (1985). Bounded by c.
    """

    def value(z: Array) -> Array:
        near = jnp.where(jnp.isinf(z), 0.0, z)  # a distance that overflows costs c
        return jnp.where(jnp.isinf(z), scale, near / (1.0 + near / scale))

    return Rho(value, log_slope=lambda z: -2.0 * jnp.log1p(z / scale))


@checked(shift=POSITIVE, exponent=SHARE)
def power(exponent: float = 0.5, shift: float = 1.0) -> Rho:
    """rho(z) = (z + shift)^p, slope p (z + shift)^(p - 1), p = exponent.

    p = 1/2 is Charbonnier's (pseudo-Huber) function of the distance, p = 1 the
    quadratic: plain averages of neighbours.
    """

    def log_slope(z: Array) -> Array:
        if exponent < 1.0:
            return math.log(exponent) + (exponent - 1.0) * jnp.log(z + shift)
        # 0 times the infinity of a distance that overflows is not 0
        return jnp.where(jnp.isnan(z), z, 0.0)

    return Rho(lambda z: (z + shift) ** exponent, log_slope=log_slope)


@checked(threshold=POSITIVE)
def truncated_quadratic(threshold: float = 1.0) -> Rho:
    """rho(z) = min(z, c), slope 1 below c = threshold, else 0.

    Unweighted averages over neighbours nearer than sqrt(2 c).
    """
    # z - z, not 0: a NaN stays one.
    return Rho(
        lambda z: jnp.minimum(z, threshold),
        log_slope=lambda z: jnp.where(z >= threshold, -jnp.inf, z - z),
    )


# Ratio of a distance and a scale beyond which adding 1 changes nothing, and the ratio
# may overflow.
FAR = 1e30


def _logarithmic(scale: float, weight: float, shift: float = 0.0) -> Rho:
    """rho(z) = weight log(1 + z / scale) + shift."""

    def growth(z: Array) -> Array:  # log(1 + z / scale), also where the ratio overflows
        far = z > FAR * scale
        near = jnp.log1p(jnp.where(far, 0.0, z) / scale)
        return jnp.where(far, jnp.log(jnp.where(far, z, 1.0)) - math.log(scale), near)

    def log_slope(z: Array) -> Array:
        return math.log(weight / scale) - growth(z)

    return Rho(lambda z: weight * growth(z) + shift, log_slope=log_slope)


#: Functions of half the squared distance of two tokens, by name.
RHOS: dict[str, Callable[..., Rho]] = {
    "softmax": softmax,
    "log": log,
    "cauchy": cauchy,
    "student": student,
    "geman_mcclure": geman_mcclure,
    "power": power,
    "truncated_quadratic": truncated_quadratic,
}


def resolve_rho(rho: RhoLike) -> Rho:
    """Returns a `Rho` with both slopes, from a name of `RHOS`, a `Rho` or a function.

    Functions and `Rho`s are checked once, here, by `check_rho`, under jit too.

    Raises:
      ValueError: if the name is unknown, or a check fails.
      TypeError: if ``rho`` is something else.
    """
    named = isinstance(rho, str)
    if named:
        wanted = f"be one of {sorted(RHOS)}, a Rho or a function"
        require(rho in RHOS, "rho", wanted, repr(rho))
        rho = RHOS[rho]()
    elif callable(rho):
        rho = Rho(rho)
    if not isinstance(rho, Rho):
        raise TypeError(
            f"rho must be one of {sorted(RHOS)}, a Rho or a function, got"
            f" {type(rho).__name__}"
        )
    slope = rho.slope or _derive(rho)
    log_slope = rho.log_slope or _logarithm(slope)
    if not named:
        check_rho(rho.value, slope, log_slope)
    return rho._replace(slope=slope, log_slope=log_slope)


def _derive(rho: Rho) -> Elementwise:
    def slope(z: Float[Array, "..."]) -> Float[Array, "..."]:
        if rho.log_slope is not None:
            return jnp.exp(rho.log_slope(z))
        return jax.vmap(jax.grad(rho.value))(z.ravel()).reshape(z.shape)

    return slope


def _logarithm(slope: Elementwise) -> Elementwise:
    def log_slope(z: Float[Array, "..."]) -> Float[Array, "..."]:
        value = slope(z)
        # Below 0 there is only round-off. The inner `where` keeps the derivative finite
        # where the slope is 0.
        none = value <= 0.0
        return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1.0, value)))

    return log_slope
