"""A forward pass, layer by layer: guaranteed to descend, descended all the same, or rose."""

from collections.abc import Callable
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.alternation import alternating, gradient_of
from unroll_jax.arguments import at_least, checked
from unroll_jax.certificates.outcome import (
    Energy,
    Outcome,
    Smoothness,
    certificate_lines,
    check_smoothness,
    evaluate,
    judge_layers,
    outcome_of,
)
from unroll_jax.certificates.steps import StepCertificate, certify_descent
from unroll_jax.descent import Descent, Params
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal, prox_of_present
from unroll_jax.energies.tokens import as_anchor, blank_absent
from unroll_jax.spectral import norm
from unroll_jax.steps import vary_like
from unroll_jax.summaries import plot_layers, summary

__all__ = ["Certificate", "Outcome", "certify", "certify_alternating"]

Move = Callable[[Params, Any, Any], Any]


class Certificate(NamedTuple):
    """The verdict of `certify_alternating` on each layer and example, and the numbers it rests on.

    Attributes:
      outcome: (num_layers, *batch), values of `Outcome`. A rise counts as one even under a guarantee: it then tells
        that a smoothness was too small.
      by_theorem: whether ``delta <= constant`` and a2 L_h <= 1: Theorem 4.1 or 5.1, known before the step is taken.
      by_noise: whether ``noise <= noise_limit``: the sharper condition, known once the step is taken.
      energy: (num_layers + 1, *batch), h + phi before the first layer and after each.
      delta: |grad f| / |grad h| before the layer.
      constant: C, or with phi :math:`C \\sqrt{1 - kappa}`; kappa is measured at the point.
      noise: :math:`a_2 |Delta| / |y' - y|`.
      noise_limit: :math:`1 - a_2 L_h / 2`.
      smoothness_g: L_g as used.
      smoothness_h: L_h as used.

    Example: see `certify_alternating`.
    """

    outcome: Int[Array, "layers *batch"]
    by_theorem: Bool[Array, "layers *batch"]
    by_noise: Bool[Array, "layers *batch"]
    energy: Float[Array, "layers_and_one *batch"]
    delta: Float[Array, "layers *batch"]
    constant: Float[Array, "layers *batch"]
    noise: Float[Array, "layers *batch"]
    noise_limit: Float[Array, "layers *batch"]
    smoothness_g: Float[Array, "layers *batch"]
    smoothness_h: Float[Array, "layers *batch"]

    def __repr__(self) -> str:
        return summary(self, lambda: certificate_lines(self.outcome, self.energy))

    def plot(self, axes: Any = None) -> Any:
        """Draws the energy by layer and marks the layers that rose for some example; returns the matplotlib axes."""
        return plot_layers(self.energy, label="energy", axes=axes, marks=self.outcome == Outcome.ROSE)


@overload
def certify(descent: Descent, params: Params, y: Any, x: Any = None, /, **options: Any) -> StepCertificate:
    """See `certify_descent`."""


@overload
def certify(f: Energy, g: Energy, params: Params, y: Any, x: Any = None, /, **options: Any) -> Certificate:
    """See `certify_alternating`."""


def certify(*arguments: Any, **options: Any) -> Certificate | StepCertificate:
    """Runs the layers of a model and reports of each whether descent was guaranteed, and whether the energy fell.

    ``certify(descent, params, y, x, ...)`` is `certify_descent`, for any energy and its step;
    ``certify(f, g, params, y, x, ...)`` is `certify_alternating`, for the alternating steps of a transformer.

    Args:
      *arguments: those of the one or of the other; the type of the first decides.
      **options: see there.

    Returns:
      A `StepCertificate`, or a `Certificate`.

    Raises:
      TypeError: if arguments are missing.
      ValueError: see there.

    Example:
      >>> import jax, unroll_jax
      >>> layer = unroll_jax.attention()
      >>> params, tokens = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (8, 5, 3))
      >>> certify(layer, params, tokens, num_layers=2).energy.shape
      (3, 8)
    """
    of_descent = (bool(arguments) and isinstance(arguments[0], Descent)) or "descent" in options
    if not of_descent and "smoothness_f" not in options:
        got = type(arguments[0]).__name__ if arguments else "nothing"
        raise TypeError(
            f"certify takes a Descent, or two energies f and g with smoothness_f and the rest; got {got}. "
            "Descent(init, energy, step) makes a layer of an energy and a step"
        )
    return (certify_descent if of_descent else certify_alternating)(*arguments, **options)


@checked(num_layers=at_least(1))
def certify_alternating(
    f: Energy,
    g: Energy,
    params: Params,
    y: Any,
    x: Any = None,
    *,
    smoothness_f: Smoothness,
    smoothness_g: Smoothness,
    g_step_size: float,
    f_step_size: float | None = None,
    f_step: Move | None = None,
    phi: str | Proximal | None = None,
    f_gradient: Move | None = None,
    g_gradient: Move | None = None,
    num_layers: int = 1,
    tied: bool = True,
    smoothness_h: Smoothness | None = None,
    tolerance: float | None = None,
) -> Certificate:
    r"""Runs ``num_layers`` steps of `alternating` and reports of each whether descent of h + phi was guaranteed.

    With u, v and y' as in `alternating` and the noise :math:`\Delta` defined by
    :math:`v = y - a_2 (\nabla h(y) - \Delta)`, one of these suffices:

    *Theorem*, from y alone. With :math:`a_2 L_h \le 1`,

    .. math:: | a_2 \nabla f(y) + u - y | + a_2 L_g |u - y| \le | y - prox_{a_2 \phi}(y - a_2 \nabla h(y)) | .

    For a gradient step on f the left side is :math:`(|a_2 - a_1| + a_1 a_2 L_g) |\nabla f(y)|`. Without phi the right
    side is :math:`a_2 |\nabla h(y)|`, and the condition is Theorem 4.1, :math:`\delta \le C`. With phi the right side
    is :math:`a_2 \sqrt{1 - \kappa} |\nabla h(y)|` for a kappa measured here, and the condition is Theorem 5.1,
    :math:`\delta \le C \sqrt{1 - \kappa}`, for any convex phi.

    *Noise*, from y and y'. :math:`a_2 |\Delta| \le (1 - a_2 L_h / 2) |y' - y|`, again for any convex phi. This is the
    condition in the docstring of `transformer`, and needs no :math:`L_g`.

    Both need of L_h that :math:`h(y') \le h(y) + \nabla h(y)^T (y' - y) + L_h |y' - y|^2 / 2`, as L_f + L_g does; the
    theorem also needs that L_g is a Lipschitz constant of the gradient of g. Convexity of f or g is not needed. A
    guarantee is as good as these numbers: see `pairwise_smoothness` and `quadratic_smoothness`.

    A `transformer` is certified through `transformer_parts`, as below; its layer norm, if any, belongs to f: add its
    energy, and let f_step normalise before it attends.

    Args:
      f, g, phi, f_gradient, g_gradient: as in `alternating`.
      params: parameters of a layer if ``tied``, else stacked along a leading axis.
      y: the state before the first layer.
      x: the input of f and g, or None. Tokens absent from an `Anchor` do not count: f and g must leave them
        alone, as those of the library do, and the certificate is that of the tokens that are there.
      smoothness_f: L_f, a number or one per example, or a function ``(params, y, x) -> (*batch,)`` of the state before
        the layer.
      smoothness_g: L_g, likewise.
      g_step_size, f_step_size, f_step: a2, a1, and the step on f instead of a gradient step.
      num_layers: how many steps, at least 1.
      tied: whether all layers share ``params``.
      smoothness_h: L_h, likewise; None is L_f + L_g.
      tolerance: a rise by less than this share of the energy is put down to rounding; None is 16 machine epsilons.

    Returns:
      A `Certificate`.

    Raises:
      ValueError: if a step size or smoothness is out of range, or both or neither of f_step_size and f_step are given.
      TypeError: if a smoothness is not a number, array or function, or a leaf of y not an array.

    Source: Yang, Huang, Wipf (2022), Theorems 4.1 and 5.1, proofs C.1 and D. Eq. 57 is used without the factor 2 that
    its last line loses, and T(kappa) is replaced by the length of the proximal step, which Lemma D.3 bounds by it.

    Example:
      >>> import jax, unroll_jax
      >>> from unroll_jax.certificates import pairwise_smoothness
      >>> from unroll_jax.energies import transformer_parts
      >>> parts = transformer_parts(4, step_size=0.05)
      >>> params, y = parts.attention.init(jax.random.key(0)), 5.0 * jax.random.uniform(jax.random.key(1), (8, 6, 4))
      >>> certificate: Certificate = certify_alternating(
      ...     parts.attention.energy, parts.feedforward.energy, params, y, f_step=parts.attention.step, phi=parts.phi,
      ...     g_step_size=parts.step_size, smoothness_f=pairwise_smoothness(), smoothness_g=1.95, num_layers=3)
      >>> certificate.outcome.shape
      (3, 8)
    """
    check_smoothness(smoothness_f=smoothness_f, smoothness_g=smoothness_g, smoothness_h=smoothness_h)
    system = alternating(f, g, g_step_size=g_step_size, f_step_size=f_step_size, f_step=f_step, phi=phi)
    proximal = None if phi is None else resolve_proximal(phi, g_step_size)
    slope_f, slope_g = f_gradient or gradient_of(f), g_gradient or gradient_of(g)
    present = as_anchor(x).present

    def prox(v: Any) -> Any:
        return v if proximal is None else prox_of_present(proximal, v, g_step_size, present)

    def layer(y: Any, stacked: Params) -> tuple[Any, Certificate]:
        layer_params = params if tied else stacked
        of_f = slope_f(layer_params, y, x)
        of_h = jax.tree.map(jnp.add, of_f, slope_g(layer_params, y, x))
        u = f_step(layer_params, y, x) if f_step is not None else _add(y, -f_step_size, of_f)  # pyright: ignore
        v = _add(u, -g_step_size, slope_g(layer_params, u, x))
        after = prox(v)
        before_energy, after_energy = (system.energy(layer_params, state, x) for state in (y, after))

        def size(tree: Any) -> Array:
            return norm(tree, before_energy.ndim)

        L_f, L_g = (evaluate(value, layer_params, y, x, before_energy) for value in (smoothness_f, smoothness_g))
        reach = size(_add(y, -1.0, prox(_add(y, -g_step_size, of_h))))
        first = _add(u, -1.0, y)
        bound = size(_add(first, g_step_size, of_f)) + g_step_size * L_g * size(first)
        noise, moved = size(_add(_add(v, -1.0, y), g_step_size, of_h)), size(_add(after, -1.0, y))
        L_h = L_f + L_g if smoothness_h is None else evaluate(smoothness_h, layer_params, y, x, before_energy)
        limit = 1.0 - 0.5 * g_step_size * L_h
        by_theorem = (bound <= reach) & (limit >= 0.5 - 8 * jnp.finfo(limit.dtype).eps)
        by_noise = noise <= limit * moved
        return after, Certificate(
            outcome=outcome_of(before_energy, after_energy, by_theorem | by_noise, tolerance),
            by_theorem=by_theorem,
            by_noise=by_noise,
            energy=before_energy,
            delta=_ratio(size(of_f), size(of_h)),
            constant=_ratio(size(of_f) * reach, size(of_h) * bound, jnp.inf),
            noise=_ratio(noise, moved),
            noise_limit=limit,
            smoothness_g=L_g,
            smoothness_h=L_h,
        )

    # What absent tokens hold, NaN even, must not reach the lengths of steps: they hold 0, and stay there.
    start = vary_like(jax.tree.map(lambda leaf: blank_absent(jnp.asarray(leaf), present), y), (params, x))
    return judge_layers(layer, system.energy, params, start, x, num_layers=num_layers, tied=tied)


def _add(a: Any, factor: float, b: Any) -> Any:
    return jax.tree.map(lambda u, v: u + factor * v, a, b)


def _ratio(above: Array, below: Array, where_both_vanish: float = 0.0) -> Array:
    safe = jnp.where(below == 0.0, 1.0, below)
    return jnp.where(below == 0.0, jnp.where(above == 0.0, where_both_vanish, jnp.inf), above / safe)
