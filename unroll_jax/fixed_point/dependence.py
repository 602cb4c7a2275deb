"""A check that examples do not depend on each other."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.fixed_point.computation import NO_DERIVATIVE
from unroll_jax.fixed_point.program import Problem, Program
from unroll_jax.fixed_point.reports import known, report_dependence
from unroll_jax.fixed_point.rows import largest
from unroll_jax.fixed_point.stopping import ROUND_OFF

__all__ = ["check_examples"]


def check_examples(
    problem: Problem, y: Float[Array, "b m"], *, in_jit: bool = False
) -> Array:
    """Returns ``y``; raises an error if examples depend on each other.

    Traced code is checked only if ``in_jit``.
    """
    program = problem.program
    operands = jax.lax.stop_gradient(problem.operands)
    if not program.batch or not (in_jit or known([y, *operands])):
        return y
    try:
        dependent = _dependence(program, operands, y)
    # a step without a derivative, which could not be wrong
    except NO_DERIVATIVE:
        return y
    return report_dependence(y, dependent, len(program.batch))


@functools.partial(jax.jit, static_argnums=0)
def _dependence(
    program: Program, operands: Any, y: Float[Array, "b m"]
) -> Float[Array, " b"]:
    """Returns for each row how much it changes f of others; 0 if rows are separate.

    Perturbs odd rows, even rows and row 0, and checks that no other row changes. Other
    kinds of mixing are not detected.
    """
    transpose = program.transpose(operands, y)
    row = jnp.arange(y.shape[0])
    draw = jax.random.normal(jax.random.key(0), y.shape, y.dtype)

    def change(rows: Array) -> Array:
        cotangent = jnp.where(rows[:, None], draw, 0.0 * y)
        sizes = largest(transpose(cotangent))
        finite = jnp.where(jnp.isfinite(sizes), sizes, 0.0)
        round_off = ROUND_OFF * program.epsilon * jnp.max(finite, initial=0.0)
        return jnp.where(~rows & (sizes > round_off), sizes, 0.0)

    groups = (row % 2 == 1, row % 2 == 0, row == 0)
    return functools.reduce(jnp.fmax, map(change, groups))
