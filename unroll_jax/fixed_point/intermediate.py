"""States on the way to an equilibrium, each with a gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array

from unroll_jax.arguments import at_least, checked, in_interval, require
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.backward import as_problem
from unroll_jax.fixed_point.iteration import solver_states, unroll_solver
from unroll_jax.fixed_point.opened import open_step
from unroll_jax.fixed_point.plan import begin
from unroll_jax.fixed_point.problem import Solver
from unroll_jax.fixed_point.solvers import damped, resolve_solver
from unroll_jax.steps import full_precision

__all__ = ["intermediate_states"]


@checked(num_steps=at_least(1), damping=in_interval("(0, 1]"))
@full_precision()
def intermediate_states(
    descent: Descent | Callable[[Params, Any, Any], Any],
    params: Params,
    y0: Any,
    x: Any = None,
    *,
    at: Sequence[int],
    solver: str | Solver = "picard",
    num_steps: int = 1,
    damping: float = 1.0,
    batch_ndim: int | None = None,
) -> Any:
    """States after given numbers of iterations, each followed by ``num_steps`` damped steps with a gradient.

    A loss on them (fixed-point correction) teaches a layer to come near its equilibrium in few iterations. The
    iterations receive no gradient, so memory grows with ``len(at)`` and ``num_steps`` alone. Start `equilibrium` from
    the last of these states: no iteration is then done twice.

    Args:
      descent, params, y0, x, batch_ndim: as in `equilibrium`.
      at: increasing numbers of iterations, at least 1 each.
      solver: of the iterations, a name of `SOLVERS` or a `Solver`; every example takes all of them.
      num_steps: differentiated steps after the iterations, at least 1, as of `phantom`.
      damping: of these steps, in (0, 1].

    Returns:
      States like y0, stacked along a new leading axis of ``len(at)``.

    Raises:
      ValueError: if an option is out of range, or the step changes the state's structure, shapes or dtypes.

    Source: Bai et al. (2022), Deep Equilibrium Optical Flow Estimation, Section 4.2; TorchDEQ's ``indexing``.

    Example:
      >>> import jax.numpy as jnp
      >>> step = lambda w, z, x: w * z + 1.0
      >>> intermediate_states(step, 0.5, jnp.zeros(()), at=(1, 2), batch_ndim=0).tolist()  # one step after each
      [1.5, 1.75]
    """
    numbers = tuple(at)
    ordered = all(before < after for before, after in zip((0, *numbers), numbers, strict=False))
    require(len(numbers) > 0 and ordered, "at", "be increasing numbers of iterations, from 1", at)
    descent, params, y0, x, close = open_step(descent, params, y0, x, False)
    system = begin(descent, params, y0, x, batch_ndim)
    fixed = as_problem(system.rows, jax.lax.stop_gradient(system.operands), system.epsilon)
    moving, steps = as_problem(system.rows, system.operands, system.epsilon), damped(damping)
    states = jax.lax.stop_gradient(solver_states(fixed, system.start, resolve_solver(solver), numbers))

    def corrected(z: Array) -> Any:
        z, _ = unroll_solver(moving, z, steps, num_steps=num_steps, tol=1.0)
        return close(system.restore(z), None)[0]

    return jax.vmap(corrected)(states)
