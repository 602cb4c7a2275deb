"""Adjoints without a linear system: steps that autodiff goes through."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, in_interval
from unroll_jax.fixed_point.loop import Map, Point, Rule, Solver, filled, judge, largest, measure
from unroll_jax.fixed_point.reports import EquilibriumInfo

__all__ = ["Unrolled", "phantom", "unroll_solver", "unrolled"]


class Unrolled(NamedTuple):
    """No adjoint system: steps that are differentiated themselves, see `unrolled` and `phantom`.

    Attributes:
      num_steps: how many.
      damping: of steps from the solution; None are steps of the solver from the start.

    Example:
      >>> from unroll_jax.fixed_point import unrolled
      >>> unrolled(5).num_steps
      5
    """

    num_steps: int
    damping: float | None = None


@checked(num_steps=at_least(1))
def unrolled(num_steps: int = 20) -> Unrolled:
    """Steps of the solver differentiated by autodiff, to any order and in both modes; memory grows with the steps.

    ``max_steps`` does not count here, and ``tol`` only decides which examples count as converged.

    Args:
      num_steps: of the solver, at least 1.

    Source: Xie et al. (2021), Section 4.2; K = 20 in Section 5.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):
      ...     return unroll_jax.equilibrium(
      ...         lambda slope, z, x: slope * z + 1.0, slope, jnp.zeros(()), adjoint=unrolled(50), batch_ndim=0
      ...     )[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)  # of 1 / (1 - slope)
      4.0
    """
    return Unrolled(num_steps)


@checked(num_steps=at_least(1), damping=in_interval("(0, 1]"))
def phantom(num_steps: int = 5, *, damping: float = 1.0) -> Unrolled:
    r"""Phantom gradients: damped steps from the equilibrium, differentiated by autodiff.

    .. math:: z \leftarrow (1 - \lambda) z + \lambda f(z) ,

    from the solution of the forward solve, which receives no gradient. The result is the last of these states. Memory
    grows with ``num_steps``, and not with the forward solve; derivatives are of any order and in both modes, of these
    steps alone.

    Args:
      num_steps: k, at least 1; `one_step` is k = 1 without damping.
      damping: :math:`\lambda`, in (0, 1].

    Source: Geng et al. (2021), On Training Implicit Models, the unrolled form (Section 3.2).

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):
      ...     return unroll_jax.equilibrium(
      ...         lambda slope, z, x: slope * z + 1.0, slope, jnp.zeros(()), adjoint=phantom(3), batch_ndim=0
      ...     )[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)  # 2 (1 + 1 / 2 + 1 / 4), of 4
      3.5
    """
    return Unrolled(num_steps, damping)


def unroll_solver(
    apply: Map, z: Float[Array, "b m"], solver: Solver, rule: Rule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """``rule.max_steps`` updates in a scan that autodiff can go through; the residual is that of the last evaluation.

    Raises:
      ValueError: if the solver has no steps that autodiff can go through.
    """
    if solver.update is None:
        raise ValueError('adjoint="unrolled" needs a solver whose steps can be differentiated, such as "picard"')
    update, none = solver.update, filled(z, False)

    def body(carry: tuple[Array, Any, Array], number: Array) -> tuple[Any, Array]:
        z, memory, scale = carry
        fz = apply(z)
        sizes = jax.lax.stop_gradient(measure(rule, fz, z, scale, first=number == 0, frozen=False))
        point = Point(z, fz, jnp.sqrt(sizes.residual), sizes.unit, ~none, none, number)
        z, memory = update(point, memory)
        return (z, memory, sizes.scale), sizes.residual

    begin = z, solver.init(z), jax.lax.stop_gradient(largest(z))
    (z, _, _), residuals = jax.lax.scan(body, begin, jnp.arange(rule.max_steps, dtype=jnp.int32))
    return z, judge(rule, residuals[-1], filled(z, rule.max_steps))
