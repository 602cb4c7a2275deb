"""jaxopt's solvers as entries of our tables: its loops, our measure of their results."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, one_of
from unroll_jax.fixed_point.flat_states import norm
from unroll_jax.fixed_point.problem import Adjoint, Linear, Problem, SolveInfo, Solver, linear_info

__all__ = ["jaxopt_adjoint", "jaxopt_anderson", "jaxopt_fixed_point"]

METHODS = ("normal_cg", "cg", "gmres", "bicgstab")


def jaxopt_fixed_point() -> Solver:
    """`jaxopt.FixedPointIteration`: stops by the norm over the whole batch, scaled so that every row converges.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the library.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = unroll_jax.equilibrium(step, 0.5, start, solver=jaxopt_fixed_point(), batch_ndim=0)
      >>> round(float(z), 3)
      2.0
    """
    return _whole("FixedPointIteration")


@checked(window=at_least(1))
def jaxopt_anderson(window: int = 5, *, ridge: float = 1e-5, mixing: float = 1.0) -> Solver:
    """`jaxopt.AndersonAcceleration`, with one set of weights for the whole batch.

    Args:
      window: its history_size, at least 1.
      ridge: its absolute ridge, added to the Gram matrix.
      mixing: its beta.

    Raises:
      ValueError: if window is below 1.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the library.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = unroll_jax.equilibrium(step, 0.5, start, solver=jaxopt_anderson(window=2), batch_ndim=0)
      >>> round(float(z), 3)
      2.0
    """
    return _whole("AndersonAcceleration", history_size=window, ridge=ridge, beta=mixing)


@checked(method=one_of(METHODS))
def jaxopt_adjoint(method: str = "normal_cg") -> Adjoint:
    """A linear solver of `jaxopt.linear_solve`, on the whole batch as one system; it does not count its steps (-1).

    Args:
      method: "normal_cg" (jaxopt's default for implicit gradients), "gmres" or "bicgstab" for any J, "cg" for a
        symmetric one.

    Raises:
      ValueError: if method is none of these.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the library.

    Example:
      >>> import jax.numpy as jnp
      >>> w, _ = jaxopt_adjoint("cg").solve(lambda w: 0.5 * w, jnp.ones((1, 1)), 1e-6, 20)
      >>> round(w.item(), 3)  # w - w / 2 = 1
      2.0
    """
    linear_solve = getattr(_jaxopt("jaxopt.linear_solve"), f"solve_{method}")

    def solve(operator: Linear, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        _check_one_device(v)
        # It stops by the norm over the batch: a sqrt(b)-th of it is a row's share. Normal equations square sizes.
        share = tol / v.shape[0] ** 0.5 * (0.1 if method == "normal_cg" else 1.0)
        w = linear_solve(lambda w: w - operator(w), v, tol=share, maxiter=max_steps)
        return w, linear_info(operator, v, w, jnp.full(v.shape[0], -1, jnp.int32), tol)

    return Adjoint(solve, symmetric=method == "cg")


def _check_one_device(z: Array) -> None:
    """Raises for arrays with sharding in their type, on which jaxopt's loops and products fail."""
    kind = jax.typeof(z)
    if kind.manual_axis_type.varying or any(axes is not None for axes in kind.sharding.spec):
        raise ValueError(
            f"jaxopt's solvers do not take states of type {kind}, sharded by jax.shard_map or an explicit mesh; choose "
            "another solver or adjoint"
        )


def _jaxopt(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
        return importlib.import_module(module)


def _whole(name: str, **options: Any) -> Solver:
    factory: Callable[..., Any] = getattr(_jaxopt("jaxopt"), name)

    def whole(problem: Problem, z: Float[Array, "b m"], tol: float, max_steps: int) -> tuple[Array, Array]:
        _check_one_device(z)
        least = jnp.min(norm(problem.apply(z)))
        # An absolute tolerance is a constant of its loop: the map is scaled instead, so that the least row has size 1.
        scale = jnp.where(least > 0.0, least, 1.0)
        loop = factory(
            lambda z: problem.apply(z * scale) / scale, maxiter=max_steps, tol=tol, implicit_diff=False, **options
        )
        z, state = loop.run(z / scale)
        return jax.lax.stop_gradient(z * scale), jnp.full(z.shape[0], state.iter_num, jnp.int32)

    return Solver(
        init=lambda z: (), update=lambda problem, point, memory: (point.fz, memory), unrollable=False, whole=whole
    )
