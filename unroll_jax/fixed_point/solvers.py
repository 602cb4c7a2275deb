"""Fixed-point iterations by name: plain steps, steps that average, and those for symmetric Jacobians."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import POSITIVE, checked, in_interval, look_up, require
from unroll_jax.fixed_point.flat_states import filled
from unroll_jax.fixed_point.problem import Point, Problem, Solver
from unroll_jax.fixed_point.quasi_newton import anderson

__all__ = [
    "SOLVERS",
    "accelerated_gradient",
    "averaged",
    "damped",
    "picard",
    "picard_anderson",
    "resolve_solver",
]


def picard() -> Solver:
    """z' = f(z): converges at the rate of f's contraction.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = unroll_jax.equilibrium(step, 0.5, start, solver=picard(), batch_ndim=0)
      >>> round(float(z), 3)
      2.0
    """
    return damped(1.0)


@checked(share=in_interval("(0, 1]"))
def damped(share: float = 0.5) -> Solver:
    """z' = (1 - share) z + share f(z) (Krasnoselskii-Mann): converges for every f that is nonexpansive.

    Args:
      share: of f(z) in the step, in (0, 1]; 1 is `picard`.

    Raises:
      ValueError: if share is outside (0, 1].

    Source: Krasnoselskii (1955); Mann (1953).

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> reflect, start = lambda w, z, x: w - z, jnp.zeros(())  # plain steps go 0, 1, 0, 1
      >>> z, info = unroll_jax.equilibrium(reflect, 1.0, start, solver=damped(0.5), batch_ndim=0)
      >>> round(float(z), 3)
      0.5
    """

    def update(problem: Problem, point: Point, memory: Any) -> tuple[Array, Any]:
        return (point.fz if share == 1.0 else point.z + share * (point.fz - point.z)), memory

    return Solver(init=lambda z: (), update=update)


@checked(smoothness=POSITIVE, eta=in_interval("(0, 1]"))
def averaged(
    regulariser: Callable[[Float[Array, "..."]], Float[Array, ""]] | None = None,
    *,
    smoothness: float = 1.0,
    eta: float = 1.0,
    p: float = 0.5,
    c: float = 0.2,
    couples_examples: bool = False,
) -> Solver:
    r"""Modified SAM: averages the map with shrinking steps on a regulariser R.

    .. math:: z^k = \beta_k S_{\lambda_k}(z^{k-1}) + (1 - \beta_k) T(z^{k-1}) , \quad
              S_\lambda(z) = (1 - \gamma \lambda) z - \gamma \nabla R(z) , \quad
              \beta_k = \eta / k^p , \; \lambda_k = \eta / k^c , \; \gamma = 1 / (2 L_R) .

    For T nonexpansive and R convex with L_R-Lipschitz gradient it converges to the fixed point of least R. It converges
    slowly (the weights fall as powers of k): its use is a T with many fixed points. It takes all of ``max_steps``,
    wherever it starts: a fixed point need not be the one of least R.

    Args:
      regulariser: R of one state as a vector; None is |z|^2 / 2.
      smoothness: L_R > 0, Lipschitz constant of R's gradient.
      eta: scale of both schedules, in (0, 1].
      p: exponent of beta, positive.
      c: exponent of lambda, positive, with p + 2 c < 1.
      couples_examples: whether R is of all states at once, a matrix (b, m), an example a row.

    Raises:
      ValueError: if an argument is out of range.

    Source: Xie et al. (2021), eq. 10 and Theorem 4.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> keep_sum = lambda w, z, x: z + w * (2.0 - z.sum())  # every z with z_1 + z_2 = 2 is a fixed point
      >>> options = {"solver": averaged(), "max_steps": 500, "on_failure": "accept", "batch_ndim": 0}
      >>> z, _ = unroll_jax.equilibrium(keep_sum, 0.5, jnp.array([3.0, -1.0]), **options)
      >>> bool(abs(z[0] - z[1]) < 0.1)  # near (1, 1), the one of least norm
      True
    """
    require(p > 0.0 and c > 0.0 and (p + 2.0 * c < 1.0), "p and c", "be positive with p + 2 c < 1", f"p={p}, c={c}")
    gamma = 0.5 / smoothness

    def slope(z: Float[Array, "b m"]) -> Float[Array, "b m"]:
        if regulariser is None:
            return z
        return jax.grad(regulariser)(z) if couples_examples else jax.vmap(jax.grad(regulariser))(z)

    def average(z: Array, fz: Array, number: Int[Array, ""]) -> Array:
        k = (number + 1).astype(z.dtype)
        beta, weight = eta / k**p, eta / k**c
        return beta * ((1.0 - gamma * weight) * z - gamma * slope(z)) + (1.0 - beta) * fz

    def update(problem: Problem, point: Point, memory: Any) -> tuple[Array, Any]:
        return average(point.z, point.fz, point.number), memory

    def whole(problem: Problem, z: Array, tol: float, max_steps: int) -> tuple[Array, Int[Array, " b"]]:
        end = jax.lax.fori_loop(0, max_steps, lambda k, z: average(z, problem.apply(z), jnp.asarray(k)), z)
        return end, jnp.full(z.shape[0], max_steps, jnp.int32)

    return Solver(init=lambda z: (), update=update, whole=whole)


class _Momentum(NamedTuple):
    previous: Float[Array, "b m"]
    weight: Float[Array, " b"]


@checked()
def accelerated_gradient(*, proximal: bool = False) -> Solver:
    r"""Nesterov's accelerated gradient on the convex h with grad h(z) = z - f(z), with restarts.

    Needs J symmetric with spectrum in [0, 1] (every OptEq layer), so that h is convex and 1-smooth. With spectral
    radius c it needs about sqrt(1 / (1 - c)) steps a digit where Picard needs 1 / (1 - c), and no c is asked for.

    Args:
      proximal: whether f is a proximal gradient step, as of `prox_gradient`: then this is FISTA with restarts, and J,
        which need not be symmetric, is not probed.

    Source: Beck and Teboulle (2009), FISTA; Nesterov (1983); O'Donoghue and Candes (2015), gradient restart.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = unroll_jax.equilibrium(step, 0.9, start, solver=accelerated_gradient(), batch_ndim=0)
      >>> bool(info.converged), abs(float(z) - 10.0) < 0.01
      (True, True)
    """

    def init(z: Array) -> _Momentum:
        return _Momentum(z, filled(z, 1.0))

    def update(problem: Problem, point: Point, memory: _Momentum) -> tuple[Array, _Momentum]:
        moved = point.fz - memory.previous
        uphill = jnp.sum((point.z - point.fz) * moved, axis=-1) > 0.0
        weight = jnp.where(uphill, 1.0, memory.weight)
        following = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * weight**2))
        share = jnp.where(uphill, 0.0, (weight - 1.0) / following)
        return point.fz + share[:, None] * moved, _Momentum(point.fz, following)

    return Solver(init=init, update=update, symmetric=not proximal)


@checked()
def picard_anderson(fall: float = 1.25, *, window: int = 5) -> Solver:
    """Plain steps as long as each makes every example's residual ``fall`` times smaller, then `anderson`.

    Where a map contracts that well, plain steps need hardly more evaluations than extrapolation, and no history. After
    a quick step the next residuals are looked at up to 8 steps on: an example may end that many steps late.

    Args:
      fall: how many times smaller a plain step must make every residual, above 1.
      window: as in `anderson`.

    Raises:
      ValueError: if fall is not above 1 or not finite, or window is below 1.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = unroll_jax.equilibrium(step, 0.9, start, solver=picard_anderson(), batch_ndim=0)
      >>> round(float(z), 2), int(info.steps) < 20  # `picard` needs more than 60
      (10.0, True)
    """
    require(fall > 1.0 and math.isfinite(fall), "fall", "be above 1 and finite", fall)
    return anderson(window)._replace(plain=fall)


#: Solvers of `equilibrium` by name; each entry is a factory whose options have defaults.
SOLVERS: dict[str, Callable[..., Solver]] = {
    "picard": picard,
    "picard_anderson": picard_anderson,
    "damped": damped,
    "anderson": anderson,
    "averaged": averaged,
    "accelerated_gradient": accelerated_gradient,
}


def resolve_solver(solver: str | Solver) -> Solver:
    """The `Solver` of a name of `SOLVERS`, or the `Solver` given.

    Raises:
      ValueError: if the name is not in `SOLVERS`.
      TypeError: if it is neither a name nor a `Solver`.
    """
    entry = look_up("solver", solver, SOLVERS, Solver)
    return entry if isinstance(entry, Solver) else entry()
