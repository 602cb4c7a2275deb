"""Types of fixed-point problems, solvers and adjoints, and their diagnostics."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.flat_states import norm

__all__ = [
    "CONVERGED",
    "MAX_STEPS",
    "NONFINITE",
    "NONSYMMETRIC",
    "ROUND_OFF",
    "STALLED",
    "STATUS",
    "Adjoint",
    "Limits",
    "Linear",
    "Point",
    "Problem",
    "Solution",
    "SolveInfo",
    "Solver",
    "Unrolled",
    "judge",
    "linear_info",
]

# How a solve of one example ended.
CONVERGED, STALLED, MAX_STEPS, NONFINITE, NONSYMMETRIC = range(5)
#: Ends of the solve of an example, in words; ``info.status`` is an index into these.
STATUS = (
    "converged",
    "stalled at round-off",
    "reached max_steps",
    "met a value that is not finite",
    "has a Jacobian that is not symmetric, which this method needs (choose another),",
)
# A relative residual under this many epsilons is what rounding the values of a map and of its sums leaves.
ROUND_OFF = 16.0

Linear = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]  # a linear map of each row, all rows at once


class Problem(NamedTuple):
    """A map on flat states, one row an example.

    Attributes:
      apply: ``z (b, m) -> f(z) (b, m)``.
      pull: ``z -> (w -> J(z)^T w)``, vector products with the transposed Jacobian of each row.
      epsilon: relative spacing of the numbers f is computed in, the state's own dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> problem = Problem(apply=lambda z: 0.5 * z + 1.0, pull=lambda z: lambda w: 0.5 * w)
      >>> z = jnp.array([[2.0]])  # the fixed point
      >>> problem.apply(z).tolist(), problem.pull(z)(jnp.array([[3.0]])).tolist()
      ([[2.0]], [[1.5]])
    """

    apply: Callable[[Float[Array, "b m"]], Float[Array, "b m"]]
    pull: Callable[[Float[Array, "b m"]], Linear]
    epsilon: float = float(jnp.finfo(jnp.float32).eps)

    @property
    def floor(self) -> float:
        """The relative residual that round-off alone explains."""
        return ROUND_OFF * self.epsilon


class SolveInfo(NamedTuple):
    """Diagnostics of a solve, per example.

    Attributes:
      residual: relative, |f(z) - z| / |f(z)| of the state returned, see `relative` (for an adjoint
        |v + J^T w - w| / |v|).
      steps: steps taken until it ended.
      status: how it ended, an index into `STATUS`.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.fixed_point import neumann
      >>> _, info = neumann(3).solve(lambda w: 0.5 * w, jnp.ones((1, 1)), 1e-6, 20)
      >>> info.residual.tolist(), STATUS[int(info.status[0])]  # 3 terms leave 1 / 8
      ([0.125], 'reached max_steps')
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """True where the tolerance was met, or the residual is as small as round-off lets it be."""
        return self.status <= STALLED


class Point(NamedTuple):
    """The state of an iteration: of each row z, f(z), relative residual and whether it is active; steps taken so far.

    Example:
      >>> import jax.numpy as jnp
      >>> z, fz = jnp.ones((1, 2)), jnp.zeros((1, 2))
      >>> point = Point(z, fz, residual=jnp.ones(1), going=jnp.array([True]), number=jnp.array(1))
      >>> (0.5 * (point.z + point.fz)).tolist()  # from here, a damped step
      [[0.5, 0.5]]
    """

    z: Float[Array, "b m"]
    fz: Float[Array, "b m"]
    residual: Float[Array, " b"]
    going: Bool[Array, " b"]
    number: Int[Array, ""]


class Solver(NamedTuple):
    """A fixed-point iteration on states (b, m), as pure functions.

    Attributes:
      init: ``z -> memory``, a pytree whose leaves lead with the example axis.
      update: ``(problem, point, memory) -> (z', memory')``.
      symmetric: whether it needs a map whose Jacobian is symmetric.
      unrollable: whether reverse-mode autodiff can go through ``update``.
      whole: ``(problem, z, tol, max_steps) -> (z, steps)`` in place of the two, for loops that are not ours and those
        that do not stop on a residual; steps unrolled for autodiff are ``update`` all the same.
      plain: plain steps, z' = f(z), come first, as long as each makes every residual so many times smaller; None has
        none of them. Steps unrolled for autodiff are ``update`` from the first on.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> halfway = Solver(lambda z: (), lambda problem, point, memory: (0.5 * (point.z + point.fz), memory))
      >>> z, _ = equilibrium(lambda w, z, x: 1.0 - w * z, 1.0, jnp.zeros(()), solver=halfway, batch_ndim=0)
      >>> round(float(z), 3)  # plain steps go 0, 1, 0, 1
      0.5
    """

    init: Callable[[Float[Array, "b m"]], Any]
    update: Callable[[Problem, Point, Any], tuple[Float[Array, "b m"], Any]]
    symmetric: bool = False
    unrollable: bool = True
    whole: Callable[[Problem, Float[Array, "b m"], float, int], tuple[Float[Array, "b m"], Int[Array, " b"]]] | None = (
        None
    )
    plain: float | None = None


class Limits(NamedTuple):
    """The end of forward solves, see `equilibrium`."""

    tol: float
    atol: float | None
    max_steps: int


class Solution(NamedTuple):
    """A solution of z = f(z).

    Attributes:
      z: the best state.
      info: how the solve ended.
      residuals: what `factored_adjoint` reads of it, or None.
      reach: of `relative`, where ``info`` has another residual than that of the step; else None.
    """

    z: Float[Array, "b m"]
    info: SolveInfo
    residuals: Any
    reach: Float[Array, " b"] | None


class Adjoint(NamedTuple):
    """A solver of w - J^T w = v, for cotangents v of about unit norm in every row.

    Attributes:
      solve: ``(operator, v, tol, max_steps) -> (w, SolveInfo)``; ``operator`` is w -> J^T w.
      symmetric: whether it needs J symmetric.
      exact: whether it solves the system to ``tol``; an inexact one never counts as failed.

    Example:
      >>> from unroll_jax.fixed_point import conjugate_gradient, neumann
      >>> conjugate_gradient().symmetric, neumann(3).exact  # needs a symmetric J; is not exact
      (True, False)
    """

    solve: Callable[[Linear, Float[Array, "b m"], float, int], tuple[Float[Array, "b m"], SolveInfo]]
    symmetric: bool = False
    exact: bool = True


class Unrolled(NamedTuple):
    """No adjoint system: steps that are differentiated themselves, see `unrolled`, `phantom` and `reversible`.

    Attributes:
      num_steps: how many.
      share: of f(z) in each step, where ``kind`` is not "solver".
      kind: "solver", steps of the solver from the start; "phantom", damped steps from the solution; "reversible".

    Example:
      >>> from unroll_jax.fixed_point import unrolled
      >>> unrolled(5).num_steps
      5
    """

    num_steps: int
    share: float = 1.0
    kind: str = "solver"


def judge(
    residual: Float[Array, " b"], steps: Int[Array, " b"], tol: float, epsilon: float, idle: Bool[Array, " b"]
) -> SolveInfo:
    """Returns how solves ended, from their residuals; ``idle`` where nothing had improved lately."""
    status = jnp.where(idle & (residual <= ROUND_OFF * epsilon), STALLED, MAX_STEPS)
    status = jnp.where(residual <= tol, CONVERGED, status)
    return SolveInfo(residual, steps, jnp.where(jnp.isfinite(residual), status, NONFINITE).astype(jnp.int32))


def linear_info(operator: Linear, v: Array, w: Array, steps: Array, tol: float | Array) -> SolveInfo:
    """The true residual, not the recurrence's, and its status."""
    size = norm(v)
    residual = norm(v - (w - operator(w))) / jnp.where(size > 0.0, size, 1.0)
    status = jnp.where(residual <= tol, CONVERGED, MAX_STEPS)
    return SolveInfo(residual, steps, jnp.where(jnp.isfinite(residual), status, NONFINITE).astype(jnp.int32))
