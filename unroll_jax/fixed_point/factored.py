"""Equilibria of factored layers f(z) = W^T sigma(W z + c) in the space of W."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.adjoints import Adjoint, conjugate_gradient, linear_info
from unroll_jax.fixed_point.program import Problem
from unroll_jax.fixed_point.rows import dot, largest, norm, per_row, row_constant
from unroll_jax.fixed_point.solver import Map
from unroll_jax.fixed_point.solvers import cache_factory
from unroll_jax.fixed_point.status import EquilibriumInfo
from unroll_jax.fixed_point.stopping import (
    Stall,
    StopRule,
    check_stall,
    measure,
    outcome,
    relative_sizes,
    round_off,
    row_units,
)
from unroll_jax.numerics import over

__all__ = ["FactoredSolver", "factored_adjoint", "factored_form"]

# inner solves need not be better than this while the active set still changes
FORCING = 0.1
# The last inner solve leaves this share of the tolerance.
LAST = 0.6
MAX_INNER = 400
# The residual is computed from G = W W^T, which has fewer digits of it than z: aim
# below the tolerance.
MARGIN = 0.5
# The recurrence of conjugate gradients drifts a little from the residual that is judged
# in the end.
ADJOINT_MARGIN = 0.9
# Stop after so many Newton steps without improvement near round-off.
PATIENCE = 3


class _Carry(NamedTuple):
    number: Int[Array, ""]
    state: tuple[Array, Array]  # s and G s
    fallback: tuple[Array, Array]
    # of the last step; infinite after a step that was taken back
    residual: Float[Array, " b"]
    scale: Float[Array, " b"]
    active: Bool[Array, " b"]
    best: Array
    stall: Stall
    steps: Int[Array, " b"]


def factored_form(
    descent: Any, params: Params, problem: Problem, x: Any
) -> Factored | None:
    """Returns the factored form of a layer that has one, else None.

    Its offset has a row for each row of the state.
    """
    if not isinstance(descent, Descent) or descent.factored is None:
        return None
    layer = descent.factored(*jax.lax.stop_gradient((params, x)))
    # The widths differ if the batch axes are not those of the layer.
    start = problem.start
    if layer is None or layer.matrix.shape[1] != start.shape[1]:
        return None
    width = layer.offset.shape[-1]
    (state,) = problem.program.avals
    offset = jnp.broadcast_to(layer.offset, (*state.shape[:-1], width))
    return layer._replace(
        matrix=layer.matrix.astype(start.dtype),
        offset=offset.reshape(-1, width).astype(start.dtype),
    )


class FactoredSolver(NamedTuple):
    r"""Semismooth Newton on the hidden activations of a factored layer.

    With z = W^T s and g = W z + c = G s + c, f is z' = W^T sigma(g), with the layer's
    fixed points for every share a. Newton's direction for p = G sigma(p) + c at p = g,
    with :math:`D = diag \sigma'(g)`, is

    .. math:: d = F + G D^{1/2} q , \quad (I - D^{1/2} G D^{1/2}) q = D^{1/2} F , \quad
              F = G (\sigma(g) - s) ,

    a positive definite system for |W| < 1, by conjugate gradients. Picard steps replace
    those that raise the residual.

    Attributes:
      activation: sigma.
    """

    activation: Callable[[Array], Array]

    def run(
        self,
        saved: tuple[Array, Array],
        apply: Map,
        z: Float[Array, "b m"],
        rule: StopRule,
    ) -> tuple[Array, EquilibriumInfo]:
        """Returns ``(y, info)``, where y = f(z) by the layer's step.

        ``saved`` is W and c. Steps count products with G, which cost as much as Picard
        steps.
        """
        W, offset = saved
        # Zeros of the offset give the start the sharding of the input.
        z = z + row_constant(offset, 0.0)[:, None]
        gram = _gram(W, z.shape[0])
        s = self.activation(z @ W.T + offset)
        state = s, gram(s)
        begin = _Carry(
            number=jnp.int32(0),
            state=state,
            fallback=state,
            residual=row_constant(z, jnp.inf),
            scale=jnp.fmax(largest(z), norm(s @ W)),
            active=row_constant(z, True),
            best=s,
            stall=Stall(row_constant(z, jnp.inf), row_constant(z, 0)),
            steps=row_constant(z, 0),
        )
        inner = rule._replace(tol=MARGIN * rule.tol)
        end = jax.lax.while_loop(
            lambda c: jnp.any(c.active) & (c.number < rule.max_steps),
            lambda c: self._newton(gram, offset, inner, c),
            begin,
        )
        z = end.best @ W
        fz = apply(z)
        sizes = measure(rule, fz, z, end.scale, first=False, frozen=True)
        stalled = ~end.active & (sizes.residual <= round_off(rule, fz))
        lost = ~(largest(end.fallback[1]) < jnp.inf)
        return fz, outcome(rule, sizes.residual, end.steps, stalled=stalled, lost=lost)

    def _newton(self, gram: Map, offset: Array, rule: StopRule, c: _Carry) -> _Carry:
        s, image = c.state
        g = image + offset
        after = self.activation(g)
        after_image = gram(after)
        inverse = row_units(after, c.scale)
        unit = inverse[:, None]
        scaled = unit * after
        scaled_image = unit * after_image
        # |W^T u|^2 = u . G u, of the step and of its end
        square = dot(scaled - unit * s, scaled_image - unit * image)
        residual, _, _, scale = relative_sizes(
            rule,
            jnp.maximum(square, 0.0),
            jnp.maximum(dot(scaled, scaled_image), 0.0),
            inverse,
            c.scale,
            first=c.number == 0,
            frozen=False,
        )
        better = c.active & (residual < c.stall.least)
        stall, stalled = check_stall(rule, c.stall, residual, after, PATIENCE)
        active = c.active & ~(residual <= rule.tol) & (residual < jnp.inf) & ~stalled

        root = _root_slope(self.activation, g)
        moved = after_image - image
        right = jnp.where(active[:, None], root * moved, 0.0)
        accuracy = _accuracy(residual, rule.tol)
        q, inner = _solve(gram, root, right, tol=accuracy, max_steps=MAX_INNER)
        newton = self.activation(g + moved + gram(root * q))

        # A Picard step replaces a Newton step that raised the residual.
        worse = ~(residual < c.residual)
        state = per_row(worse, c.fallback, (newton, gram(newton)))
        return _Carry(
            number=c.number + 1,
            state=per_row(active, state, c.state),
            fallback=(after, after_image),
            residual=jnp.where(worse, jnp.inf, residual),
            scale=jnp.where(c.active, scale, c.scale),
            active=active,
            best=per_row(better, s, c.best),
            stall=stall,
            steps=c.steps + jnp.where(active, 3 + inner, c.active.astype(jnp.int32)),
        )


@cache_factory
def factored_adjoint(activation: Callable[[Array], Array], share: float) -> Adjoint:
    r"""Solves (I - J) w = v with J = a W^T D W + (1 - a) I in the space of W.

    w = (v + W^T D^{1/2} t) / a, where (I - D^{1/2} G D^{1/2}) t = D^{1/2} W v. The
    residual is a bound for |W| <= 1; steps are products with G.
    """

    def structured(
        saved: tuple[Array, Array], z: Array, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        W, offset = saved
        gram = _gram(W, z.shape[0])
        root = _root_slope(activation, z @ W.T + offset)
        right = root * (v @ W.T)
        accuracy = ADJOINT_MARGIN * tol * over(jnp.ones(()), norm(right))
        t, steps = _solve(gram, root, right, tol=accuracy, max_steps=max_steps)
        # The residual of w is W^T D^{1/2} times t's, so no larger where |W| <= 1.
        left = right - t + root * gram(root * t)
        info = linear_info(left, steps, tol, steps < max_steps)
        return (v + (root * t) @ W) / share, info

    return conjugate_gradient()._replace(structured=structured)


def _gram(matrix: Float[Array, "h m"], rows: Any) -> Map:
    """Returns u -> W W^T u on rows, by one square matrix if 20 products repay it."""
    width, dim = matrix.shape
    # The number is unknown in `jax.export`: a guess.
    rows = rows if isinstance(rows, int) else 64
    if rows > 1 and 20 * rows * (2 * dim - width) > width * dim:
        square = matrix @ matrix.T
        return lambda u: u @ square
    return lambda u: (u @ matrix) @ matrix.T


def _solve(
    gram: Map,
    root: Float[Array, "b h"],
    right: Float[Array, "b h"],
    *,
    tol: Float[Array, " b"],
    max_steps: int,
) -> tuple[Float[Array, "b h"], Int[Array, " b"]]:
    r"""q - D^{1/2} G D^{1/2} q = r for every example, to a relative residual of
    ``tol``; D^{1/2} is ``root``."""
    size = norm(right)[:, None]
    scaled = over(right, size)

    def product(u: Array) -> Array:
        return u - root * gram(root * u)

    q, _, steps = continue_conjugate_gradient(
        product, jnp.zeros_like(scaled), scaled, bound=tol**2, max_steps=max_steps
    )
    return size * q, steps


def _accuracy(residual: Float[Array, " b"], tol: float) -> Float[Array, " b"]:
    """Returns the tolerance of the inner solve, for quadratic convergence or for the
    remaining residual."""
    wanted = LAST * tol / jnp.maximum(residual, LAST * tol / FORCING)
    return jnp.maximum(wanted, jnp.minimum(FORCING, residual))


def _root_slope(activation: Callable[[Array], Array], g: Array) -> Array:
    """Returns D^{1/2}; slopes that rounding leaves a little below 0 count as 0."""
    _, slope = jax.jvp(activation, (g,), (jnp.ones_like(g),))
    return jnp.sqrt(jnp.maximum(slope, 0.0))
