"""Adjoints by name: linear solves with J^T, or steps that autodiff goes through."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import at_least, checked, in_interval, look_up
from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.fixed_point.loop import iterate
from unroll_jax.fixed_point.rows import dot, largest, norm, per_row, row_constant, zeros
from unroll_jax.fixed_point.solver import Map, Point, Solver
from unroll_jax.fixed_point.solvers import anderson, cache_factory
from unroll_jax.fixed_point.status import NONSYMMETRIC, EquilibriumInfo, fail_where
from unroll_jax.fixed_point.stopping import (
    IDLE_CHECKS,
    ROUND_OFF,
    Stall,
    StopRule,
    check_stall,
    measure,
    outcome,
    round_off,
)
from unroll_jax.numerics import over

__all__ = [
    "ADJOINTS",
    "Adjoint",
    "conjugate_gradient",
    "flag_asymmetric",
    "gmres",
    "linear_info",
    "neumann",
    "one_step",
    "resolve_adjoint",
    "unroll_solver",
    "unrolled",
]

# Unrolled steps without a better residual, after which a row near round-off is there.
SETTLED = 3
# Asymmetry of a random pair of vectors above which a Jacobian counts as asymmetric. It
# is far above round-off, and an asymmetric Jacobian is rarely below.
ASYMMETRY = 1e-2


class Adjoint(NamedTuple):
    """A solver of w - J^T w = v, for cotangents v of unit norm in every row.

    Attributes:
      solve: ``(operator, v, tol, max_steps) -> (w, EquilibriumInfo)``; ``operator`` is
        w -> J^T w.
      symmetric: True if it needs J symmetric.
      exact: True if it solves the system to ``tol``. An inexact one never counts as
        failed.
      structured: ``(saved, z, v, tol, max_steps) -> (w, info)``, in place of ``solve``
        for a layer with its own space.
      num_steps: steps of the solver that autodiff goes through, in place of a system.

    Example:
      >>> from unroll_jax.fixed_point import conjugate_gradient, neumann, unrolled
      >>> conjugate_gradient().symmetric, neumann(3).exact, unrolled(5).num_steps
      (True, False, 5)
    """

    solve: Callable[
        [Map, Float[Array, "b m"], float, int],
        tuple[Float[Array, "b m"], EquilibriumInfo],
    ]
    symmetric: bool = False
    exact: bool = True
    structured: Callable[..., tuple[Float[Array, "b m"], EquilibriumInfo]] | None = None
    num_steps: int | None = None


@checked(window=at_least(1))
@cache_factory
def gmres(window: int = 10) -> Adjoint:
    """The Neumann series while it converges quickly, then truncated GMRES, for any J.

    It is the loop of `anderson` on w = v + J^T w, where that is truncated GMRES.

    Args:
      window: directions that a new one is made orthogonal to, at least 1.

    Source: Saad and Schultz (1986); Tang, Xu, Saad (2024) for the iteration.

    Example:
      >>> import jax.numpy as jnp
      >>> turn = lambda w: w[:, ::-1] * jnp.array([-1.0, 1.0])  # its series diverges
      >>> w, _ = gmres().solve(turn, jnp.array([[1.0, 0.0]]), 1e-6, 20)
      >>> [round(value, 3) for value in w[0].tolist()]  # w - J^T w = (1, 0)
      [0.5, 0.5]
    """
    solver = anderson(window)

    def solve(
        operator: Map, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        rule = StopRule(tol, max_steps, float(jnp.finfo(v.dtype).eps), linear=True)
        return iterate(lambda w: v + operator(w), v, solver, rule)

    return Adjoint(solve)


@cache_factory
def conjugate_gradient() -> Adjoint:
    """Conjugate gradients: the quickest where J is symmetric.

    Source: Hestenes and Stiefel (1952).

    Example: see `neumann`.
    """

    def solve(
        operator: Map, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        def product(w: Array) -> Array:
            return w - operator(w)

        bound = row_constant(v, tol**2)
        w, _, steps = continue_conjugate_gradient(
            product, jnp.zeros_like(v), v, bound=bound, max_steps=max_steps
        )
        # Rows whose recurrence ended before the cap can have no better residual.
        return w, linear_info(v - product(w), steps, tol, steps < max_steps)

    return Adjoint(solve, symmetric=True)


@checked(terms=at_least(1), damping=in_interval("(0, 1]"))
@cache_factory
def neumann(terms: int = 10, *, damping: float = 1.0) -> Adjoint:
    r"""The phantom gradient by the Neumann series, cut off and damped.

    .. math:: w = \lambda \sum_{k < terms} ((1 - \lambda) I + \lambda J^T)^k v .

    Damping 1 gives the first terms of the series of :math:`(I - J^T)^{-1}`, less helps
    J with eigenvalues below -1.

    Args:
      terms: how many, at least 1.
      damping: :math:`\lambda`, in (0, 1].

    Source: Geng et al. (2021), On Training Implicit Models, eq. 12.

    Example:
      >>> import jax.numpy as jnp
      >>> halve, v = lambda w: 0.5 * w, jnp.ones((1, 1))  # the solution w is 2
      >>> adjoints = one_step(), neumann(3), conjugate_gradient()
      >>> solutions = [each.solve(halve, v, 1e-6, 20)[0] for each in adjoints]
      >>> [round(w.item(), 3) for w in solutions]
      [1.0, 1.75, 2.0]
    """

    def solve(
        operator: Map, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        def add(_: Any, w: Array) -> Array:
            return (1.0 - damping) * w + damping * (v + operator(w))

        w = jax.lax.fori_loop(0, terms - 1, add, damping * v)
        left = v - (w - operator(w))
        return w, linear_info(left, row_constant(v, terms - 1), tol)

    return Adjoint(solve, exact=False)


@cache_factory
def one_step() -> Adjoint:
    """w = v: the gradient of one step at the equilibrium, Jacobian-free.

    Source: Fung et al. (2022), JFB.

    Example: see `neumann`.
    """

    def solve(
        operator: Map, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        # Its residual is not measured: that would cost the product that it saves.
        return v, fail_where(row_constant(v, False), row_constant(v, jnp.nan))

    return Adjoint(solve, exact=False)


@checked(num_steps=at_least(1))
def unrolled(num_steps: int = 20) -> Adjoint:
    """Differentiates steps of the solver, to any order and in both modes.

    Memory grows with the steps. ``max_steps`` does not count here, and ``tol`` only
    decides which examples count as converged. Examples of "anderson" that reach
    round-off stay there. If they began there, they take plain steps.

    Args:
      num_steps: of the solver, at least 1.

    Source: Xie et al. (2021), Section 4.2; K = 20 in Section 5.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):  # 1 / (1 - slope)
      ...     step, start = lambda slope, z, x: slope * z + 1.0, jnp.zeros(1)
      ...     z, _ = unroll_jax.equilibrium(step, slope, start, adjoint=unrolled(50))
      ...     return z[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)
      4.0
    """
    return one_step()._replace(num_steps=num_steps)


#: Ways to the gradient of `equilibrium` by name. Each entry is a factory whose options
#: have defaults.
ADJOINTS: dict[str, Callable[..., Adjoint]] = {
    "gmres": gmres,
    "conjugate_gradient": conjugate_gradient,
    "neumann": neumann,
    "one_step": one_step,
    "unrolled": unrolled,
}


def resolve_adjoint(adjoint: str | Adjoint) -> Adjoint:
    """Returns the entry of a name of `ADJOINTS`, or the one given.

    Raises a ValueError or TypeError if it is neither.
    """
    entry = look_up("adjoint", adjoint, ADJOINTS, Adjoint)
    return entry if isinstance(entry, Adjoint) else entry()


class _Unroll(NamedTuple):
    """The carry of unrolled steps.

    Attributes:
      first, residual: of the start and of the last state.
      best: f of the state of least residual.
      ended: rows that stay at their best state.
      plain: rows that take plain steps from here on.
    """

    z: Float[Array, "b m"]
    memory: Any
    scale: Float[Array, " b"]
    first: Float[Array, " b"]
    residual: Float[Array, " b"]
    stall: Stall
    stalled: Bool[Array, " b"]
    best: Float[Array, "b m"]
    ended: Bool[Array, " b"]
    plain: Bool[Array, " b"]


def unroll_solver(
    apply: Map, z: Float[Array, "b m"], solver: Solver, rule: StopRule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """``rule.max_steps`` updates in a scan that autodiff goes through.

    At round-off an update that extrapolates divides round-off by round-off, and its
    derivatives grow without bound. A row that is there stays at its best state, whose
    derivative has converged with it. A row that began there has no derivative yet, and
    takes plain steps instead.
    """
    if solver.update is None:
        raise ValueError(
            'adjoint="unrolled" needs a solver whose steps can be differentiated, such'
            ' as "picard"'
        )
    update = solver.update

    def body(carry: _Unroll, number: Array) -> tuple[_Unroll, None]:
        fz = apply(carry.z)
        z, image = jax.lax.stop_gradient((carry.z, fz))
        is_first = number == 0
        sizes = measure(rule, image, z, carry.scale, first=is_first, frozen=False)
        better = ~carry.ended & (sizes.residual < carry.stall.least)
        stall, stalled = check_stall(rule, carry.stall, sizes.residual, image)
        carry = carry._replace(
            scale=sizes.scale,
            first=jnp.where(is_first, sizes.residual, carry.first),
            residual=sizes.residual,
            stall=stall,
        )
        if solver.extrapolates:
            carry = carry._replace(best=per_row(better, fz, carry.best))
            carry = _check_progress(rule, carry, image)

        idle = carry.ended | carry.plain
        point = Point(
            z=carry.z,
            fz=fz,
            residual=sizes.residual,
            inverse=sizes.inverse,
            active=~idle,
            age=jnp.where(idle, 0, number + 1),
            number=number,
        )
        after, memory = update(point, carry.memory)
        if solver.extrapolates:
            after = per_row(carry.plain, fz, after)
            after = per_row(carry.ended, carry.best, after)
        stalled = stalled | carry.ended
        return carry._replace(z=after, memory=memory, stalled=stalled), None

    numbers = jnp.arange(rule.max_steps, dtype=jnp.int32)
    end, _ = jax.lax.scan(body, _start(z, solver), numbers)
    y, residual = end.z, end.residual
    if solver.extrapolates:
        # The last updates may have been at round-off.
        near = ~end.plain & (end.stall.least <= round_off(rule, y))
        y = per_row(near, end.best, y)
        residual = jnp.where(near, end.stall.least, residual)
    steps = row_constant(jax.lax.stop_gradient(z), rule.max_steps)
    return y, outcome(rule, residual, steps, stalled=end.stalled)


def _start(z: Float[Array, "b m"], solver: Solver) -> _Unroll:
    start = jax.lax.stop_gradient(z)
    infinite = row_constant(start, jnp.inf)
    none = row_constant(start, False)
    return _Unroll(
        z=z,
        memory=solver.init(z),
        scale=largest(start),
        first=infinite,
        residual=infinite,
        stall=Stall(infinite, row_constant(start, 0)),
        stalled=none,
        best=z,
        ended=none,
        plain=none,
    )


def _check_progress(rule: StopRule, carry: _Unroll, image: Array) -> _Unroll:
    """Ends rows that do not improve any more, or sets them to plain steps."""
    least, checks = carry.stall
    limit = round_off(rule, image)
    near = (checks >= SETTLED) & (least <= limit)
    idle = near | (checks >= IDLE_CHECKS) & (least <= rule.tol)
    # The derivative converges with the residual, from where the row began. A row that
    # has ended stays so: its least residual does not rise.
    reached = jnp.maximum(least, limit) <= rule.tol * carry.first
    return carry._replace(
        ended=carry.ended | idle & reached, plain=carry.plain | idle & ~reached
    )


def flag_asymmetric(
    info: EquilibriumInfo, operator: Map, like: Float[Array, "b m"], epsilon: float
) -> EquilibriumInfo:
    """Returns ``info`` with the status of rows whose Jacobian is not symmetric.

    It takes two products. The measure is |<p, J^T q> - <q, J^T p>| / (|J^T p| |q| +
    |J^T q| |p|) for two random vectors of the shape of ``like``. ``epsilon`` is the
    relative spacing of the dtype that J is computed in.
    """

    def draw(key: Array) -> Array:
        return jax.random.normal(key, like.shape, like.dtype) + zeros(like)

    p, q = map(draw, jax.random.split(jax.random.key(0)))
    image_p = operator(p)
    image_q = operator(q)
    difference = jnp.abs(dot(p, image_q) - dot(q, image_p))
    scale = norm(image_p) * norm(q) + norm(image_q) * norm(p)
    # Random vectors are nearly orthogonal to random images; sqrt(m) brings the measure
    # to the order of |J - J^T| / |J|.
    size = like.shape[-1] ** 0.5 * over(difference, scale)
    is_asymmetric = size > max(ASYMMETRY, ROUND_OFF * epsilon)
    return info._replace(status=jnp.where(is_asymmetric, NONSYMMETRIC, info.status))


def linear_info(
    left: Float[Array, "b m"],
    steps: Array,
    tol: float,
    ended: Bool[Array, " b"] | bool = False,
) -> EquilibriumInfo:
    """The end of a solve with unit right-hand sides, of which ``left`` is left.

    That is the true residual, not the recurrence's.
    """
    rule = StopRule(tol, 0, float(jnp.finfo(left.dtype).eps))
    residual = jnp.sqrt(dot(left, left))
    stalled = ended & (residual <= round_off(rule, left))
    return outcome(rule, residual, steps, stalled=stalled)
