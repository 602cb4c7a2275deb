"""Derivatives of equilibria: a `custom_vjp` around the adjoint solve, or a
`custom_jvp` of any order."""

import functools
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from unroll_jax.arrays import check_shape
from unroll_jax.fixed_point.adjoints import Adjoint, Linear, asymmetric
from unroll_jax.fixed_point.program import Program
from unroll_jax.fixed_point.reports import (
    Reporting,
    known,
    report_dependence,
    report_failures,
)
from unroll_jax.fixed_point.rows import dot, row_constant
from unroll_jax.fixed_point.status import MAX_STEPS, STALLED, EquilibriumInfo
from unroll_jax.fixed_point.stopping import ROUND_OFF
from unroll_jax.numerics import full_precision, over

__all__ = [
    "Backward",
    "Probe",
    "check_examples",
    "check_probe",
    "with_gradient",
    "zero_probe",
]

LOST = 1e-2  # residual, relative to the cotangent, that round-off does not excuse
ADVICE = 'pass forward_mode=True for derivatives of any order, or adjoint="unrolled"'


class Probe(NamedTuple):
    """Carries the statistics of the backward solve out as its own cotangent.

    Pass zeros (`zero_probe`), differentiate with respect to it, and read them from the
    gradient.

    Attributes:
      residual: |v + J^T w - w| / |v| of each example, NaN where the adjoint does not
        measure it.
      steps: steps of the adjoint solve, as floats.
      converged: 1.0 where the adjoint met its tolerance or stalled at round-off.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> solve = lambda w, probe: equilibrium(
      ...     step, w, start, probe=probe, batch_ndim=0
      ... )[0]
      >>> slope, backward = jax.jit(jax.grad(solve, argnums=(0, 1)))(0.5, zero_probe())
      >>> round(float(slope), 2), float(backward.converged)  # of 1 / (1 - w)
      (4.0, 1.0)
    """

    residual: Float[Array, "*batch"]
    steps: Float[Array, "*batch"]
    converged: Float[Array, "*batch"]


def zero_probe(*batch: int) -> Probe:
    """A `Probe` of float32 zeros for a batch shape, to pass as ``probe`` of
    `equilibrium`.

    Args:
      *batch: sizes of the batch axes; none for one example.

    Example: see `Probe`.
    """
    return Probe(*(jnp.zeros(batch) for _ in Probe._fields))


class Backward(NamedTuple):
    """The solve for cotangents, with its relative tolerance and cap; a static
    argument of compiled functions."""

    adjoint: Adjoint
    tol: float
    max_steps: int


class _Static(NamedTuple):
    program: Program
    backward: Backward
    reporting: Reporting


def with_gradient(
    program: Program,
    backward: Backward,
    operands: Any,
    y: Float[Array, "b m"],
    reporting: Reporting,
    *,
    forward_mode: bool,
    probe: Probe | None,
    saved: Any = None,
) -> Float[Array, "b m"]:
    """y, a constant, with the equilibrium's derivatives in the operands; the adjoint
    reads ``saved`` forward values."""
    static = _Static(program, backward, reporting._replace(tol=backward.tol))
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((operands, probe))):
        return y  # nothing to differentiate
    if forward_mode:
        return _differentiable(static, operands, y)
    rows = (
        zero_probe()
        if probe is None
        else Probe(*(leaf.reshape(y.shape[0]) for leaf in probe))
    )
    zeros = row_constant(y, 0.0)
    rows = Probe(*(leaf + zeros.astype(leaf.dtype) for leaf in rows))
    return _corrected(
        static, _reverse_only(_apply(program, operands, y)), rows, (operands, y, saved)
    )


def _reported(
    static: _Static, w: Array, info: EquilibriumInfo
) -> tuple[Array, EquilibriumInfo]:
    if not static.backward.adjoint.exact:
        return w, info
    advice = "raise adjoint_max_steps or adjoint_tol"
    return report_failures(
        (w, info), info, "adjoint of equilibrium", advice, static.reporting
    )


@functools.partial(jax.jit, static_argnums=0)
@full_precision()
def _apply(program: Program, operands: Any, z: Array) -> Array:
    return program.apply(operands, z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _corrected(static: _Static, after: Array, probe: Probe, residuals: Any) -> Array:
    return residuals[1]


def _corrected_forward(
    static: _Static, after: Array, probe: Probe, residuals: Any
) -> tuple[Array, Any]:
    return residuals[1], (residuals, probe)


def _corrected_backward(
    static: _Static, residuals: Any, cotangent: Array
) -> tuple[Any, ...]:
    (operands, y, saved), probe = residuals
    operands, y, saved, cotangent = _first_order_only((operands, y, saved, cotangent))
    w, info = _reported(
        static, *_pulled(static.program, static.backward, operands, y, saved, cotangent)
    )
    figures = (info.residual, info.steps, info.converged)
    return (
        w,
        Probe(
            *(a.astype(b.dtype) + 0.0 * b for a, b in zip(figures, probe, strict=True))
        ),
        None,
    )


_corrected.defvjp(_corrected_forward, _corrected_backward)


@functools.partial(jax.jit, static_argnums=(0, 1))
@full_precision()
def _pulled(
    program: Program, backward: Backward, operands: Any, y: Array, saved: Any, v: Array
) -> tuple[Array, EquilibriumInfo]:
    """(I - J^T)^{-1} v at y, and how the solve ended."""
    if backward.adjoint.structured is not None and saved is not None:
        solve = functools.partial(backward.adjoint.structured, saved, y)
        return _normalised(solve, v, backward, program.epsilon)
    _, transposed = jax.vjp(lambda z: program.apply(operands, z), y)
    return _solve(lambda w: transposed(w)[0], v, backward, program.epsilon)


def _solve(
    operator: Linear, v: Array, backward: Backward, epsilon: float
) -> tuple[Array, EquilibriumInfo]:
    adjoint = backward.adjoint

    def solve(v: Array, tol: float, max_steps: int) -> tuple[Array, EquilibriumInfo]:
        w, info = adjoint.solve(operator, v, tol, max_steps)
        return w, (
            asymmetric(info, operator, v, epsilon) if adjoint.symmetric else info
        )

    return _normalised(solve, v, backward, epsilon)


def _normalised(
    solve: Any, v: Array, backward: Backward, epsilon: float
) -> tuple[Array, EquilibriumInfo]:
    """Solves for the direction of every row and scales back: tiny cotangents keep
    their accuracy."""
    largest = jnp.max(jnp.abs(v), axis=-1, keepdims=True, initial=0.0)
    scaled = jax.lax.optimization_barrier(over(v, largest))
    size = jnp.sqrt(dot(scaled, scaled))[:, None]
    w, info = solve(
        scaled / jnp.where(size > 0.0, size, 1.0), backward.tol, backward.max_steps
    )
    # The sums that make up w - J^T w round at the size of w, not of v. Of a singular
    # system nothing may be left of v.
    length = jnp.sqrt(dot(w, w))
    stalled = (info.status == MAX_STEPS) & (
        info.residual <= ROUND_OFF * epsilon * jnp.maximum(length, 1.0)
    )
    lost = (epsilon * length > LOST) | (stalled & (info.residual > LOST))
    status = jnp.where(stalled, STALLED, info.status)
    status = jnp.where(lost & (status <= STALLED), MAX_STEPS, status)
    residual = jnp.where(
        lost, jnp.maximum(info.residual, epsilon * length), info.residual
    )
    return w * size * largest, info._replace(residual=residual, status=status)


@jax.custom_jvp
def _first_order_only(residuals: Any) -> Any:
    """The identity, but an error where it is differentiated: the solve would take
    the equilibrium for a constant."""
    return residuals


@_first_order_only.defjvp
def _(primals: Any, tangents: Any) -> NoReturn:
    raise TypeError(
        f"equilibrium supports first derivatives only in reverse mode; {ADVICE}"
    )


def _differentiable(
    static: _Static, operands: Any, y: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """y with the equilibrium's derivatives of any order, in both modes."""
    program, backward = static.program, static.backward

    def solve(matvec: Linear, v: Array) -> Array:
        return _reported(
            static, *_solve(lambda w: w - matvec(w), v, backward, program.epsilon)
        )[0]

    @jax.custom_jvp
    def root(operands: Any, y: Array) -> Array:
        return y

    @root.defjvp
    @full_precision()
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        operands, z = primals[0], root(*primals)
        _, moved = jax.jvp(
            lambda operands: program.apply(operands, z), (operands,), (tangents[0],)
        )

        def matvec(u: Array) -> Array:
            return u - jax.jvp(lambda z: program.apply(operands, z), (z,), (u,))[1]

        symmetric = backward.adjoint.symmetric
        return z, jax.lax.custom_linear_solve(
            matvec, moved, solve, None if symmetric else solve, symmetric=symmetric
        )

    return root(operands, y)


def check_examples(
    program: Program, operands: Any, y: Float[Array, "b m"], *, in_jit: bool = False
) -> Array:
    """``y``, once it is known that examples do not depend on each other; in traced
    code only if ``in_jit``."""
    operands = jax.lax.stop_gradient(operands)
    if not program.batch or not (in_jit or known(y, *jax.tree.leaves(operands))):
        return y
    try:
        dependent = _dependence(program, operands, y)
    # a step without a derivative, which could not be wrong
    except (TypeError, ValueError, NotImplementedError):
        return y
    return report_dependence(y, dependent, len(program.batch))


@functools.partial(jax.jit, static_argnums=0)
def _dependence(
    program: Program, operands: Any, y: Float[Array, "b m"]
) -> Float[Array, " b"]:
    """The change of some examples of f(y) with each of the others: 0 if they are
    separate.

    Three products look at the odd rows, the even ones and the first: a map that mixes
    rows in another way may pass.
    """
    _, pull = jax.vjp(lambda z: program.apply(operands, z), y)
    row, draw = (
        jnp.arange(y.shape[0]),
        jax.random.normal(jax.random.key(0), y.shape, y.dtype),
    )

    def change(rows: Array) -> Array:
        sizes = jnp.max(
            jnp.abs(pull(jnp.where(rows[:, None], draw, 0.0 * y))[0]),
            axis=-1,
            initial=0.0,
        )
        others, most = (
            jnp.where(rows, 0.0, sizes),
            jnp.max(jnp.nan_to_num(sizes, posinf=0.0), initial=0.0),
        )
        return jnp.where(others > ROUND_OFF * program.epsilon * most, others, 0.0)

    return functools.reduce(
        jnp.fmax, map(change, (row % 2 == 1, row % 2 == 0, row == 0))
    )


def check_probe(probe: Any, batch: tuple[Any, ...], *, reverse: bool) -> None:
    """An error unless a probe, if there is one, has an entry for every example, and
    the pass is in ``reverse`` mode."""
    if probe is None:
        return
    if not reverse:
        raise ValueError(
            "probe needs the reverse mode: drop it, or forward_mode and"
            ' adjoint="unrolled"'
        )
    if not isinstance(probe, Probe):
        raise TypeError(f"probe must be zeros of zero_probe(*batch), got {probe!r}")
    for leaf in probe:
        check_shape("probe", leaf, batch, ", one entry an example")


@jax.custom_jvp
def _reverse_only(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The identity. Reverse mode transposes its tangents and never computes one;
    computing one is an error.

    The `custom_vjp` behind it raises an error too, but without advice, and under
    `jax.jacfwd` one of a missing rule. Its message may come first in programs that are
    compiled before they are differentiated.
    """
    return y


@_reverse_only.defjvp
def _(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    return _reverse_only(primals[0]), _tangent.bind(tangents[0])


def _forward_mode(*args: Any, **params: Any) -> NoReturn:
    raise TypeError(f"equilibrium supports reverse mode only; {ADVICE}")


_tangent = Primitive("tangent_of_equilibrium")
_tangent.def_abstract_eval(lambda tangent: tangent)
_tangent.def_impl(_forward_mode)
mlir.register_lowering(_tangent, _forward_mode)
ad.deflinear2(_tangent, lambda cotangent, tangent: [cotangent])
batching.defvectorized(_tangent)
