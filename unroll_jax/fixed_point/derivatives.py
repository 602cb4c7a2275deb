"""Implicit derivatives: a `custom_vjp` around the adjoint solve, or a `custom_jvp`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from unroll_jax.arrays import check_shape
from unroll_jax.fixed_point.adjoints import Adjoint, Linear, flag_asymmetric
from unroll_jax.fixed_point.compiled import call_compiled
from unroll_jax.fixed_point.program import Program
from unroll_jax.fixed_point.reports import (
    Reporting,
    report_failures,
)
from unroll_jax.fixed_point.rows import dot, largest, row_constant
from unroll_jax.fixed_point.status import (
    MAX_STEPS,
    SINGULAR,
    STALLED,
    EquilibriumInfo,
)
from unroll_jax.fixed_point.stopping import ROUND_OFF
from unroll_jax.numerics import full_precision, over

__all__ = [
    "Backward",
    "Probe",
    "check_probe",
    "with_gradient",
    "zero_probe",
]

# Relative residual above which a solve counts as failed, even if it stalled.
LOST = 1e-2
# The same in units of the relative spacing, where that is coarse: a solution rounds to
# one spacing, and the products of a step to several.
COARSE_LOST = 8.0
# |w| / |v| in units of the inverse spacing, above which too little is left of v in the
# sums that make up w - J^T w. The error is a small part of this bound.
MAX_NOISE = 32.0
ANY_ORDER = "pass forward_mode=True for derivatives of any order"


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
      adjoint, tol, max_steps: method, relative tolerance and cap.
      is_root: True if the result is a root of the program f, False if it is a fixed
        point. The linear system is then -df/dz in place of I - df/dz.
    """

    adjoint: Adjoint
    tol: float
    max_steps: int
    is_root: bool = False


class _Static(NamedTuple):
    program: Program
    backward: Backward
    reporting: Reporting
    caller: str  # the public function, in messages

    @property
    def advice(self) -> str:
        if self.backward.is_root:
            return ANY_ORDER
        return f'{ANY_ORDER}, or adjoint="unrolled"'


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
    caller: str = "equilibrium",
) -> Float[Array, "b m"]:
    """Returns y, a constant, with its implicit derivatives in the operands.

    The adjoint reads ``saved`` forward values; messages name ``caller``.
    """
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((operands, probe))):
        return y  # nothing to differentiate
    reporting = reporting._replace(tol=backward.tol)
    static = _Static(program, backward, reporting, caller)
    if forward_mode:
        return _differentiable(static, operands, y)
    rows = probe or zero_probe()
    if probe is not None:
        rows = Probe(*(leaf.reshape(y.shape[0]) for leaf in probe))
    zeros = row_constant(y, 0.0)
    rows = Probe(*(leaf + zeros.astype(leaf.dtype) for leaf in rows))
    messages = caller, static.advice
    after = _reverse_only(messages, _apply(program, operands, y))
    return _with_implicit_gradient(static, after, rows, (operands, y, saved))


def _report(
    static: _Static, w: Array, info: EquilibriumInfo
) -> tuple[Array, EquilibriumInfo]:
    """Returns w and info, once rows without a solution are reported."""
    if not static.backward.adjoint.exact:
        return w, info
    what = f"adjoint of {static.caller}"
    advice = "raise adjoint_max_steps or adjoint_tol"
    return report_failures((w, info), info, what, advice, static.reporting)


@functools.partial(jax.jit, static_argnums=0)
@full_precision()
def _apply(program: Program, operands: Any, z: Array) -> Array:
    return program.apply(operands, z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_implicit_gradient(
    static: _Static, after: Array, probe: Probe, residuals: Any
) -> Array:
    return residuals[1]


def _keep_residuals(
    static: _Static, after: Array, probe: Probe, residuals: Any
) -> tuple[Array, Any]:
    return residuals[1], (residuals, probe)


def _solve_for_cotangent(
    static: _Static, residuals: Any, cotangent: Array
) -> tuple[Any, ...]:
    tensors, probe = residuals
    messages = static.caller, static.advice
    (operands, y, saved), v = _first_order_only(messages, (tensors, cotangent))
    constants = static.program, static.backward
    w, info = call_compiled(_pull_back, constants, operands, y, saved, v)
    w, info = _report(static, w, info)
    statistics = info.residual, info.steps, info.converged
    pairs = zip(statistics, probe, strict=True)
    # Adding zeros copies the sharding of the probe.
    rows = Probe(*(value.astype(like.dtype) + 0.0 * like for value, like in pairs))
    return w, rows, None


_with_implicit_gradient.defvjp(_keep_residuals, _solve_for_cotangent)


@functools.partial(jax.jit, static_argnums=(0, 1))
@full_precision()
def _pull_back(
    program: Program, backward: Backward, operands: Any, y: Array, saved: Any, v: Array
) -> tuple[Array, EquilibriumInfo]:
    """Returns the solution w of (I - J^T) w = v at y, and how the solve ended."""
    structured = backward.adjoint.structured
    if structured is not None and saved is not None:

        def solve(v: Array, tol: float, max_steps: int) -> Any:
            return *structured(saved, y, v, tol, max_steps), None

        return _solve_unit_rows(solve, v, backward, program.epsilon)
    _, transposed = jax.vjp(lambda z: program.apply(operands, z), y)
    return _solve(lambda w: transposed(w)[0], v, backward, program.epsilon)


def _solve(
    product: Linear, v: Array, backward: Backward, epsilon: float
) -> tuple[Array, EquilibriumInfo]:
    """Solves w - product(w) = v, or -product(w) = v for a root."""
    adjoint = backward.adjoint

    def solve(v: Array, tol: float, max_steps: int) -> Any:
        if not backward.is_root:
            return *solve_with(product, product, v, tol, max_steps), None

        # The adjoint solves with s A, where A = -product has any size and s A one near
        # 1. Forming w - A w before the scale loses digits of a small A.
        scale = _scale_to_one(product(v), v)

        def scaled(w: Array) -> Array:
            return scale * product(w)

        def operator(w: Array) -> Array:
            return w + scaled(w)

        return *solve_with(operator, scaled, v, tol, max_steps), scale

    def solve_with(
        operator: Linear, symmetric: Linear, v: Array, tol: float, max_steps: int
    ) -> tuple[Array, EquilibriumInfo]:
        w, info = adjoint.solve(operator, v, tol, max_steps)
        if adjoint.symmetric:
            info = flag_asymmetric(info, symmetric, v, epsilon)
        return w, info

    return _solve_unit_rows(solve, v, backward, epsilon)


def _scale_to_one(
    image: Float[Array, "b m"], v: Float[Array, "b m"]
) -> Float[Array, "b 1"]:
    """Returns s with |s image| = 1 = |v| and <s image, v> <= 0, for each row."""
    unit = largest(image)[:, None]
    direction = over(image, unit)
    size = jnp.sqrt(dot(direction, direction))[:, None]
    sign = jnp.where(dot(direction, v)[:, None] > 0.0, -1.0, 1.0)
    return over(sign / jnp.where(size > 0.0, size, 1.0), unit)


def _solve_unit_rows(
    solve: Callable[..., Any], v: Array, backward: Backward, epsilon: float
) -> tuple[Array, EquilibriumInfo]:
    """Solves for the direction of every row and scales back.

    Tiny cotangents keep their accuracy. ``solve`` returns w, its end, and a factor that
    w lacks, or None.
    """
    unit = largest(v)[:, None]
    # The barrier keeps XLA from merging the two divisions, which would underflow.
    scaled = jax.lax.optimization_barrier(over(v, unit))
    size = jnp.sqrt(dot(scaled, scaled))[:, None]
    direction = scaled / jnp.where(size > 0.0, size, 1.0)
    w, info, factor = solve(direction, backward.tol, backward.max_steps)
    info = _judge_rounding(info, jnp.sqrt(dot(w, w)), backward.max_steps, epsilon)
    if factor is not None:
        w = factor * w
    return w * size * unit, info


def _judge_rounding(
    info: EquilibriumInfo,
    length: Float[Array, " b"],
    max_steps: int,
    epsilon: float,
) -> EquilibriumInfo:
    """Returns the end of a solve of w - J^T w = v, |v| = 1, with |w| = ``length``.

    The sums that make up w - J^T w round at the size of w, not of v. A residual of that
    order cannot be improved. If w is much larger than v, as of a nearly singular
    system, the residual has no meaning.
    """
    residual, status = info.residual, info.status
    noise = epsilon * length
    at_round_off = ROUND_OFF * jnp.maximum(noise, epsilon)
    reachable = jnp.minimum(at_round_off, max(LOST, COARSE_LOST * epsilon))
    stalled = (status == MAX_STEPS) & (residual <= reachable)
    status = jnp.where(stalled, STALLED, status)

    lost = noise > max(LOST, MAX_NOISE * epsilon)
    ended = (status == MAX_STEPS) & (info.steps < max_steps)
    status = jnp.where((lost & (status <= STALLED)) | ended, SINGULAR, status)
    residual = jnp.where(lost, jnp.maximum(residual, noise), residual)
    return info._replace(residual=residual, status=status)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _first_order_only(messages: tuple[str, str], residuals: Any) -> Any:
    """The identity, but an error where it is differentiated.

    The solve would take the equilibrium for a constant.
    """
    return residuals


@_first_order_only.defjvp
def _(messages: tuple[str, str], primals: Any, tangents: Any) -> NoReturn:
    caller, advice = messages
    raise TypeError(
        f"{caller} supports first derivatives only in reverse mode; {advice}"
    )


def _differentiable(
    static: _Static, operands: Any, y: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """Returns y with implicit derivatives of any order, in both modes."""
    program, backward = static.program, static.backward

    def shift(u: Array) -> Array:
        return jnp.zeros_like(u) if backward.is_root else u

    def solve(matvec: Linear, v: Array) -> Array:
        def product(w: Array) -> Array:
            return shift(w) - matvec(w)

        w, info = _solve(product, v, backward, program.epsilon)
        return _report(static, w, info)[0]

    @jax.custom_jvp
    def root(operands: Any, y: Array) -> Array:
        return y

    @root.defjvp
    @full_precision()
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        operands = primals[0]
        z = root(*primals)
        _, moved = jax.jvp(
            lambda operands: program.apply(operands, z), (operands,), (tangents[0],)
        )

        def matvec(u: Array) -> Array:
            moved = jax.jvp(lambda z: program.apply(operands, z), (z,), (u,))[1]
            return shift(u) - moved

        symmetric = backward.adjoint.symmetric
        transposed = None if symmetric else solve
        tangent = jax.lax.custom_linear_solve(
            matvec, moved, solve, transposed, symmetric=symmetric
        )
        return z, tangent

    return root(operands, y)


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
def _reverse_only(
    messages: tuple[str, str], y: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The identity, whose tangent is an error where it is computed.

    Reverse mode transposes tangents and never computes one. The `custom_vjp` behind it
    raises an error too, but without advice, and under `jax.jacfwd` one of a missing
    rule. Its message may come first in programs that are compiled before they are
    differentiated.
    """
    return y


@_reverse_only.defjvp
def _(
    messages: tuple[str, str], primals: tuple[Array], tangents: tuple[Any]
) -> tuple[Array, Any]:
    y = _reverse_only(messages, primals[0])
    return y, _tangent.bind(tangents[0], messages=messages)


def _raise_forward_mode(*args: Any, messages: tuple[str, str]) -> NoReturn:
    caller, advice = messages
    raise TypeError(f"{caller} supports reverse mode only; {advice}")


def _lower_tangent(ctx: Any, *args: Any, messages: tuple[str, str]) -> NoReturn:
    _raise_forward_mode(messages=messages)


_tangent = Primitive("tangent_of_equilibrium")
_tangent.def_abstract_eval(lambda tangent, messages: tangent)
_tangent.def_impl(_raise_forward_mode)
mlir.register_lowering(_tangent, _lower_tangent)
ad.deflinear2(_tangent, lambda cotangent, tangent, messages: [cotangent])
batching.defvectorized(_tangent)
