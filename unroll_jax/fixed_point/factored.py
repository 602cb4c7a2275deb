"""Equilibria of factored layers f(z) = W^T sigma(W z + c) in the space of W: one function for each direction."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.flat_states import norm, per_example, powers
from unroll_jax.fixed_point.preconditioned import Shared, prepare, product, solve
from unroll_jax.fixed_point.problem import ROUND_OFF, STALLED, Limits, Problem, Solution, SolveInfo, judge
from unroll_jax.fixed_point.progress import Progress, advance, at_the_cap, begin, relative

__all__ = [
    "FactoredResiduals",
    "factored_adjoint",
    "factored_form",
    "factored_forward",
    "factored_residuals",
    "factored_solve",
    "step_info",
]

FORCING = 0.1  # inner solves need not be better than this while the active set still changes
MAX_INNER = 400
# The residual is watched through G, which knows it to fewer digits than z does: aim a little below the tolerance.
MARGIN = 0.5
# The recurrence of conjugate gradients drifts a little from the residual that is judged in the end.
ADJOINT_MARGIN = 0.9
STALL_PATIENCE = 3  # Newton steps without a better residual, near round-off, after which there is none to be had


class _Carry(NamedTuple):
    number: Int[Array, ""]
    s: Array
    image: Array
    fallback: tuple[Array, Array]
    last: Array
    progress: Progress
    steps: Array
    shared: Shared | None


class FactoredResiduals(NamedTuple):
    """The arrays that `factored_adjoint` reads of the forward pass."""

    matrix: Float[Array, "h m"]
    offset: Float[Array, "b h"]
    shared: Shared | None


def factored_form(descent: Any, params: Params, y: Any, x: Any, start: Array) -> Factored | None:
    """The factored form of a layer that has one, for the rows of ``start``, which is ``y`` as a matrix."""
    factored = descent.factored if isinstance(descent, Descent) else None
    layer = None if factored is None else factored(*jax.lax.stop_gradient((params, x)))
    if layer is None or layer.matrix.shape[1] != start.shape[1]:  # or other axes than its own were named batch axes
        return None
    matrix, offset = layer.matrix.astype(start.dtype), layer.offset.astype(start.dtype)
    width = offset.shape[-1]
    return layer._replace(matrix=matrix, offset=jnp.broadcast_to(offset, (*y.shape[:-1], width)).reshape(-1, width))


def factored_forward(layer: Factored, problem: Problem, start: Float[Array, "b m"], limits: Limits) -> Solution:
    """The solution by `factored_solve`."""
    tol, atol, max_steps = limits
    z, info, reach, residuals = factored_solve(layer, start, tol=tol, max_steps=max_steps, atol=atol or 0.0)
    return Solution(z, info, residuals, reach)


def step_info(solution: Solution, fz: Float[Array, "b m"], limits: Limits, epsilon: float) -> SolveInfo:
    """The outcome of the solve by the residual of the step, as Newton's method watched the hidden one."""
    z, info, _, reach = solution
    if reach is None:
        return info
    residual = relative(norm(fz - z), norm(fz), reach, epsilon, (limits.atol or 0.0) / limits.tol)
    return judge(residual, info.steps, limits.tol, epsilon, idle=info.status <= STALLED)


def factored_residuals(layer: Factored, z: Float[Array, "b m"]) -> FactoredResiduals:
    """Residuals for `factored_adjoint` where another solver ran forward."""
    return FactoredResiduals(layer.matrix, layer.offset, prepare(layer.matrix, z))


def factored_solve(
    layer: Factored, z: Float[Array, "b m"], *, tol: float, max_steps: int, atol: float = 0.0
) -> tuple[Float[Array, "b m"], SolveInfo, Float[Array, " b"], FactoredResiduals]:
    r"""Semismooth Newton on the hidden activations of a factored layer.

    With z = W^T s and g = W z + c = G s + c, f is z' = W^T sigma(g), whose fixed points are those of the layer for
    every share a. Newton's direction for
    p = G sigma(p) + c at p = g, with :math:`D = diag \sigma'(g)`, is

    .. math:: d = F + G D^{1/2} q , \quad (I - D^{1/2} G D^{1/2}) q = D^{1/2} F , \quad F = G (\sigma(g) - s) ,

    a symmetric positive definite system where |W| < 1, see `preconditioned.solve`. A step that raises the residual is
    taken back and a Picard step put in its place.

    Args:
      layer: W, c (b, h) and sigma.
      z: initial state; the iteration starts at f(z).
      tol: relative tolerance on |f(z) - z| / |f(z)|.
      max_steps: cap of the Newton steps.
      atol: absolute tolerance that is added.

    Returns:
      ``(z, info, reach, residuals)``; steps count products with G, which cost as much as Picard steps; ``reach`` is
      that of `relative`; the residuals are those of `factored_adjoint`.
    """
    W, activation = layer.matrix, layer.activation
    floor = ROUND_OFF * (epsilon := float(jnp.finfo(z.dtype).eps))

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.progress.going) & (carry.number < max_steps)

    def body(carry: _Carry) -> _Carry:
        apply = product(W, carry.shared)
        g = carry.image + layer.offset
        after = activation(g)
        after_image = apply(after)
        moved = after_image - carry.image
        active = carry.progress.going.astype(jnp.int32)
        progress, residual = advance(
            carry.progress,
            carry.s,
            _length(after - carry.s, moved),
            _length(after, after_image),
            tol=MARGIN * tol,
            epsilon=epsilon,
            floor=floor,
            patience=STALL_PATIENCE,
            offset=atol / tol,
        )
        going = progress.going
        root = _root_slope(activation, g)
        right = jnp.where(going[:, None], root * moved, 0.0)
        q, inner, shared = solve(W, root, right, carry.shared, tol=_accuracy(residual, tol), max_steps=MAX_INNER)
        apply = product(W, shared)
        s = activation(g + moved + apply(root * q))
        worse = ~(residual < carry.last)
        newton = per_example(worse, carry.fallback, (s, apply(s)))
        return _Carry(
            carry.number + 1,
            *per_example(going, newton, (carry.s, carry.image)),
            fallback=(after, after_image),
            last=jnp.where(worse, jnp.inf, residual),
            progress=progress,
            steps=carry.steps + jnp.where(going, 3 + inner, active),
            shared=shared,
        )

    end = jax.lax.while_loop(unfinished, body, _start(layer, prepare(W, z), z))
    info = SolveInfo(end.progress.residual, end.steps, at_the_cap(end.progress, floor, 0.5 * epsilon))
    return end.progress.best @ W, info, end.progress.reach, FactoredResiduals(W, layer.offset, end.shared)


def factored_adjoint(
    layer: Factored,
    residuals: FactoredResiduals,
    z: Float[Array, "b m"],
    v: Float[Array, "b m"],
    tol: float,
    max_steps: int,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    r"""w = (I - J)^{-1} v = (v + W^T D^{1/2} t) / a, where (I - D^{1/2} G D^{1/2}) t = D^{1/2} W v.

    J is the layer's a W^T D W + (1 - a) I, so that I - J = a (I - W^T D W). The residual returned is a bound where
    |W| <= 1, and steps are products with G. Arrays are read from the residuals, activation and share from the layer.
    """
    W, offset, shared = residuals
    root = _root_slope(layer.activation, z @ W.T + offset)
    right = root * (v @ W.T)
    size, hidden = norm(v), norm(right)
    accuracy = ADJOINT_MARGIN * tol * size / jnp.where(hidden > 0.0, hidden, 1.0)
    t, steps, shared = solve(W, root, right, shared, tol=accuracy, max_steps=max_steps)
    # The residual of w is W^T D^{1/2} times that of t, so no larger where |W| <= 1.
    apply = product(W, shared)
    left = norm(right - t + root * apply(root * t)) / jnp.where(size > 0.0, size, 1.0)
    w = v + (root * t) @ W
    return w / layer.share, judge(left, steps, tol, float(jnp.finfo(z.dtype).eps), idle=steps < max_steps)


def _start(layer: Factored, shared: Shared | None, z: Float[Array, "b m"]) -> _Carry:
    s = layer.activation(z @ layer.matrix.T + layer.offset)
    image = product(layer.matrix, shared)(s)
    progress = begin(s, jnp.fmax(norm(z), _length(s, image)))
    none = jnp.zeros_like(progress.since)
    return _Carry(jnp.zeros((), jnp.int32), s, image, (s, image), progress.residual, progress, none, shared)


def _accuracy(residual: Float[Array, " b"], tol: float) -> Float[Array, " b"]:
    """Returns the tolerance of the inner solve, for quadratic convergence or for the remaining residual."""
    wanted = jnp.clip(0.3 * tol / jnp.maximum(residual, jnp.finfo(residual.dtype).tiny), None, FORCING)
    return jnp.maximum(wanted, jnp.minimum(FORCING, residual))


def _length(s: Float[Array, "b h"], image: Float[Array, "b h"]) -> Float[Array, " b"]:
    """|W^T s| of every row, from the image G s; see `norm` for the scale."""
    down, up = powers(s)
    return jnp.sqrt(jnp.maximum(jnp.sum((s * down) * (image * down), -1), 0.0)) * up[:, 0]


def _root_slope(activation: Callable[[Array], Array], g: Array) -> Array:
    """D^{1/2}; of a slope that rounding leaves a little below 0, 0."""
    return jnp.sqrt(jnp.maximum(jax.jvp(activation, (g,), (jnp.ones_like(g),))[1], 0.0))
