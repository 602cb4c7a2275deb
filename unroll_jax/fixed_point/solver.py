"""What a fixed-point solver is: pure functions on states with examples as rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int

__all__ = ["Map", "Point", "Solver"]

# A map of each row, all rows at once.
Map = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]


class Point(NamedTuple):
    """The state of an iteration, as a `Solver` sees it.

    Attributes:
      z, fz: states with examples as rows, and f(z).
      residual: relative residual of each row.
      inverse: reciprocal of a power of two near each row's largest entry. Squares of
        z * inverse neither underflow nor overflow.
      active: rows that have not ended.
      age: updates since the row last returned to its best state; 0 if it returns there
        now. Earlier points no longer count.
      number: updates so far.

    Example:
      >>> import jax.numpy as jnp
      >>> z, fz, one = jnp.ones((1, 2)), jnp.zeros((1, 2)), jnp.ones(1)
      >>> point = Point(z, fz, one, one, one > 0, jnp.array([1]), jnp.array(1))
      >>> (0.5 * (point.z + point.fz)).tolist()  # from here, a damped step
      [[0.5, 0.5]]
    """

    z: Float[Array, "b m"]
    fz: Float[Array, "b m"]
    residual: Float[Array, " b"]
    inverse: Float[Array, " b"]
    active: Bool[Array, " b"]
    age: Int[Array, " b"]
    number: Int[Array, ""]


class Solver(NamedTuple):
    """A fixed-point iteration on states (b, m), as pure functions.

    Attributes:
      init: ``z -> memory``, a pytree whose leaves lead with the example axis.
      update: ``(point, memory) -> (z', memory')``; None if there is only ``run``.
      symmetric: True if it needs a map whose Jacobian is symmetric.
      extrapolates: True if an update can leave the span of earlier states, as
        Anderson's can. Plain steps, z' = f(z), then come first, as long as they
        contract quickly. A row returns to its best state if |f(z) - z| rises too far.
      run: ``(f, z, tol, max_steps) -> (z, steps)``. A complete solve that replaces
        ``init`` and ``update``, for external solvers and fixed numbers of steps. Steps
        unrolled for autodiff are still ``update``.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> halve = lambda point, memory: (0.5 * (point.z + point.fz), memory)
      >>> halfway = Solver(init=lambda z: (), update=halve)
      >>> step, start = lambda w, z, x: 1.0 - w * z, jnp.zeros(())
      >>> z, _ = equilibrium(step, 1.0, start, solver=halfway, batch_ndim=0)
      >>> round(float(z), 3)  # plain steps go 0, 1, 0, 1
      0.5
    """

    init: Callable[[Float[Array, "b m"]], Any]
    update: Callable[[Point, Any], tuple[Float[Array, "b m"], Any]] | None
    symmetric: bool = False
    extrapolates: bool = False
    run: (
        Callable[
            [Map, Float[Array, "b m"], float, int],
            tuple[Float[Array, "b m"], Int[Array, " b"]],
        ]
        | None
    ) = None
