"""Regularisers of equilibria, and the layer that each appends to a step."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, one_of, require
from unroll_jax.descent import Descent, Params
from unroll_jax.energies.equilibrium.deep_opteq import residual_energy
from unroll_jax.numerics import compute_dtype, shrink

__all__ = [
    "REGULARISERS",
    "Regulariser",
    "absolute",
    "decorrelation",
    "half_square",
    "inverse_square",
    "regularised",
]


class Regulariser(NamedTuple):
    """A function R of one equilibrium. Smaller values are preferred.

    There are two ways to use it. `regularised` appends a layer, which changes the
    problem. For R convex and smooth the solver ``averaged(R.value,
    smoothness=R.smoothness)`` chooses an equilibrium of least R.

    Attributes:
      value: one state, of any shape, to R.
      prox: ``(z, step_size) -> argmin_u R(u) + |u - z|^2 / (2 step_size)`` on states
        with any batch axes. None if there is none.
      smoothness: a Lipschitz constant of the gradient, or None if it has none.
      convex: whether R is convex, which Theorem 4 and nonexpansive layers need.
      couples_examples: True if R takes a batch (n, m), not one example.

    Example:
      >>> import jax.numpy as jnp
      >>> prox = lambda z, step_size: z - step_size
      >>> total = Regulariser(jnp.sum, prox, smoothness=0.0, convex=True)
      >>> total.prox(jnp.array([3.0, 1.0]), 0.5).tolist()
      [2.5, 0.5]
    """

    value: Callable[[Float[Array, "..."]], Float[Array, ""]]
    prox: Callable[[Float[Array, "..."], float], Float[Array, "..."]] | None
    smoothness: float | None
    convex: bool
    couples_examples: bool = False


@checked(strength=POSITIVE)
def half_square(strength: float = 1.0) -> Regulariser:
    """R = strength / 2 |z|^2. Its prox scales the state down.

    ``strength`` is positive, unitless.

    Source: Xie et al. (2021), A.1, first regulariser.

    Example:
      >>> import jax.numpy as jnp
      >>> half_square(2.0).prox(jnp.array([3.0, -6.0]), 1.0).tolist()  # z / (1 + 2)
      [1.0, -2.0]
    """
    return Regulariser(
        value=lambda z: 0.5 * strength * jnp.sum(z**2),
        prox=lambda z, step_size: z / (1.0 + step_size * strength),
        smoothness=strength,
        convex=True,
    )


@checked(strength=POSITIVE)
def absolute(strength: float = 1.0) -> Regulariser:
    """R = strength |z|_1. Its prox is the soft threshold.

    ``strength`` is positive, in units of the state.

    Source: the shrinkage of Xie et al. (2021), Section 4.1. Its prox, Parikh and Boyd
    (2014), Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> absolute(2.0).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
      [1.0, 0.0]
    """
    return Regulariser(
        value=lambda z: strength * jnp.sum(jnp.abs(z)),
        prox=lambda z, step_size: shrink(z, step_size * strength),
        smoothness=None,
        convex=True,
    )


@checked(strength=POSITIVE, epsilon=POSITIVE)
def inverse_square(strength: float = 1.0, *, epsilon: float = 1.0) -> Regulariser:
    """R = strength / (|z|^2 + epsilon), which pushes states away from 0.

    It is not convex. Both numbers are positive.

    Source: Xie et al. (2021), A.1. Theorem 4 does not cover it, and z - g grad R(z) is
    not nonexpansive.

    Example:
      >>> import jax.numpy as jnp
      >>> regulariser = inverse_square()
      >>> float(regulariser.value(jnp.zeros(3))), float(regulariser.value(jnp.ones(3)))
      (1.0, 0.25)
    """
    return Regulariser(
        value=lambda z: strength / (jnp.sum(z**2) + epsilon),
        prox=None,
        # the curvature at 0, the largest
        smoothness=2.0 * strength / epsilon**2,
        convex=False,
    )


@checked(strength=POSITIVE)
def decorrelation(strength: float = 1.0) -> Regulariser:
    r"""R = strength / 2 |D Z Z^T D - I|_F^2, which is not convex.

    It is half the squared correlations between features over a batch. Z has a row per
    feature and a column per example, and D = diag(1 / |z_i|) with z_i its rows. A
    feature that is 0 in the whole batch correlates with nothing. ``value`` takes the
    batch (n, m), with examples as rows.

    Source: Xie et al. (2021), A.1, which asks for convex R.

    Example:
      >>> import jax.numpy as jnp
      >>> value = decorrelation().value
      >>> same, apart = jnp.array([[1.0, 2.0], [1.0, 2.0]]), jnp.eye(2)
      >>> round(float(value(same)), 4), round(float(value(apart)), 4)
      (1.0, 0.0)
    """

    def value(z: Array) -> Array:
        square = jnp.sum(z**2, axis=0)
        alive = square > 0.0
        unit = z * jnp.where(alive, jax.lax.rsqrt(jnp.where(alive, square, 1.0)), 0.0)
        # Z^T Z and Z Z^T have the same sum of squares. It forms the smaller one.
        gram = unit.T @ unit if z.shape[1] <= z.shape[0] else unit @ unit.T
        diagonal = jnp.sum(unit**2, axis=0)
        return 0.5 * strength * (jnp.sum(gram**2) - jnp.sum(diagonal**2))

    return Regulariser(
        value=value, prox=None, smoothness=None, convex=False, couples_examples=True
    )


#: Regularisers of equilibria by name, for `regularised`.
REGULARISERS: dict[str, Callable[..., Regulariser]] = {
    "absolute": absolute,
    "decorrelation": decorrelation,
    "half_square": half_square,
    "inverse_square": inverse_square,
}


@checked(step_size=POSITIVE, form=one_of(("prox", "gradient")))
def regularised(
    descent: Descent,
    regulariser: Regulariser,
    *,
    step_size: float = 1.0,
    form: str = "prox",
) -> Descent:
    r"""A step with one more layer behind it, made of a regulariser.

    .. math:: z' = T_R(T(z)) , \qquad
              T_R = prox_{g R} \quad \text{or} \quad T_R = I - g \nabla R , \qquad
              E(z) = \tfrac12 |T_R(T(z)) - z|^2 .

    No step raises E if T is nonexpansive, R convex and, for the second form,
    :math:`g \le 2 / L_R`. A layer of :math:`a f + (1 - a) I` with T_R = prox behind it
    has the equilibrium

    .. math:: argmin_z \; a E_{opteq}(z) + g R(z) , \qquad
              E_{opteq}(z) = \min_u \phi(u) + \tfrac12 |u - z|^2 .

    Args:
      descent: the step T, of `opteq`, `deep_opteq` or any other whose energy is one
        number per example.
      regulariser, step_size, form: R, g > 0, and "prox" or "gradient".

    Returns:
      A `Descent` with the parameters of ``descent``.

    Source: Xie et al. (2021), Section 4.1. The paper adds R(z_L) to the objective Phi.
    In fact the layer adds R(z_{L+1}), of a separate block. The objective of a single
    layer is :math:`M^1_\phi + R`, not :math:`\phi + R`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import opteq
      >>> layer = opteq(2, 3)
      >>> params, z = layer.init(jax.random.key(0)), jnp.ones(2)
      >>> small = regularised(layer, half_square(1.0))  # halves the layer's output
      >>> halved, step = small.step(params, z, None), layer.step(params, z, None)
      >>> bool(jnp.allclose(2.0 * halved, step))
      True
    """
    prox = regulariser.prox
    smoothness = regulariser.smoothness
    if form == "prox":
        allowed = 'be "gradient" for a regulariser without a prox'
        require(prox, "form", allowed, repr(form))
    elif regulariser.convex:
        fits = smoothness and step_size <= 2.0 / smoothness
        got = f"step_size={step_size} and smoothness={smoothness}"
        allowed = 'be at most 2 / smoothness for the form "gradient"'
        require(fits, "step_size", allowed, got)

    def append(z: Array, batch: tuple[int, ...]) -> Array:
        wide = z.astype(compute_dtype(z))
        if form == "prox":
            assert prox is not None
            return prox(wide, step_size).astype(z.dtype)
        slope = _slope(regulariser, wide, batch)
        return (wide - step_size * slope).astype(z.dtype)

    def step(params: Params, z: Array, x: Any = None) -> Array:
        batch = jax.eval_shape(descent.energy, params, z, x).shape
        return append(descent.step(params, z, x), batch)

    energy = residual_energy(step, descent.energy)
    return Descent(descent.init, energy, step, check=descent.check)


def _slope(regulariser: Regulariser, z: Array, batch: tuple[int, ...]) -> Array:
    if regulariser.couples_examples:
        rows = z.reshape(math.prod(batch), -1)
        return jax.grad(regulariser.value)(rows).reshape(z.shape)
    examples = z.reshape(-1, *z.shape[len(batch) :])
    return jax.vmap(jax.grad(regulariser.value))(examples).reshape(z.shape)
