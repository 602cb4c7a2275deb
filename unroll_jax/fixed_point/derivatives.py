"""Implicit derivatives: a `custom_vjp` around the adjoint solve, or a `custom_root`."""

import functools
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from unroll_jax.arrays import check_shape
from unroll_jax.fixed_point.adjoints import Adjoint, flag_asymmetric
from unroll_jax.fixed_point.compiled import call_compiled
from unroll_jax.fixed_point.program import Program
from unroll_jax.fixed_point.reports import (
    Reporting,
    is_traced,
    report_failures,
)
from unroll_jax.fixed_point.rows import dot, largest, norm, row_constant
from unroll_jax.fixed_point.solver import Map
from unroll_jax.fixed_point.status import (
    MAX_STEPS,
    SINGULAR,
    STALLED,
    EquilibriumInfo,
)
from unroll_jax.fixed_point.stopping import ROUND_OFF
from unroll_jax.numerics import full_precision, over, powers_of_two

__all__ = [
    "Backward",
    "Probe",
    "check_probe",
    "with_gradient",
    "zero_probe",
]

# Relative residual above which a solve counts as failed, even if it stalled. For coarse
# dtypes it is their round-off.
LOST = 1e-2


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
    """Returns a `Probe` of float32 zeros for a batch shape, to pass to `equilibrium`.

    Args:
      *batch: sizes of the batch axes; none for one example.

    Example: see `Probe`.
    """
    return Probe(*(jnp.zeros(batch) for _ in Probe._fields))


class Backward(NamedTuple):
    """The solve for cotangents; a static argument of compiled functions.

    Attributes:
      program: the map f.
      adjoint, tol, max_steps: method, relative tolerance and cap.
      is_root: True if the result is a root of f, False if it is a fixed point. The
        linear system is then -df/dz in place of I - df/dz.
    """

    program: Program
    adjoint: Adjoint
    tol: float
    max_steps: int
    is_root: bool = False


def with_gradient(
    backward: Backward,
    operands: Any,
    y: Float[Array, "b m"],
    reporting: Reporting,
    *,
    forward_mode: bool,
    probe: Probe | None,
    saved: Any = None,
) -> Float[Array, "b m"]:
    """Returns y, a constant, with its implicit derivatives in the operands.

    The adjoint reads ``saved`` forward values.
    """
    if not is_traced((operands, probe)):
        return y  # nothing to differentiate
    reporting = reporting._replace(tol=backward.tol)
    if forward_mode:
        return _differentiable(backward, reporting, operands, y)
    zeros = row_constant(y, 0.0)
    leaves = probe or zero_probe()
    rows = Probe(*(leaf.reshape(-1) + zeros.astype(leaf.dtype) for leaf in leaves))
    unsupported = _unsupported(backward, reporting, "reverse mode only")
    after = _reverse_only(unsupported, _apply(backward.program, operands, y))
    residuals = operands, y, saved
    return _with_implicit_gradient(backward, reporting, after, rows, residuals)


def _unsupported(backward: Backward, reporting: Reporting, supported: str) -> str:
    unrolled = "" if backward.is_root else ', or adjoint="unrolled"'
    return (
        f"{reporting.caller} supports {supported}; pass forward_mode=True for"
        f" derivatives of any order{unrolled}"
    )


def _report(
    backward: Backward, reporting: Reporting, w: Array, info: EquilibriumInfo
) -> tuple[Array, EquilibriumInfo]:
    """Returns w and info, once rows without a solution are reported."""
    if not backward.adjoint.exact:
        return w, info
    what = f"adjoint of {reporting.caller}"
    advice = "raise adjoint_max_steps or adjoint_tol"
    return report_failures((w, info), info, what, advice, reporting)


@functools.partial(jax.jit, static_argnums=0)
@full_precision()
def _apply(program: Program, operands: Any, z: Array) -> Array:
    return program.apply(operands, z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_implicit_gradient(
    backward: Backward, reporting: Reporting, after: Array, probe: Probe, residuals: Any
) -> Array:
    return residuals[1]


def _keep_residuals(
    backward: Backward, reporting: Reporting, after: Array, probe: Probe, residuals: Any
) -> tuple[Array, Any]:
    return residuals[1], (residuals, probe)


def _solve_for_cotangent(
    backward: Backward, reporting: Reporting, residuals: Any, cotangent: Array
) -> tuple[Any, ...]:
    tensors, probe = residuals
    once = "first derivatives only in reverse mode"
    unsupported = _unsupported(backward, reporting, once)
    tensors, v = _first_order_only(unsupported, (tensors, cotangent))
    w, info = call_compiled(_pull_back, (backward,), *tensors, v)
    w, info = _report(backward, reporting, w, info)
    pairs = zip((info.residual, info.steps, info.converged), probe, strict=True)
    # Adding zeros copies the sharding of the probe.
    rows = Probe(*(value.astype(like.dtype) + 0.0 * like for value, like in pairs))
    return w, rows, None


_with_implicit_gradient.defvjp(_keep_residuals, _solve_for_cotangent)


@functools.partial(jax.jit, static_argnums=0)
@full_precision()
def _pull_back(
    backward: Backward, operands: Any, y: Array, saved: Any, v: Array
) -> tuple[Array, EquilibriumInfo]:
    """Returns the solution w of (I - J^T) w = v at y, and how the solve ended."""
    adjoint = backward.adjoint
    structured = adjoint.structured
    if structured is not None and saved is not None:
        adjoint = Adjoint(lambda _, *rest: structured(saved, y, *rest))
    transpose = backward.program.transpose(operands, y)
    return _solve(backward._replace(adjoint=adjoint), transpose, v)


def _solve(backward: Backward, product: Map, v: Array) -> tuple[Array, EquilibriumInfo]:
    """Solves w - product(w) = v, or -product(w) = v for a root.

    Rows are solved as unit vectors: tiny cotangents keep their accuracy.
    """
    adjoint = backward.adjoint
    # Powers of two bring the rows near 1, whose squares are in range.
    inverse, unit = powers_of_two(largest(v))
    scaled_v = v * inverse[:, None]
    square = dot(scaled_v, scaled_v)
    inverse_length = jax.lax.rsqrt(jnp.where(square > 0.0, square, 1.0))
    direction = scaled_v * inverse_length[:, None]
    size = (unit * square * inverse_length)[:, None]
    scale: Any = 1.0
    if backward.is_root:
        # The adjoint solves with s A, where A = -product has any size and s A one near
        # 1. Forming w - A w before the scale loses digits of a small A.
        scale = _scale_to_one(product(direction), direction)

    def scaled(w: Array) -> Array:
        return scale * product(w)

    def operator(w: Array) -> Array:
        return w + scaled(w) if backward.is_root else scaled(w)

    w, info = adjoint.solve(operator, direction, backward.tol, backward.max_steps)
    if adjoint.symmetric:
        info = flag_asymmetric(info, scaled, direction, backward.program.epsilon)
    info = _judge_rounding(backward, info, w)
    return size * (scale * w), info


def _scale_to_one(
    image: Float[Array, "b m"], v: Float[Array, "b m"]
) -> Float[Array, "b 1"]:
    """Returns s with |s image| = 1 = |v| and <s image, v> <= 0, for each row."""
    size = norm(image)[:, None]
    cosine = dot(over(image, size), v)[:, None]
    return over(jnp.where(cosine > 0.0, -1.0, 1.0), size)


def _judge_rounding(
    backward: Backward, info: EquilibriumInfo, w: Float[Array, "b m"]
) -> EquilibriumInfo:
    """Returns the end of a solve of w - J^T w = v, |v| = 1.

    The sums that make up w - J^T w round at the size of w, not of v. A residual of that
    order cannot be improved. If w is much larger than v, as of a nearly singular
    system, the residual has no meaning.
    """
    residual, steps, status = info
    epsilon = backward.program.epsilon
    worst = max(LOST, ROUND_OFF * epsilon)
    # Compared as squares: XLA compiles a root of its own kernel for every user.
    square = dot(w, w)
    is_noise = (residual / (ROUND_OFF * epsilon)) ** 2 <= jnp.maximum(square, 1.0)
    missed = status == MAX_STEPS
    status = jnp.where(missed & is_noise & (residual <= worst), STALLED, status)

    lost = square > (worst / epsilon) ** 2
    ended = (status == MAX_STEPS) & (steps < backward.max_steps)
    singular = lost & (status <= STALLED) | ended
    status = jnp.where(singular, SINGULAR, status)
    noise = epsilon * jnp.sqrt(square)
    residual = jnp.where(lost, jnp.maximum(residual, noise), residual)
    return EquilibriumInfo(residual, steps, status)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _first_order_only(unsupported: str, residuals: Any) -> Any:
    """The identity, but an error where it is differentiated.

    The solve would take the equilibrium for a constant.
    """
    return residuals


@_first_order_only.defjvp
def _(unsupported: str, primals: Any, tangents: Any) -> NoReturn:
    raise TypeError(unsupported)


def _differentiable(
    backward: Backward, reporting: Reporting, operands: Any, y: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """Returns y with implicit derivatives of any order, in both modes."""
    symmetric = backward.adjoint.symmetric

    def shift(u: Array) -> Array:
        return jnp.zeros_like(u) if backward.is_root else u

    def gap(z: Array) -> Array:
        return shift(z) - backward.program.apply(operands, z)

    def solve(matvec: Map, v: Array) -> Array:
        w, info = _solve(backward, lambda w: shift(w) - matvec(w), v)
        return _report(backward, reporting, w, info)[0]

    def solve_tangent(matvec: Map, v: Array) -> Array:
        transposed = None if symmetric else solve
        return jax.lax.custom_linear_solve(
            matvec, v, solve, transposed, symmetric=symmetric
        )

    return jax.lax.custom_root(gap, y, lambda gap, y: y, solve_tangent)


def check_probe(probe: Any, batch: tuple[Any, ...], *, reverse: bool) -> None:
    """Raises an error unless a probe, if given, fits the batch and the mode."""
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _reverse_only(unsupported: str, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The identity, whose tangent is an error where it is computed.

    Reverse mode transposes tangents and never computes one. The `custom_vjp` behind it
    raises an error too, but without advice, and under `jax.jacfwd` one of a missing
    rule. Its message may come first in programs that are compiled before they are
    differentiated.
    """
    return y


@_reverse_only.defjvp
def _(
    unsupported: str, primals: tuple[Array], tangents: tuple[Any]
) -> tuple[Array, Any]:
    y = _reverse_only(unsupported, primals[0])
    return y, _tangent.bind(tangents[0], unsupported=unsupported)


def _raise_forward_mode(*args: Any, unsupported: str) -> NoReturn:
    raise TypeError(unsupported)


_tangent = Primitive("tangent_of_equilibrium")
_tangent.def_abstract_eval(lambda tangent, unsupported: tangent)
_tangent.def_impl(_raise_forward_mode)
mlir.register_lowering(_tangent, _raise_forward_mode)
ad.deflinear2(_tangent, lambda cotangent, tangent, unsupported: [cotangent])
batching.defvectorized(_tangent)
