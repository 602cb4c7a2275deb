"""Iterations for maps that are the gradient of a convex potential: their Jacobian is symmetric."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.fixed_point.linear import conjugate_gradient
from unroll_jax.fixed_point.problem import Problem, filled, norm, per_example
from unroll_jax.fixed_point.solvers import Point, Solver

__all__ = ["accelerated_gradient", "newton_cg"]


class _Momentum(NamedTuple):
    previous: Float[Array, "b m"]
    weight: Float[Array, " b"]


def accelerated_gradient() -> Solver:
    r"""Nesterov's accelerated gradient on the convex h with grad h(z) = z - f(z), with restarts.

    Needs J symmetric with spectrum in [0, 1] (every OptEq layer), so that h is convex and 1-smooth. With spectral
    radius c it needs about sqrt(1 / (1 - c)) steps a digit where Picard needs 1 / (1 - c), and no c is asked for.

    Source: Nesterov (1983); O'Donoghue and Candes (2015), gradient restart.
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

    return Solver(init=init, update=update, symmetric=True)


class _Newton(NamedTuple):
    fallback: Float[Array, "b m"]
    residual: Float[Array, " b"]


@typed
def newton_cg(*, forcing: float = 0.1, max_inner_steps: int = 100) -> Solver:
    r"""Semismooth Newton: (I - J) d = f(z) - z by conjugate gradients, z' = z + d.

    Needs J symmetric with spectrum in [0, 1). The inner tolerance is min(forcing, residual), which keeps convergence
    quadratic; a step that raises the residual is taken back and a Picard step put in its place. It counts evaluations
    of f, not the products of the inner solves.

    Args:
      forcing: largest relative tolerance of the inner solve, in (0, 1).
      max_inner_steps: cap of the inner solve, at least 1.

    Raises:
      ValueError: if an argument is outside what is stated here.

    Source: Qi and Sun (1993); Dembo, Eisenstat, Steihaug (1982) for the inner tolerance.
    """
    if not 0.0 < forcing < 1.0:
        raise ValueError(f"forcing must be in (0, 1), got {forcing}")
    if max_inner_steps < 1:
        raise ValueError(f"max_inner_steps must be at least 1, got {max_inner_steps}")

    def init(z: Array) -> _Newton:
        return _Newton(z, filled(z, jnp.inf))

    def update(problem: Problem, point: Point, memory: _Newton) -> tuple[Array, Any]:
        difference = point.fz - point.z
        size = norm(difference)
        tolerance = jnp.minimum(forcing, point.residual)
        wanted = point.going & (size > 0.0)
        scaled = jnp.where(wanted[:, None], difference / jnp.where(wanted, size, 1.0)[:, None], 0.0)
        direction, _ = conjugate_gradient(problem.pull(point.z), scaled, tol=tolerance, max_steps=max_inner_steps)
        worse = ~(size < memory.residual)
        z = per_example(worse, memory.fallback, point.z + size[:, None] * direction)
        return z, _Newton(point.fz, jnp.where(worse, jnp.inf, size))

    return Solver(init=init, update=update, symmetric=True, unrollable=False)
