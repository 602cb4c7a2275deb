"""A reversible fixed-point iteration: its states are recomputed in the backward pass, and not kept."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.fixed_point.checks import Reporting, report_outcome
from unroll_jax.fixed_point.flat_states import norm, ratio
from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, SolveInfo, judge
from unroll_jax.fixed_point.progress import IDLE_AT_THE_CAP
from unroll_jax.steps import full_precision

__all__ = ["RECOVERED", "run_reversible"]

RECOVERED = 0.1  # relative error of the initial state, recomputed; gradients are then off by about 1e-4
ADVICE = "take fewer steps, a smaller share or float64 (jax_enable_x64)"

# ``(function, num_steps, share, reporting)``, where ``function`` is ``(variables, constants, z) -> f(z)``.
_Static = tuple[Callable[..., Array], int, float, Reporting]


def run_reversible(
    function: Callable[[Any, Array], Array],
    operands: Any,
    start: Float[Array, "b m"],
    *,
    num_steps: int,
    share: float,
    epsilon: float,
    reporting: Reporting,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """The last state of the iteration of `reversible`, and the residual of the last evaluation."""
    leaves, structure = jax.tree.flatten(operands)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    wide = jnp.promote_types(start.dtype, jax.dtypes.canonicalize_dtype(jnp.float64))

    def apply(variables: list[Array], constants: list[Any], z: Array) -> Array:
        moving, fixed = iter(variables), iter(constants)
        merged = [next(moving) if i in places else next(fixed) for i in range(len(leaves))]
        return function(structure.unflatten(merged), z.astype(start.dtype)).astype(wide)

    variables = [jnp.asarray(leaves[i]) for i in places]
    constants = [leaf for i, leaf in enumerate(leaves) if i not in places]
    static = (apply, num_steps, share, reporting)
    before, z, fz = _iterate(static, variables, constants, start.astype(wide))
    before, fz = jax.lax.stop_gradient((before, fz))
    residual = ratio(norm(fz - before), norm(fz)).astype(start.dtype)
    steps = jnp.full_like(residual, num_steps, jnp.int32)
    info = judge(residual, steps, reporting.tol, epsilon, idle=steps >= IDLE_AT_THE_CAP)
    return z.astype(start.dtype), info


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _iterate(static: _Static, variables: list[Array], constants: list[Any], start: Array) -> tuple[Array, Array, Array]:
    """The last two states, and f of the first of them; no gradient reaches that value."""
    apply, num_steps, share, _ = static

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        before, z, _ = carry
        fz = apply(variables, constants, z)
        return z, (1.0 - share) * before + share * fz, fz

    return jax.lax.fori_loop(0, num_steps, step, (start, start, start))


def _forward(static: _Static, variables: list[Array], constants: list[Any], start: Array) -> tuple[Any, Any]:
    before, z, fz = _iterate(static, variables, constants, start)
    return (before, z, fz), (variables, constants, start, before, z)


@full_precision()
def _backward(static: _Static, residuals: Any, cotangents: tuple[Array, Array, Array]) -> tuple[Any, Any, Any]:
    apply, num_steps, share, reporting = static
    variables, constants, start, before, z = residuals

    def step(_: Any, carry: Any) -> Any:
        (before, z), (of_before, of_z), gradient = carry
        fz, pull = jax.vjp(lambda variables, z: apply(variables, constants, z), variables, before)
        more, pulled = pull(share * of_z)
        earlier = (z - share * fz) / (1.0 - share)
        gradient = jax.tree.map(jnp.add, gradient, more)
        return (earlier, before), ((1.0 - share) * of_z, of_before + pulled), gradient

    zeros = jax.tree.map(jnp.zeros_like, variables)
    states, _, gradient = jax.lax.fori_loop(0, num_steps, step, ((before, z), cotangents[:2], zeros))
    size = jnp.maximum(norm(z), norm(start))
    error = ratio(jnp.maximum(norm(states[0] - start), norm(states[1] - start)), size)
    status = jnp.where(error <= RECOVERED, CONVERGED, MAX_STEPS)
    info = SolveInfo(error, jnp.zeros_like(status), status)
    reporting = reporting._replace(tol=RECOVERED)
    gradient = report_outcome(gradient, info, "reversible adjoint of equilibrium", ADVICE, reporting)
    return jax.tree.map(_shared_like, gradient, variables), None, None


def _shared_like(gradient: Array, variable: Array) -> Array:
    """A gradient of a value that shards of a `jax.shard_map` share: summed before, and equal on all of them."""
    axes = jax.typeof(gradient).manual_axis_type.varying - jax.typeof(variable).manual_axis_type.varying
    return jax.lax.pmean(gradient, tuple(sorted(axes))) if axes else gradient


_iterate.defvjp(_forward, _backward)
