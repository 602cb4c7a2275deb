"""A forward pass of any `Descent`, layer by layer: guaranteed to descend, descended all the same, or rose."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, checked
from unroll_jax.certificates.outcome import (
    Outcome,
    Smoothness,
    certificate_lines,
    check_smoothness,
    evaluate,
    judge_layers,
    outcome_of,
)
from unroll_jax.certificates.per_example import gradient, inner
from unroll_jax.descent import Descent, Params
from unroll_jax.energies.tokens import as_anchor, blank_absent
from unroll_jax.steps import check_step, settle, vary_like
from unroll_jax.summaries import plot_layers, summary

__all__ = ["StepCertificate", "certify_descent"]


ROUNDING = 1e-3  # share by which the measured curvature, a difference of slopes, may exceed a smoothness that holds


class StepCertificate(NamedTuple):
    """The verdict of `certify_descent` on each layer and example, and the numbers it rests on.

    Attributes:
      outcome: (num_layers, *batch), values of `Outcome`; GUARANTEED needs ``smoothness``.
      by_smoothness: whether ``smoothness <= limit``, so that the energy cannot rise; False where none was given, or
        where the curvature refutes it.
      by_curvature: whether ``curvature <= limit``: evidence from the points that were looked at, no proof.
      energy: (num_layers + 1, *batch), before the first layer and after each.
      slope: <grad E(y), y' - y>, negative where the step goes downhill.
      curvature: the largest growth of the slope towards y', over the distance squared, at the points looked at.
      limit: -2 <grad E(y), y' - y> / |y' - y|^2, the largest smoothness with which descent is sure; infinite at a fixed
        point.

    Example: see `certify_descent`.
    """

    outcome: Int[Array, "layers *batch"]
    by_smoothness: Bool[Array, "layers *batch"]
    by_curvature: Bool[Array, "layers *batch"]
    energy: Float[Array, "layers_and_one *batch"]
    slope: Float[Array, "layers *batch"]
    curvature: Float[Array, "layers *batch"]
    limit: Float[Array, "layers *batch"]

    def __repr__(self) -> str:
        return summary(self, lambda: certificate_lines(self.outcome, self.energy))

    def plot(self, axes: Any = None) -> Any:
        """Draws the energy by layer and marks the layers that rose for some example; returns the matplotlib axes."""
        return plot_layers(self.energy, label="energy", axes=axes, marks=self.outcome == Outcome.ROSE)


@checked(num_layers=at_least(1), num_points=at_least(1))
def certify_descent(
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
) -> StepCertificate:
    r"""Runs ``num_layers`` steps y' of a descent and reports of each whether its energy E had to fall.

    If E grows from y towards y' no faster than a quadratic with constant L, as every L-smooth energy does,

    .. math:: E(y') \le E(y) + \langle \nabla E(y), y' - y \rangle + \tfrac L2 |y' - y|^2 ,

    so that E cannot rise if :math:`L \le -2 \langle \nabla E(y), y' - y \rangle / |y' - y|^2`. Where no L is known, the
    growth of the slope is measured at points between y and y', which may refute descent and cannot prove it.

    Args:
      descent: the layer: an energy and a step, which need not come from this library.
      params, y, x, num_layers, tied, tolerance: as in `certify_alternating`.
      smoothness: L, a number or one per example, or a function ``(params, y, x) -> (*batch,)`` of the state before the
        layer; None if it is not known.
      num_points: how many points of each step, y' among them, the slope is measured at, at least 1.

    Returns:
      A `StepCertificate`.

    Raises:
      ValueError: if an option is out of range, or the step changes the state's structure, shapes or dtypes.
      TypeError: if smoothness is not a number, array or function, or a leaf of y not an array.

    Source: the descent lemma, Nesterov (2018), Lectures on Convex Optimization, Lemma 1.2.3.

    Example:
      >>> import jax, unroll_jax
      >>> layer = unroll_jax.attention(form="softmax")
      >>> params, tokens = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (8, 5, 3))
      >>> certificate: StepCertificate = certify_descent(layer, params, tokens, num_layers=4)
      >>> certificate.outcome.shape, bool(certificate.by_curvature.all())
      ((4, 8), True)
    """
    check_smoothness(smoothness=smoothness)
    _check_energy(descent, params if tied else jax.tree.map(lambda leaf: leaf[0], params), y, x)
    present = as_anchor(x).present

    def layer(y: Any, stacked: Params) -> tuple[Any, StepCertificate]:
        layer_params = params if tied else stacked
        after = descent.step(layer_params, y, x)
        check_step(y, after)
        before_energy, after_energy = (descent.energy(layer_params, state, x) for state in (y, after))
        batch_ndim, move = before_energy.ndim, jax.tree.map(jnp.subtract, after, y)

        def slope_at(share: Array) -> Array:
            point = jax.tree.map(lambda state, change: state + share * change, y, move)
            return inner(gradient(lambda state: descent.energy(layer_params, state, x), point), move, batch_ndim)

        shares = jnp.linspace(0.0, 1.0, num_points + 1, dtype=before_energy.dtype)
        slopes = jax.lax.map(slope_at, shares)
        length = inner(move, move, batch_ndim)
        still = length == 0.0
        width = shares[1:].reshape(-1, *(1,) * batch_ndim) * jnp.where(still, 1.0, length)
        curvature = jnp.max((slopes[1:] - slopes[0]) / width, axis=0)
        limit = jnp.where(still, jnp.inf, -2.0 * slopes[0] / jnp.where(still, 1.0, length))
        known = jnp.zeros_like(still)
        if smoothness is not None:
            constant = evaluate(smoothness, layer_params, y, x, limit)
            known = (slopes[0] <= 0.0) & (constant <= limit) & (curvature <= constant * (1.0 + ROUNDING))
        return after, StepCertificate(
            outcome=outcome_of(before_energy, after_energy, known, tolerance),
            by_smoothness=known,
            by_curvature=curvature <= limit,
            energy=before_energy,
            slope=slopes[0],
            curvature=curvature,
            limit=limit,
        )

    start = vary_like(jax.tree.map(lambda leaf: blank_absent(jnp.asarray(leaf), present), y), (params, x))
    first = params if tied else jax.tree.map(lambda leaf: leaf[0], params)
    start = settle(lambda y: descent.step(first, y, x), start)
    return judge_layers(layer, descent.energy, params, start, x, num_layers=num_layers, tied=tied)


def _check_energy(descent: Descent, params: Params, y: Any, x: Any) -> None:
    """Calls the energy once on shapes alone, so that a forgotten x is told as such."""
    try:
        jax.eval_shape(descent.energy, params, y, x)
    except (TypeError, AttributeError) as error:
        if x is not None:
            raise
        message = (
            "the energy cannot be computed with x=None; pass the layer's input, as in certify(descent, params, y, x)"
        )
        raise TypeError(f"{message} ({error})") from error
