"""Equilibria of factored layers f(z) = W^T sigma(W z + c), solved where they are small."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.descent import Factored
from unroll_jax.fixed_point.preconditioned import Shared, product, solve
from unroll_jax.fixed_point.problem import (
    CONVERGED,
    NONFINITE,
    ROUND_OFF,
    STALLED,
    SolveInfo,
    judge,
    norm,
    per_example,
)

__all__ = ["factored_adjoint", "factored_solve"]

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
    best: Array
    residual: Array
    since: Array
    steps: Array
    status: Array
    shared: Shared | None


def factored_solve(
    layer: Factored, shared: Shared | None, z: Float[Array, "b m"], *, tol: float, max_steps: int
) -> tuple[Float[Array, "b m"], SolveInfo, Shared | None]:
    r"""Semismooth Newton on the hidden activations of a factored layer.

    With z = W^T s and g = W z + c = G s + c, f is z' = W^T sigma(g), whose fixed points are those of the layer whatever
    its share a. Newton's direction for
    p = G sigma(p) + c at p = g, with :math:`D = diag \sigma'(g)`, is

    .. math:: d = F + G D^{1/2} q , \quad (I - D^{1/2} G D^{1/2}) q = D^{1/2} F , \quad F = G (\sigma(g) - s) ,

    a symmetric positive definite system where |W| < 1, see `preconditioned.solve`. A step that raises the residual is
    taken back and a Picard step put in its place.

    Args:
      layer: W, c (b, h) and sigma.
      shared: what `preconditioned.prepare` made of W.
      z: initial state; the iteration starts at f(z).
      tol: relative tolerance on |f(z) - z| / |f(z)|.
      max_steps: cap of the Newton steps.

    Returns:
      ``(z, info, shared)``; steps count products with G, the unit that Picard steps cost too; what the systems shared
      serves the adjoint's too.
    """
    W, running = layer.matrix, -1
    epsilon = float(jnp.finfo(z.dtype).eps)
    sizes, tiny = norm(z), float(jnp.finfo(z.dtype).tiny)
    s = layer.activation(z @ W.T + layer.offset)

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.status == running) & (carry.number < max_steps)

    def body(carry: _Carry) -> _Carry:
        apply = product(W, carry.shared)
        g = carry.image + layer.offset
        after = layer.activation(g)
        after_image = apply(after)
        moved = after_image - carry.image
        length, size = _length(after - carry.s, moved), _length(after, after_image)
        residual = jnp.where(length == 0.0, 0.0, length / jnp.where(size == 0.0, tiny, size))
        active = carry.status == running
        better = active & (residual < carry.residual)
        best = per_example(better, carry.s, carry.best)
        lowest = jnp.where(better, residual, carry.residual)
        since = jnp.where(better, 0, carry.since + 1)
        status = jnp.where(active & (since >= STALL_PATIENCE) & (lowest <= ROUND_OFF * epsilon), STALLED, carry.status)
        status = jnp.where(active & ~jnp.isfinite(residual), NONFINITE, status)
        status = jnp.where(active & (residual <= MARGIN * tol), CONVERGED, status)
        going = status == running
        root = _root_slope(layer.activation, g)
        right = jnp.where(going[:, None], root * moved, 0.0)
        accuracy = jnp.clip(0.3 * tol / jnp.maximum(residual, tiny), None, FORCING)
        accuracy = jnp.maximum(accuracy, jnp.minimum(FORCING, residual))
        q, inner, shared = solve(W, root, right, carry.shared, tol=accuracy, max_steps=MAX_INNER)
        apply = product(W, shared)
        s = layer.activation(g + moved + apply(root * q))
        image = apply(s)
        worse = ~(residual < carry.last)
        s, image = per_example(worse, carry.fallback, (s, image))
        s, image = per_example(going, (s, image), (carry.s, carry.image))
        return _Carry(
            carry.number + 1,
            s,
            image,
            (after, after_image),
            jnp.where(worse, jnp.inf, residual),
            best,
            lowest,
            since,
            carry.steps + jnp.where(going, 3 + inner, active.astype(jnp.int32)),
            status,
            shared,
        )

    image = product(W, shared)(s)
    start = _Carry(
        number=jnp.zeros((), jnp.int32),
        s=s,
        image=image,
        fallback=(s, image),
        last=jnp.full_like(sizes, jnp.inf),
        best=s,
        residual=jnp.full_like(sizes, jnp.inf),
        since=jnp.zeros_like(sizes, jnp.int32),
        steps=jnp.zeros_like(sizes, jnp.int32),
        status=jnp.full_like(sizes, running, jnp.int32),
        shared=shared,
    )
    end = jax.lax.while_loop(unfinished, body, start)
    z = end.best @ W
    return z, judge(end.residual, end.steps, tol, epsilon), end.shared


def factored_adjoint(
    layer: Factored,
    shared: Shared | None,
    z: Float[Array, "b m"],
    v: Float[Array, "b m"],
    *,
    tol: float,
    max_steps: int,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    r"""w = (I - J)^{-1} v = (v + W^T D^{1/2} t) / a, where (I - D^{1/2} G D^{1/2}) t = D^{1/2} W v.

    J is the layer's a W^T D W + (1 - a) I, so that I - J = a (I - W^T D W). The residual said is a bound where
    |W| <= 1, and steps are products with G.
    """
    W = layer.matrix
    root = _root_slope(layer.activation, z @ W.T + layer.offset)
    right = root * (v @ W.T)
    size, hidden = norm(v), norm(right)
    accuracy = ADJOINT_MARGIN * tol * size / jnp.where(hidden > 0.0, hidden, 1.0)
    t, steps, shared = solve(W, root, right, shared, tol=accuracy, max_steps=max_steps)
    # The residual of w is W^T D^{1/2} times that of t, so no larger where |W| <= 1.
    apply = product(W, shared)
    left = norm(right - t + root * apply(root * t)) / jnp.where(size > 0.0, size, 1.0)
    w = v + (root * t) @ W
    return w / layer.share, judge(left, steps, tol, float(jnp.finfo(z.dtype).eps))


def _length(s: Float[Array, "b h"], image: Float[Array, "b h"]) -> Float[Array, " b"]:
    """|W^T s| of every row, from the image G s; see `norm` for the scale."""
    largest = jnp.max(jnp.abs(s), axis=-1, keepdims=True)
    scale = jnp.where((largest > 0.0) & jnp.isfinite(largest), largest, 1.0)
    return jnp.sqrt(jnp.maximum(jnp.sum((s / scale) * (image / scale), -1), 0.0)) * scale[:, 0]


def _root_slope(activation: Callable[[Array], Array], g: Array) -> Array:
    """D^{1/2}; of a slope that rounding leaves a little below 0, 0."""
    return jnp.sqrt(jnp.maximum(jax.jvp(activation, (g,), (jnp.ones_like(g),))[1], 0.0))
