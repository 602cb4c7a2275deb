"""Elementwise activations as proximal operators of convex functions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import spence, xlog1py, xlogy
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, in_interval, require
from unroll_jax.energies.proximal.penalty import Proximal, nonnegative
from unroll_jax.numerics import compute_dtype, infinite_outside

__all__ = ["ACTIVATIONS", "activation", "leaky_relu", "sigmoid", "softplus", "tanh"]

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]

# A user's activation is checked around 0, where activations bend, in steps of 1/64.
GRID = np.linspace(-16.0, 16.0, 2049, dtype=np.float32)


@checked(step_size=POSITIVE)
def activation(
    function: Elementwise, penalty: Elementwise, *, step_size: float = 1.0
) -> Proximal:
    r"""The proximal pair whose prox is an elementwise activation.

    A function :math:`\sigma` of one variable is the prox of a convex function exactly
    if it is nondecreasing and 1-Lipschitz. With :math:`\psi' = \sigma` and
    :math:`\psi^*` the conjugate of :math:`\psi`,

    .. math:: \phi_1(z) = \psi^*(z) - \tfrac12 z^2 , \qquad
              \phi_1'(\sigma(w)) = w - \sigma(w) , \qquad prox_{\phi_1} = \sigma .

    A layer that steps by a and applies :math:`\sigma` lowers an energy with the penalty
    :math:`\phi_1 / a`. ``step_size=a`` gives this pair. `feedforward` and `transformer`
    choose it when phi is given by name. At another step size s the prox is
    :math:`\sigma(w)` with :math:`(1 - s/a) \sigma(w) + (s/a) w = y`, solved entry by
    entry. At s = 0 it projects onto the closure of sigma's range.

    Args:
      function: sigma, elementwise. It is a ValueError if sigma falls, or rises faster
        than 1, on a grid over [-16, 16].
      penalty: phi_1, elementwise, infinite outside the closure of sigma's range.
      step_size: a > 0, the step size at which the prox is sigma.

    Source: Yang, Huang, Wipf (2022), Section 5, for ReLU. The pair is Moreau's. At s =
    1 it is Lemma 1 of Xie et al. (2021).

    Example:
      >>> import jax.numpy as jnp
      >>> arctan = activation(jnp.arctan, lambda z: -jnp.log(jnp.cos(z)) - 0.5 * z**2)
      >>> phis = [arctan, tanh(), sigmoid(), softplus(), leaky_relu()]
      >>> [round(phi.prox(jnp.ones(()), 1.0).item(), 4) for phi in phis]
      [0.7854, 0.7616, 0.7311, 1.3133, 1.0]
    """
    with jax.ensure_compile_time_eval():
        values = np.asarray(function(jnp.asarray(GRID)), np.float64)
    slopes = np.diff(values) / np.diff(GRID.astype(np.float64))
    tolerance = 1e-3  # float32 round-off of values up to 16, over a spacing of 1/64
    allowed = "have slopes in [0, 1] to be a proximal operator"
    for place in (int(np.argmin(slopes)), int(np.argmax(slopes))):
        slope = slopes[place]
        inside = -tolerance <= slope <= 1.0 + tolerance
        got = f"slope {slope:.3g} at {GRID[place]:.3g}"
        require(inside, "an activation", allowed, got)
    return _pair(function, penalty, step_size)


@checked(step_size=POSITIVE)
def tanh(*, step_size: float = 1.0) -> Proximal:
    """tanh, phi_1 = ((1 + z) log(1 + z) + (1 - z) log(1 - z) - z^2) / 2 on [-1, 1].

    Example: see `activation`.
    """

    def inside(z: Array) -> Array:
        return 0.5 * (xlog1py(1.0 + z, z) + xlog1py(1.0 - z, -z) - z**2)

    def rest(w: Array) -> Array:
        # w - tanh(w) cancels near 0: there it is its Taylor series.
        near = jnp.abs(w) < float(jnp.finfo(w.dtype).eps) ** 0.125
        square = jnp.where(near, w, 0.0) ** 2
        factor = 17.0 / 315.0 - 62.0 / 2835.0 * square
        series = w * square * (1.0 / 3.0 + square * (-2.0 / 15.0 + square * factor))
        return jnp.where(near, series, w - jnp.tanh(w))

    return _pair(
        jnp.tanh, lambda z: infinite_outside(inside, z, -1.0, 1.0), step_size, rest
    )


@checked(step_size=POSITIVE)
def sigmoid(*, step_size: float = 1.0) -> Proximal:
    """1 / (1 + e^-w), phi_1 = z log z + (1 - z) log(1 - z) - z^2 / 2 on [0, 1].

    Example: see `activation`.
    """

    def inside(z: Array) -> Array:
        return xlogy(z, z) + xlog1py(1.0 - z, -z) - 0.5 * z**2

    return _pair(
        jax.nn.sigmoid, lambda z: infinite_outside(inside, z, 0.0, 1.0), step_size
    )


@checked(step_size=POSITIVE)
def softplus(*, step_size: float = 1.0) -> Proximal:
    """log(1 + e^w), phi_1 = Li_2(e^-z) - pi^2 / 6 on z >= 0. Li_2 is the dilogarithm.

    Example: see `activation`.
    """

    def inside(z: Array) -> Array:
        return spence(-jnp.expm1(-z)) - np.pi**2 / 6.0

    return _pair(
        jax.nn.softplus,
        lambda z: infinite_outside(inside, z, 0.0),
        step_size,
        lambda w: -jax.nn.softplus(-w),
    )


@checked(slope=in_interval("(0, 1]"), step_size=POSITIVE)
def leaky_relu(slope: float = 0.01, *, step_size: float = 1.0) -> Proximal:
    """w, or slope w where w < 0, phi_1 = (1 / slope - 1) min(z, 0)^2 / 2.

    The slope is in (0, 1].

    Example: see `activation`.
    """
    bend = 0.5 * (1.0 / slope - 1.0)
    return _pair(
        lambda w: jax.nn.leaky_relu(w, slope),
        lambda z: bend * jnp.minimum(z, 0.0) ** 2,
        step_size,
    )


ACTIVATIONS: dict[str, Callable[..., Proximal]] = {
    "leaky_relu": leaky_relu,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "tanh": tanh,
}


def _pair(
    function: Elementwise,
    penalty: Elementwise,
    step_size: float,
    rest: Elementwise | None = None,
) -> Proximal:
    """The pair of sigma. ``rest`` is w - sigma(w), where a difference loses digits."""

    def difference(w: Array) -> Array:
        return w - function(w)

    def prox(y: Array, length: float | Float[Array, ""]) -> Array:
        length = nonnegative("step_size", length)
        # At the step size of the pair there is nothing to solve.
        if not isinstance(length, jax.Array) and np.all(length == step_size):
            return function(y)
        wide = y.astype(compute_dtype(y))
        ratio = jnp.asarray(length, wide.dtype) / step_size
        w = _solve(function, rest or difference, wide, ratio)
        return function(w).astype(y.dtype)

    def total(y: Array) -> Array:
        return jnp.sum(penalty(y.astype(compute_dtype(y))), axis=(-2, -1)) / step_size

    return Proximal(penalty=total, prox=prox)


def _solve(function: Elementwise, rest: Elementwise, y: Array, ratio: Array) -> Array:
    """Returns w with (1 - t) sigma(w) + t w = y for t = ratio, entry by entry.

    It is differentiable in y and t. The slope of sigma lies in [0, 1], so that of the
    left side lies between t and 1. This gives the first bracket.
    """
    limits = jnp.finfo(y.dtype)
    # A ratio of 0 leaves no bracket. The least one changes sigma(w) by less than
    # rounding. Adding it keeps the derivative in t.
    least = float(limits.eps) ** 2
    ratio = ratio + jnp.where(ratio < least, least, 0.0)
    farthest = 0.25 * float(limits.max)

    def residual(w: Array) -> Array:
        # (1 - t) sigma(w) + t w would cancel where t is large
        return ratio * rest(w) + (function(w) - y)

    def solve(residual: Callable[[Array], Array], start: Array) -> Array:
        # w lies between the solutions for slopes 1 and t.
        gap = -residual(jnp.zeros_like(start))
        far = jnp.clip(gap / ratio, -farthest, farthest)
        lower = jnp.minimum(gap, far)
        upper = jnp.maximum(gap, far)
        precision = 4.0 * jnp.finfo(start.dtype).eps

        def unfinished(state: tuple) -> Array:
            count, _, _, w, change = state
            return (count < 200) & jnp.any(change > precision * (1.0 + jnp.abs(w)))

        def improve(state: tuple) -> tuple:
            count, lower, upper, w, change = state
            value, slope = jax.jvp(residual, (w,), (jnp.ones_like(w),))
            lower = jnp.where(value <= 0.0, w, lower)
            upper = jnp.where(value >= 0.0, w, upper)

            # Newton's step if it stays inside and at most half as long as the last one,
            # else the middle of the bracket.
            newton = w - value / slope
            inside = (newton >= lower) & (newton <= upper)
            halves = jnp.abs(newton - w) <= 0.5 * change
            following = jnp.where(inside & halves, newton, 0.5 * (lower + upper))
            return count + 1, lower, upper, following, jnp.abs(following - w)

        middle = 0.5 * (lower + upper)
        state = 0, lower, upper, middle, jnp.full_like(middle, jnp.inf)
        return jax.lax.while_loop(unfinished, improve, state)[3]

    def tangent_solve(linear: Callable[[Array], Array], value: Array) -> Array:
        return value / linear(jnp.ones_like(value))

    return jax.lax.custom_root(residual, y, solve, tangent_solve)
