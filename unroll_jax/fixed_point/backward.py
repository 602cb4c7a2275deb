"""Derivatives of equilibria: a `custom_vjp` around the adjoint solve, or a `custom_jvp` of any order."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from unroll_jax.arrays import check_shape
from unroll_jax.fixed_point.checks import Reporting, flag_asymmetric, report_outcome
from unroll_jax.fixed_point.flat_states import filled, norm
from unroll_jax.fixed_point.problem import MAX_STEPS, ROUND_OFF, STALLED, Adjoint, Linear, Problem, SolveInfo
from unroll_jax.steps import full_precision

__all__ = [
    "ADVICE",
    "Backward",
    "Probe",
    "as_problem",
    "check_probe",
    "corrected",
    "differentiable",
    "reverse_only",
    "zero_probe",
]

ADVICE = 'pass forward_mode=True for derivatives of any order, or adjoint="unrolled"'

Function = Callable[[Any, Float[Array, "b m"]], Float[Array, "b m"]]


class Probe(NamedTuple):
    """Carries the statistics of the backward solve out as its own cotangent.

    Pass zeros (`zero_probe`), differentiate with respect to it, and read them from the gradient.

    Attributes:
      residual: |v + J^T w - w| / |v| of each example, NaN where the adjoint does not measure it.
      steps: steps of the adjoint solve, as floats.
      converged: 1.0 where the adjoint met its tolerance or stalled at round-off.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> solve = lambda w, probe: equilibrium(step, w, start, probe=probe, batch_ndim=0)[0]
      >>> slope, backward = jax.jit(jax.grad(solve, argnums=(0, 1)))(0.5, zero_probe())
      >>> round(float(slope), 2), float(backward.converged)  # of 1 / (1 - w)
      (4.0, 1.0)
    """

    residual: Float[Array, "*batch"]
    steps: Float[Array, "*batch"]
    converged: Float[Array, "*batch"]


def zero_probe(*batch: int) -> Probe:
    """A `Probe` of zeros for a batch shape.

    Args:
      *batch: sizes of the batch axes; none for one example.

    Returns:
      A `Probe` of float32 zeros, to pass as ``probe`` of `equilibrium`.

    Example:
      >>> zero_probe(2).converged.tolist()
      [0.0, 0.0]
    """
    return Probe(*(jnp.zeros(batch) for _ in Probe._fields))


class Backward(NamedTuple):
    """Options of the solve for cotangents.

    Attributes:
      adjoint: the linear solver; its operator is the transposed Jacobian unless ``structured`` is given.
      max_steps: cap.
      reporting: how rows that fail are reported, and the relative tolerance.
      epsilon: relative spacing of the state's dtype.
      hint: further advice where it fails.
      structured: ``(residuals, z, v, tol, max_steps) -> (w, info)``, the layer's solver in place of ``adjoint``.
    """

    adjoint: Adjoint
    max_steps: int
    reporting: Reporting
    epsilon: float
    hint: str = ""
    structured: Callable[..., tuple[Array, SolveInfo]] | None = None


def as_problem(function: Function, operands: Any, epsilon: float) -> Problem:
    """The map z -> function(operands, z)."""

    def pull(z: Array) -> Linear:
        _, transposed = jax.vjp(lambda state: function(operands, state), z)
        return lambda w: transposed(w)[0]

    return Problem(apply=lambda z: function(operands, z), pull=pull, epsilon=epsilon)


def corrected(
    function: Function,
    backward: Backward,
    operands: Any,
    z: Float[Array, "b m"],
    probe: Probe | None,
    residuals: Any = None,
) -> Float[Array, "b m"]:
    """f(z), with the cotangent of the equilibrium in place of that of one step."""
    rows = zero_probe() if probe is None else Probe(*(leaf.reshape(z.shape[0]) for leaf in probe))
    probe = Probe(*(leaf + filled(z, 0.0) for leaf in rows))
    return _corrected((function, backward), reverse_only(function(operands, z)), probe, (operands, z, residuals))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _corrected(static: tuple[Function, Backward], fz: Array, probe: Probe, residuals: Any) -> Array:
    return fz


def _corrected_forward(static: tuple[Function, Backward], fz: Array, probe: Probe, residuals: Any) -> tuple[Array, Any]:
    return fz, (residuals, probe)


@full_precision()
def _corrected_backward(static: tuple[Function, Backward], residuals: Any, cotangent: Array) -> tuple[Any, ...]:
    function, backward = static
    (operands, z, factored), probe = residuals
    operands, z, cotangent = _first_order_only((operands, z, cotangent))
    if backward.structured is None:
        w, info = _solve(as_problem(function, operands, backward.epsilon).pull(z), cotangent, backward)
    else:
        w, info = _normalised(functools.partial(backward.structured, factored, z), cotangent, backward)
    figures = (info.residual, info.steps, info.converged)
    return w, Probe(*(a.astype(b.dtype) + jnp.zeros_like(b) for a, b in zip(figures, probe, strict=True))), None


_corrected.defvjp(_corrected_forward, _corrected_backward)


@jax.custom_jvp
def _first_order_only(residuals: Any) -> Any:
    """The identity, but an error where it is differentiated: the solve would take the equilibrium for a constant."""
    return residuals


@functools.partial(_first_order_only.defjvp, symbolic_zeros=True)
def _second_order(primals: Any, tangents: Any) -> Any:
    moving = [leaf for leaf in jax.tree.leaves(tangents) if not isinstance(leaf, SymbolicZero)]
    if moving:
        raise TypeError(f"equilibrium supports first derivatives only in reverse mode; {ADVICE}")
    return primals[0], tangents[0]


def differentiable(
    function: Function, backward: Backward, operands: Any, z: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """f(z), whose derivatives of any order, in both modes, are those of the equilibrium."""
    fz = jax.lax.stop_gradient(function(operands, z))

    def solve(matvec: Linear, v: Array) -> Array:
        return _solve(lambda w: w - matvec(w), v, backward)[0]

    @jax.custom_jvp
    def root(operands: Any, fz: Array) -> Array:
        return fz

    @root.defjvp
    @full_precision()
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        operands, fz = primals
        z = root(operands, fz)
        _, moved = jax.jvp(lambda operands: function(operands, z), (operands,), (tangents[0],))

        def matvec(u: Array) -> Array:
            return u - jax.jvp(lambda z: function(operands, z), (z,), (u,))[1]

        symmetric = backward.adjoint.symmetric
        return z, jax.lax.custom_linear_solve(matvec, moved, solve, None if symmetric else solve, symmetric=symmetric)

    return root(operands, fz)


def check_probe(probe: Any, batch: tuple[Any, ...]) -> None:
    """Checks that a probe, if there is one, has an entry for every example.

    Raises:
      TypeError: if it is not a `Probe`.
      ValueError: if its shape is another.
    """
    if probe is None:
        return
    if not isinstance(probe, Probe):
        raise TypeError(f"probe must be zeros of zero_probe(*batch), got {probe!r}")
    for leaf in probe:
        check_shape("probe", leaf, batch, ", one entry an example")


@jax.custom_jvp
def reverse_only(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The identity. Reverse mode transposes its tangents and never computes one; computing one is an error.

    The `custom_vjp` behind it raises an error too, but without advice, and under `jax.jacfwd` one of a missing rule.
    Its message may come first in programs that are compiled before they are differentiated.
    """
    return y


@reverse_only.defjvp
def _(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    return reverse_only(primals[0]), _tangent.bind(tangents[0])


def _forward_mode(*args: Any, **params: Any) -> NoReturn:
    raise TypeError(f"equilibrium supports reverse mode only; {ADVICE}")


_tangent = Primitive("tangent_of_equilibrium")
_tangent.def_abstract_eval(lambda tangent: tangent)
_tangent.def_impl(_forward_mode)
mlir.register_lowering(_tangent, _forward_mode)
ad.deflinear2(_tangent, lambda cotangent, tangent: [cotangent])
batching.defvectorized(_tangent)


def _solve(operator: Linear, v: Array, backward: Backward) -> tuple[Array, SolveInfo]:
    def solve(v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        w, info = backward.adjoint.solve(operator, v, tol, max_steps)
        return w, flag_asymmetric(info, operator, v, backward.epsilon) if backward.adjoint.symmetric else info

    return _normalised(solve, v, backward)


def _normalised(solve: Callable[..., tuple[Array, SolveInfo]], v: Array, backward: Backward) -> tuple[Array, SolveInfo]:
    """Solves for the direction of every row and scales back, so that tiny cotangents keep their accuracy."""
    size = norm(v)
    # The barrier keeps XLA from squaring numerator and denominator apart, which underflows.
    unit = jax.lax.optimization_barrier(v / jnp.where(size > 0.0, size, 1.0)[:, None])
    w, info = solve(unit, backward.reporting.tol, backward.max_steps)
    # The sums that make up w - J^T w round at the size of w, not of v. A solve that used up its steps was cut off.
    floor = ROUND_OFF * backward.epsilon * jnp.maximum(norm(w), 1.0)
    stalled = (info.status == MAX_STEPS) & (info.residual <= floor) & (info.steps < backward.max_steps)
    info = info._replace(status=jnp.where(stalled, STALLED, info.status))
    if backward.adjoint.exact:
        advice = f"raise adjoint_max_steps or adjoint_tol, or choose another adjoint{backward.hint}"
        w, info = report_outcome((w, info), info, "adjoint of equilibrium", advice, backward.reporting)
    return w * size[:, None], info
