"""Fixed-point iterations of jaxopt as a `Solver`: its loop, our measure of the result."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.fixed_point.flat_states import norm
from unroll_jax.fixed_point.problem import Problem, Solver

__all__ = ["jaxopt_solver"]


def jaxopt_solver(iteration: Callable[..., Any], **options: Any) -> Solver:
    """An iterative solver of jaxopt, on the whole batch as one problem.

    Args:
      iteration: such as `jaxopt.AndersonAcceleration`, of a fixed point; or, such as `jaxopt.Broyden`, of a root. The
        latter is given z - f(z).
      **options: of its constructor, but for the tolerance and the number of steps.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the library.
    """
    root = "fixed_point_fun" not in inspect.signature(iteration).parameters

    def whole(problem: Problem, z: Float[Array, "b m"], tol: float, max_steps: int) -> tuple[Array, Array]:
        kind = jax.typeof(z)
        if kind.manual_axis_type.varying or any(axes is not None for axes in kind.sharding.spec):
            raise ValueError(f"jaxopt's solvers take no sharded states, got {kind}; choose another solver")
        least = jnp.min(norm(problem.apply(z)))
        # An absolute tolerance is a constant of its loop: the map is scaled instead, so that the least row has size 1.
        scale = jnp.where(least > 0.0, least, 1.0)

        def function(z: Array) -> Array:
            after = problem.apply(z * scale) / scale
            return z - after if root else after

        z, state = iteration(function, maxiter=max_steps, tol=tol, implicit_diff=False, **options).run(z / scale)
        return jax.lax.stop_gradient(z * scale), jnp.full(z.shape[0], state.iter_num, jnp.int32)

    return Solver(lambda z: (), lambda problem, point, memory: (point.fz, memory), unrollable=False, whole=whole)
