"""Sequential averaging: of all fixed points, the one a regulariser likes best."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import typed
from unroll_jax.fixed_point.problem import Problem
from unroll_jax.fixed_point.solvers import Point, Solver

__all__ = ["averaged"]


@typed
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
    wherever it starts: that a state is a fixed point does not say that it is the one of least R.

    Args:
      regulariser: R of one state as a vector; None is |z|^2 / 2.
      smoothness: L_R > 0, Lipschitz constant of R's gradient.
      eta: scale of both schedules, in (0, 1].
      p: exponent of beta, positive.
      c: exponent of lambda, positive, with p + 2 c < 1.
      couples_examples: whether R is of all states at once, a matrix (b, m), an example a row.

    Raises:
      ValueError: if an argument is outside what is stated here.

    Source: Xie et al. (2021), eq. 10 and Theorem 4.
    """
    if not smoothness > 0.0:
        raise ValueError(f"smoothness must be positive, got {smoothness}")
    if not 0.0 < eta <= 1.0:
        raise ValueError(f"eta must be in (0, 1], got {eta}")
    if not (p > 0.0 and c > 0.0 and p + 2.0 * c < 1.0):
        raise ValueError(f"p and c must be positive with p + 2 c < 1, got p={p}, c={c}")
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
