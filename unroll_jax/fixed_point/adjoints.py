"""Adjoints by name: linear solves with J^T, or steps that autodiff goes through."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, in_interval, look_up
from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.fixed_point.loop import Map, Point, Solver, iterate
from unroll_jax.fixed_point.reports import (
    CONVERGED,
    NONSYMMETRIC,
    ROUND_OFF,
    EquilibriumInfo,
)
from unroll_jax.fixed_point.sizes import Rule, dot, filled, judge, largest, measure
from unroll_jax.fixed_point.solvers import anderson, shared

__all__ = [
    "ADJOINTS",
    "Adjoint",
    "Linear",
    "Unrolled",
    "conjugate_gradient",
    "flag_asymmetric",
    "gmres",
    "neumann",
    "one_step",
    "resolve_adjoint",
    "unroll_solver",
    "unrolled",
]

# a linear map of each row, all rows at once
Linear = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]

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

    Example:
      >>> from unroll_jax.fixed_point import conjugate_gradient, neumann
      >>> conjugate_gradient().symmetric, neumann(3).exact
      (True, False)
    """

    solve: Callable[
        [Linear, Float[Array, "b m"], float, int],
        tuple[Float[Array, "b m"], EquilibriumInfo],
    ]
    symmetric: bool = False
    exact: bool = True
    structured: Callable[..., tuple[Float[Array, "b m"], EquilibriumInfo]] | None = None


class Unrolled(NamedTuple):
    """No adjoint system: autodiff goes through ``num_steps`` steps, see `unrolled`.

    Example:
      >>> from unroll_jax.fixed_point import unrolled
      >>> unrolled(5).num_steps
      5
    """

    num_steps: int


@checked(window=at_least(1))
@shared
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
        operator: Linear, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        rule = Rule(tol, max_steps, float(jnp.finfo(v.dtype).eps), linear=True)
        return iterate(lambda w: v + operator(w), v, solver, rule)

    return Adjoint(solve)


@shared
def conjugate_gradient() -> Adjoint:
    """Conjugate gradients: the quickest where J is symmetric.

    Source: Hestenes and Stiefel (1952).

    Example: see `neumann`.
    """

    def solve(
        operator: Linear, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        def product(w: Array) -> Array:
            return w - operator(w)

        bound = tol**2 * dot(v, v)
        w, _, steps = continue_conjugate_gradient(
            product, jnp.zeros_like(v), v, bound=bound, max_steps=max_steps
        )
        return w, _linear_info(operator, v, w, steps, tol)

    return Adjoint(solve, symmetric=True)


@checked(terms=at_least(1), damping=in_interval("(0, 1]"))
@shared
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
        operator: Linear, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        def add(_: Any, w: Array) -> Array:
            return (1.0 - damping) * w + damping * (v + operator(w))

        w = jax.lax.fori_loop(0, terms - 1, add, damping * v)
        return w, _linear_info(operator, v, w, filled(v, terms - 1), tol)

    return Adjoint(solve, exact=False)


@shared
def one_step() -> Adjoint:
    """w = v: the gradient of one step at the equilibrium, Jacobian-free.

    Source: Fung et al. (2022), JFB.

    Example: see `neumann`.
    """

    def solve(
        operator: Linear, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        # Its residual is not measured: that would cost the product that it saves.
        return v, EquilibriumInfo(
            filled(v, jnp.nan), filled(v, 0), filled(v, CONVERGED)
        )

    return Adjoint(solve, exact=False)


@checked(num_steps=at_least(1))
def unrolled(num_steps: int = 20) -> Unrolled:
    """Differentiates steps of the solver, to any order and in both modes.

    Memory grows with the steps.
    ``max_steps`` does not count here, and ``tol`` only decides which examples count as
    converged.

    Args:
      num_steps: of the solver, at least 1.

    Source: Xie et al. (2021), Section 4.2; K = 20 in Section 5.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> step, start = lambda slope, z, x: slope * z + 1.0, jnp.zeros(())
      >>> options = {"adjoint": unrolled(50), "batch_ndim": 0}
      >>> fixed_point = lambda slope: unroll_jax.equilibrium(
      ...     step, slope, start, **options
      ... )[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)  # of 1 / (1 - slope)
      4.0
    """
    return Unrolled(num_steps)


#: Ways to the gradient of `equilibrium` by name. Each entry is a factory whose options
#: have defaults.
ADJOINTS: dict[str, Callable[..., Adjoint | Unrolled]] = {
    "gmres": gmres,
    "conjugate_gradient": conjugate_gradient,
    "neumann": neumann,
    "one_step": one_step,
    "unrolled": unrolled,
}


def resolve_adjoint(adjoint: str | Adjoint | Unrolled) -> Adjoint | Unrolled:
    """Returns the entry of a name of `ADJOINTS`, or the one given.

    Raises a ValueError or TypeError if it is neither.
    """
    entry = look_up("adjoint", adjoint, ADJOINTS, Adjoint, Unrolled)
    return entry if isinstance(entry, Adjoint | Unrolled) else entry()


def unroll_solver(
    apply: Map, z: Float[Array, "b m"], solver: Solver, rule: Rule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """``rule.max_steps`` updates in a scan that autodiff goes through; the residual
    is of the last evaluation."""
    if solver.update is None:
        raise ValueError(
            'adjoint="unrolled" needs a solver whose steps can be differentiated, such'
            ' as "picard"'
        )
    update, none = solver.update, filled(z, False)

    def body(carry: tuple[Array, Any, Array], number: Array) -> tuple[Any, Array]:
        z, memory, scale = carry
        fz = apply(z)
        sizes = jax.lax.stop_gradient(
            measure(rule, fz, z, scale, first=number == 0, frozen=False)
        )
        point = Point(z, fz, jnp.sqrt(sizes.residual), sizes.unit, ~none, none, number)
        z, memory = update(point, memory)
        return (z, memory, sizes.scale), sizes.residual

    begin = z, solver.init(z), jax.lax.stop_gradient(largest(z))
    (z, _, _), residuals = jax.lax.scan(
        body, begin, jnp.arange(rule.max_steps, dtype=jnp.int32)
    )
    return z, judge(rule, residuals[-1], filled(z, rule.max_steps))


def flag_asymmetric(
    info: EquilibriumInfo, operator: Linear, like: Float[Array, "b m"], epsilon: float
) -> EquilibriumInfo:
    """Returns ``info`` with the status of rows whose Jacobian is not symmetric.

    It takes two products. The measure is |<p, J^T q> - <q, J^T p>| / (|J^T p| |q| +
    |J^T q| |p|) for two random vectors of the shape of ``like``. ``epsilon`` is the
    relative spacing of the dtype that J is computed in.
    """

    def norm(v: Array) -> Array:
        return jnp.sqrt(dot(v, v))

    # Adding zeros copies the sharding of `like`, also where it has NaN.
    zeros = 0.0 * jnp.where(like == like, like, 0.0)
    first, second = jax.random.split(jax.random.key(0))
    p = jax.random.normal(first, like.shape, like.dtype) + zeros
    q = jax.random.normal(second, like.shape, like.dtype) + zeros
    image_p = operator(p)
    image_q = operator(q)
    difference = jnp.abs(dot(p, image_q) - dot(q, image_p))
    scale = norm(image_p) * norm(q) + norm(image_q) * norm(p)
    # Random vectors are nearly orthogonal to random images; sqrt(m) brings the measure
    # to the order of |J - J^T| / |J|.
    size = like.shape[-1] ** 0.5 * difference / jnp.where(scale > 0.0, scale, 1.0)
    is_asymmetric = size > max(ASYMMETRY, ROUND_OFF * epsilon)
    return info._replace(status=jnp.where(is_asymmetric, NONSYMMETRIC, info.status))


def _linear_info(
    operator: Linear, v: Array, w: Array, steps: Array, tol: float
) -> EquilibriumInfo:
    """The true residual, not the recurrence's, and its status."""
    left, size = v - (w - operator(w)), dot(v, v)
    rule = Rule(tol, 0, float(jnp.finfo(v.dtype).eps))
    return judge(rule, dot(left, left) / jnp.where(size > 0.0, size, 1.0), steps)
