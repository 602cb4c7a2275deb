"""Certificates of a forward pass: layers guaranteed to descend, and those that rose."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, check, checked
from unroll_jax.certificates.per_example import gradient
from unroll_jax.descent import Descent, Params
from unroll_jax.numerics import compute_dtype
from unroll_jax.placement import settle, vary_like
from unroll_jax.spectral import inner, norm, unit
from unroll_jax.step_checks import check_step, first_layer
from unroll_jax.summaries import energy_lines, plot_layers, summary

__all__ = ["Certificate", "Outcome", "certify"]

Smoothness = (
    float
    | Float[Array, "*batch"]
    | Callable[[Params, Any, Any], Float[Array, "*batch"]]
)

# The measured curvature is a difference of slopes. It may exceed a smoothness that
# holds by this share, which is rounding.
ROUNDING = 1e-3


class Outcome(enum.IntEnum):
    """The outcome of a layer for its energy.

    GUARANTEED: it did not rise, and could not. DESCENDED: it did not rise,
    unguaranteed. ROSE: it rose or is NaN.

    Example:
      >>> [outcome.name for outcome in Outcome]
      ['GUARANTEED', 'DESCENDED', 'ROSE']
    """

    GUARANTEED = 0
    DESCENDED = 1
    ROSE = 2


class Certificate(NamedTuple):
    """The verdict of `certify` on each layer and example, and the numbers it rests on.

    Attributes:
      outcome: (num_layers, *batch), values of `Outcome`. A rise counts even if
        guaranteed not to be: L was too small.
      energy: (num_layers + 1, *batch), before the first layer and after each.
      slope: <grad h(y), y' - y> + phi(y') - phi(y), negative where the step goes
        downhill.
      limit: -2 slope / |y' - y|^2, the largest smoothness for which descent is sure. It
        is infinite at a fixed point.
      smoothness: L as given, NaN if it was not.
      curvature: the largest growth of the slope of h towards y', over the distance
        squared, at the points measured. Up to ``limit`` it is evidence of descent, but
        no proof. Above ``smoothness`` it shows that ``smoothness`` is too small.

    Example: see `certify`.
    """

    outcome: Int[Array, "layers *batch"]
    energy: Float[Array, "layers_and_one *batch"]
    slope: Float[Array, "layers *batch"]
    limit: Float[Array, "layers *batch"]
    smoothness: Float[Array, "layers *batch"]
    curvature: Float[Array, "layers *batch"]

    def __repr__(self) -> str:
        return summary(self, self._lines)

    def _lines(self) -> list[str]:
        outcome = np.asarray(self.outcome)
        shares = []
        for name, value in Outcome.__members__.items():
            shares.append(f"{name.lower()} {np.mean(outcome == value):.1%}")

        allowed = np.asarray(self.smoothness) * (1.0 + ROUNDING)
        refuted = np.mean(np.asarray(self.curvature) > allowed)
        if refuted:
            words = "curvature above smoothness, which is too small"
            shares.append(f"{words}, {refuted:.1%}")
        if np.all(np.isnan(self.smoothness)):
            shares.append("no smoothness was given")

        size, run, rises = energy_lines(self.energy, outcome == Outcome.ROSE)
        return [size, f"steps: {', '.join(shares)}", run, rises]

    def plot(self, axes: Any = None) -> Any:
        """Draws the energy by layer, marks rises, and returns the matplotlib axes."""
        return plot_layers(
            self.energy, label="energy", axes=axes, marks=self.outcome == Outcome.ROSE
        )


@checked(num_layers=at_least(1), num_points=at_least(1), tolerance=at_least(0.0))
def certify(
    descent: Descent,
    params: Params,
    y: Any,
    x: Any = None,
    *,
    smoothness: Smoothness | None = None,
    num_layers: int = 1,
    tied: bool = True,
    num_points: int = 8,
    tolerance: float | None = None,
) -> Certificate:
    r"""Runs ``num_layers`` steps and reports whether each had to lower the energy.

    The energy is :math:`h + \phi`, with h = ``descent.smooth``, or h. If h grows from y
    to y' no faster than an L-smooth function,

    .. math:: (h + \phi)(y') \le (h + \phi)(y)
              + \langle \nabla h(y), y' - y \rangle + \phi(y') - \phi(y)
              + \tfrac L2 |y' - y|^2 .

    The energy cannot rise if the last three terms add up to 0 or less. No convexity is
    needed. If no L is known, the growth of the slope is measured at points between y
    and y'. This may refute descent, but not prove it.

    For the steps of `alternating` this condition follows from the conditions of Theorem
    4.1, of Theorem 5.1 (without its factor of :math:`\sqrt 2`, for any convex phi) and
    of the docstring of `transformer`. To certify a transformer, see the example: the
    activation counts as phi, and L is for the two smooth halves.

    Args:
      descent: the layer: an energy and a step, which need not come from this library.
      params: parameters of a layer if ``tied``, else stacked along a leading axis.
      y: the state before the first layer.
      x: the input of energy and step, or None. Tokens absent from an `Anchor` do not
        count: energy and step must leave them out.
      smoothness: L, a number or one per example, or a function
        ``(params, y, x) -> (*batch,)`` of the state before the layer, such as
        `pairwise_smoothness` and `quadratic_smoothness`. None if unknown. A guarantee
        is as good as L.
      num_layers, tied: number of steps, at least 1, and whether they share ``params``.
      num_points: number of points of each step where the slope is measured, at least 1.
        y' is one of them.
      tolerance: relative rise of the energy that counts as rounding. None is 16 machine
        epsilons.

    Raises:
      ValueError: if an option or the shape of smoothness does not fit, or the step
        changes structure, shapes or dtypes.
      TypeError: if descent is no `Descent`, smoothness not a number, array or function,
        or a leaf of y not an array.

    Source: the descent lemma, Nesterov (2018), Lectures on Convex Optimization, Lemma
    1.2.3, here with phi. Yang, Huang, Wipf (2022), proofs C.1 and D, for alternating
    steps.

    Example:
      >>> import jax, unroll_jax
      >>> from unroll_jax.certificates import pairwise_smoothness
      >>> from unroll_jax.energies import transformer_parts
      >>> parts = transformer_parts(4, step_size=0.05)
      >>> f, g = parts.attention, parts.feedforward
      >>> options = {"g_step_size": parts.step_size, "phi": parts.phi}
      >>> layer = unroll_jax.alternating(f.energy, g.energy, f_step=f.step, **options)
      >>> params = jax.jit(f.init)(jax.random.key(0))
      >>> y = 5.0 * jax.random.uniform(jax.random.key(1), (8, 6, 4))
      >>> of_attention = pairwise_smoothness()
      >>> L = lambda params, y, x: of_attention(params, y, x) + 1.95  # of f and of g
      >>> certificate = certify(layer, params, y, smoothness=L, num_layers=3)
      >>> certificate.outcome.shape, certificate.energy.shape
      ((3, 8), (4, 8))
    """
    first = first_layer(params, num_layers, tied=tied)
    _check(descent, first, y, x, smoothness)

    def layer(y: Any, stacked: Params) -> tuple[Any, Certificate]:
        layer_params = params if tied else stacked
        return _judge(descent, layer_params, y, x, smoothness, num_points, tolerance)

    start = vary_like(jax.tree.map(jnp.asarray, y), (params, x))
    start = settle(lambda y: descent.step(first, y, x), start)
    stacked = None if tied else params
    last, verdicts = jax.lax.scan(layer, start, stacked, length=num_layers)

    # The last energy is computed in the dtype of those before it.
    last = jax.tree.map(lambda leaf: leaf.astype(compute_dtype(leaf)), last)
    last_params = params if tied else jax.tree.map(lambda leaf: leaf[-1], params)
    end = descent.energy(last_params, last, x)
    return verdicts._replace(energy=jnp.concatenate([verdicts.energy, end[None]]))


def _judge(
    descent: Descent,
    params: Params,
    y: Any,
    x: Any,
    smoothness: Any,
    num_points: int,
    tolerance: float | None,
) -> tuple[Any, Certificate]:
    """Returns the state after a layer and its verdict, computed in float32 at least."""
    smooth = descent.smooth or descent.energy
    stepped = descent.step(params, y, x)
    check_step(y, stepped)
    y, after = jax.tree.map(lambda leaf: leaf.astype(compute_dtype(leaf)), (y, stepped))
    before_energy = descent.energy(params, y, x)
    after_energy = descent.energy(params, after, x)

    # Slopes are along the unit direction: squares of short or long steps leave the
    # range of float32.
    batch_ndim = before_energy.ndim
    move = jax.tree.map(_movement, y, after)
    direction = unit(move, batch_ndim)
    length = norm(move, batch_ndim)
    still = length == 0.0
    length = jnp.where(still, 1.0, length)

    def slope_at(t: Array) -> Array:
        point = jax.tree.map(lambda state, change: state + t * change, y, move)
        gradients = gradient(lambda state: smooth(params, state, x), point)
        return inner(gradients, direction, batch_ndim)

    times = jnp.linspace(0.0, 1.0, num_points + 1, dtype=before_energy.dtype)
    slopes = jax.lax.map(slope_at, times)
    slope = slopes[0]
    distances = times[1:].reshape(-1, *(1,) * batch_ndim) * length
    curvature = jnp.max((slopes[1:] - slope) / distances, axis=0)

    # phi is the rest of the energy.
    if descent.smooth is not None:
        phi_before = before_energy - smooth(params, y, x)
        phi_after = after_energy - smooth(params, after, x)
        slope = slope + (phi_after - phi_before) / length
    limit = jnp.where(still, jnp.inf, -2.0 * slope / length)

    constant = _smoothness(smoothness, params, y, x, limit)
    downhill = still | (slope <= 0.0)
    consistent = curvature <= constant * (1.0 + ROUNDING)  # False for NaN
    guaranteed = downhill & (constant <= limit) & consistent
    outcome = _outcome(before_energy, after_energy, guaranteed, tolerance)
    return stepped, Certificate(
        outcome, before_energy, slope * length, limit, constant, curvature
    )


def _smoothness(given: Any, params: Params, y: Any, x: Any, like: Array) -> Array:
    """Returns L of each example, shaped as ``like``, or NaN if it is not given."""
    if given is None:
        return jnp.full_like(like, jnp.nan)
    constant = given(params, y, x) if callable(given) else given
    constant = jnp.asarray(constant, like.dtype)
    if constant.shape not in ((), like.shape):
        raise ValueError(
            f"smoothness must be a number or one per example, {like.shape}, got shape"
            f" {constant.shape}"
        )
    return jnp.broadcast_to(constant, like.shape)


def _movement(before: Array, after: Array) -> Array:
    """Returns after - before, 0 where an entry stays, even at NaN or infinity.

    Padding may hold these. A mask cannot say where it is, because a wrapped step or an
    x of keys gives masks another meaning. A NaN in a real token makes the energy NaN.
    """
    stays = (after == before) | (jnp.isnan(after) & jnp.isnan(before))
    return jnp.where(stays, 0.0, after - before)


def _outcome(
    before: Array, after: Array, guaranteed: Array, tolerance: float | None
) -> Array:
    if tolerance is None:
        tolerance = 16 * float(jnp.finfo(before.dtype).eps)
    slack = tolerance * jnp.where(jnp.isfinite(before), jnp.abs(before), 0.0)
    fell = after <= before + slack  # False where an energy is NaN
    descended = jnp.where(guaranteed, int(Outcome.GUARANTEED), int(Outcome.DESCENDED))
    return jnp.where(fell, descended, int(Outcome.ROSE)).astype(jnp.int32)


def _check(descent: Any, params: Params, y: Any, x: Any, smoothness: Any) -> None:
    """Checks the layer and its smoothness.

    It calls the energy on shapes only, to name a forgotten x.
    """
    if not isinstance(descent, Descent):
        raise TypeError(
            "descent must be a Descent(init, energy, step), got"
            f" {type(descent).__name__}"
        )
    if isinstance(smoothness, float | int):
        check("smoothness", smoothness, at_least(0.0))
    elif not (
        smoothness is None or callable(smoothness) or hasattr(smoothness, "dtype")
    ):
        raise TypeError(
            f"smoothness must be a number, an array or a function, got {smoothness!r}"
        )
    try:
        jax.eval_shape(descent.energy, params, y, x)
    except (TypeError, AttributeError) as error:
        if x is not None:
            raise
        message = "the energy cannot be computed with x=None; pass the layer's input"
        raise TypeError(
            f"{message}, as in certify(descent, params, y, x) ({error})"
        ) from error
