"""Ends of solves, and reports of those that fail: at once where values are known,
else by one host callback."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.summaries import summary

__all__ = [
    "CONVERGED",
    "MAX_STEPS",
    "NONFINITE",
    "NONSYMMETRIC",
    "ON_FAILURE",
    "ROUND_OFF",
    "SINGULAR",
    "STALLED",
    "STATUS",
    "ConvergenceError",
    "ConvergenceWarning",
    "EquilibriumInfo",
    "Reporting",
    "call_site",
    "known",
    "report_dependence",
    "report_failures",
    "report_rows",
    "report_solution",
]

CONVERGED, STALLED, MAX_STEPS, NONFINITE, NONSYMMETRIC, SINGULAR = range(6)
#: Ends of the solve of an example, in words; ``info.status`` is an index into these.
STATUS = (
    "converged",
    "stalled at round-off",
    "reached max_steps",
    "met a value that is not finite",
    "has a Jacobian that is not symmetric, which this method needs (choose another),",
    "has a system that is nearly singular for its dtype, or not positive definite,",
)
#: Responses of `equilibrium` to an example that does not converge.
ON_FAILURE = ("error", "warn", "accept")
# epsilons: a relative residual as small is round-off of a map's values and of its sums
ROUND_OFF = 16.0
# Of the failed rows: how many of all, the worst, and its residual, steps and status.
_Report = Callable[[str, int, "EquilibriumInfo"], None]
# Files between the user's line and a report: this library, JAX, and what Python's
# decorators wrap functions in.
_INSIDE = (
    str(Path(__file__).parents[1]),
    str(Path(str(jax.__file__)).parent),
    contextlib.__file__,
    functools.__file__,
)


class ConvergenceError(RuntimeError):
    """A fixed-point or adjoint solve did not converge.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> try:
      ...     equilibrium(
      ...         lambda w, z, x: w * z + x,
      ...         0.5,
      ...         jnp.zeros(3),
      ...         jnp.ones(3),
      ...         max_steps=1,
      ...         on_failure="error",
      ...     )
      ... except ConvergenceError as error:
      ...     print(str(error)[:35])
      equilibrium: 1 of 1 examples failed
    """


class ConvergenceWarning(UserWarning):
    """A fixed-point or adjoint solve did not converge; its best state was used.

    Example:
      >>> import warnings, jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> with warnings.catch_warnings(record=True, action="always") as caught:
      ...     z, info = equilibrium(
      ...         lambda w, z, x: w * z + x, 0.5, jnp.zeros(3), jnp.ones(3), max_steps=1
      ...     )
      >>> caught[0].category.__name__, bool(info.converged)
      ('ConvergenceWarning', False)
    """


class EquilibriumInfo(NamedTuple):
    """Diagnostics of a solve, per example; printed, it is a summary.

    Attributes:
      residual: |f(z) - z| relative to |f(z)|, see ``tol`` and ``atol`` of
        `equilibrium`. Where |f(z)| is above 30 times the first state and plain steps,
        relative to that. Of an adjoint |v + J^T w - w| / |v|.
      steps: evaluations of the step, or of its adjoint, until the example ended.
      status: how it ended, an index into `unroll_jax.fixed_point.STATUS`.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> z, info = equilibrium(
      ...     lambda w, z, x: w * z + 1.0, 0.5, jnp.zeros(()), batch_ndim=0
      ... )
      >>> round(float(z), 3), bool(info.converged), bool(info.residual <= 1e-5)
      (2.0, True, True)
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """True where the tolerance was met, or the residual is as small as round-off
        lets it be."""
        return self.status <= STALLED

    def __repr__(self) -> str:
        return summary(self, self._lines)

    def _lines(self) -> list[str]:
        residual, steps, status = (np.ravel(np.asarray(leaf)) for leaf in self)
        if not len(status):
            return ["no examples"]
        counts = [
            f"{np.sum(status == code)} {words}"
            for code, words in enumerate(STATUS)
            if np.any(status == code)
        ]
        return [
            f"{len(status)} examples: {'; '.join(counts)}",
            f"steps: {steps.min()} to {steps.max()}, mean {steps.mean():.1f}",
            f"residual: {np.median(residual):.2g} median, {residual.max():.2g} worst",
        ]


class _Text(str):
    """A message that the filters of `warnings` take for another of the same kind,
    with any figures after a colon."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return (
            hash(self) == hash(other)
            if isinstance(other, _Text)
            else str.__eq__(self, other)
        )

    def __hash__(self) -> int:
        return hash(str(self).split(":")[0])


class Reporting(NamedTuple):
    """The report of the rows of a solve that fail."""

    on_failure: str
    tol: float  # the tolerance that they missed
    warn: Callable[[str], None]  # of `call_site`
    hint: str = ", or make the step contract (certificates.spectral_normalise)"


def call_site() -> Callable[[str], None]:
    """A function that gives a `ConvergenceWarning` at the user's line; by default
    Python shows one warning a line.

    It is the innermost line on the stack that is not of this library, of JAX or of
    Python's.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    place = frame.f_code.co_filename, frame.f_lineno
    # of the warnings that Python has shown
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return lambda message: warnings.warn_explicit(
        _Text(message), ConvergenceWarning, *place, registry=registry
    )


def known(*arrays: Any) -> bool:
    """True if the values of the arrays can be read now: none is traced, none lies on
    other hosts in part."""
    return all(
        not isinstance(a, Tracer) and getattr(a, "is_fully_addressable", True)
        for a in arrays
    )


def report_failures(
    tree: Any, info: EquilibriumInfo, what: str, advice: str, reporting: Reporting
) -> Any:
    """``tree``, once failed rows are reported (``on_failure`` of `equilibrium`);
    under vmap, of all calls at once."""
    if reporting.on_failure == "accept":
        return tree

    def report(count: str, worst: int, end: EquilibriumInfo) -> None:
        remedies = {
            NONFINITE: "look for NaN in params and x",
            SINGULAR: "choose a wider dtype or another adjoint",
        }
        remedy = remedies.get(int(end.status), advice)
        message = (
            f"{what}: {count} examples failed at tol={reporting.tol:g}; example {worst}"
            f" {STATUS[int(end.status)]} at relative residual {end.residual:.3g} after"
            f' {end.steps} steps; {remedy}{reporting.hint}, or pass on_failure="accept"'
        )
        if reporting.on_failure == "error":
            raise ConvergenceError(message)
        reporting.warn(message)

    return _watched(tree, info, report)


def report_rows(tree: Any, info: EquilibriumInfo, reporting: Reporting) -> Any:
    """``tree``; warns if a state that was judged as one example holds rows that are
    far from their own fixed points."""

    def report(count: str, worst: int, end: EquilibriumInfo) -> None:
        reporting.warn(
            "batch_ndim was not given to equilibrium: all of the state was judged as"
            f" one example; {count} rows are by themselves not at"
            f" tol={reporting.tol:g}: row {worst} is at relative residual"
            f" {end.residual:.3g}; pass batch_ndim=1 where rows are examples,"
            " batch_ndim=0 where they are not"
        )

    return _watched(tree, info, report)


def report_dependence(tree: Any, dependent: Float[Array, " b"], batch_ndim: int) -> Any:
    """``tree``; an error if ``dependent`` is not 0 somewhere: the step or condition
    mixes examples."""

    def report(count: str, worst: int, end: EquilibriumInfo) -> None:
        raise ValueError(
            f"batch_ndim={batch_ndim} must not count an axis whose examples depend on"
            f" each other, got one where example {worst} changes another (a batch"
            " norm?); pass batch_ndim=0"
        )

    status = jnp.where(dependent > 0.0, MAX_STEPS, CONVERGED)
    return _watched(
        tree, EquilibriumInfo(dependent, jnp.zeros_like(status), status), report
    )


def report_solution(
    tree: Any, distance: Float[Array, " b"], caller: str, reporting: Reporting
) -> Any:
    """Returns ``tree`` once rows that are far from a root are reported.

    ``distance`` is relative to the size of a row, as the tolerance of ``reporting``.
    """
    if reporting.on_failure == "accept":
        return tree

    def report(count: str, worst: int, end: EquilibriumInfo) -> None:
        message = (
            f"{caller}: {count} results of the solver are not solutions at"
            f" tol={reporting.tol:g}, and their derivatives are wrong; example {worst}"
            f" is about {end.residual:.3g} of its size away from one; solve to a"
            " smaller error, check the order of arguments (params, z, *inputs),"
            " raise tol, or"
            ' pass on_failure="accept"'
        )
        if reporting.on_failure == "error":
            raise ConvergenceError(message)
        reporting.warn(message)

    status = jnp.where(distance <= reporting.tol, CONVERGED, MAX_STEPS)
    info = EquilibriumInfo(distance, jnp.zeros_like(status), status)
    return _watched(tree, info, report)


def _watched(tree: Any, info: EquilibriumInfo, report: _Report) -> Any:
    """``tree``; calls ``report`` if a row failed, from compiled code by a callback that
    ``tree`` waits for.

    JAX sees no effect in the callback: a program with effects is dispatched in Python,
    at .1 ms per call or more.
    """
    residual, steps, status = jax.lax.stop_gradient(tuple(info))
    if not any(isinstance(leaf, Tracer) for leaf in (residual, steps, status)):
        _call(report, residual, steps, status)
        return tree
    reported = _watch.bind(
        jnp.any(status > STALLED), residual, steps, status, report=report
    )
    # Whichever part of the tree a program keeps depends on the report; the derivative
    # of the first leaf as well.
    (state, *others), structure = jax.tree.flatten(
        jax.lax.optimization_barrier((tree, reported))[0]
    )
    return jax.tree.unflatten(structure, [jnp.where(reported, jnp.nan, state), *others])


def _call(report: _Report, *arrays: Any) -> np.ndarray:
    on_host: list[Any] = [np.asarray(array) for array in arrays]
    info = EquilibriumInfo(*on_host)
    failed = on_host[-1] > STALLED
    if failed.any():
        worst = int(
            np.argmax(np.where(failed, np.nan_to_num(info.residual, nan=np.inf), -1.0))
        )
        report(
            f"{failed.sum()} of {failed.size}",
            worst,
            EquilibriumInfo(*(leaf[worst] for leaf in info)),
        )
    return np.zeros((), bool)


def _lower(ctx: Any, *operands: Any, report: _Report) -> Any:
    tell: Any = functools.partial(_call, report)
    none = lambda failed, *_: failed & False

    def call(failed: Array, *arrays: Array) -> Array:
        jax.debug.callback(tell, *arrays)
        return failed & False

    guarded = lambda failed, *arrays: jax.lax.cond(failed, call, none, failed, *arrays)
    exported = ctx.module_context.lowering_parameters.for_export
    return mlir.lower_fun(none if exported else guarded, multiple_results=False)(
        ctx, *operands
    )


def _batch(operands: Any, axes: Any, *, report: _Report) -> tuple[Array, None]:
    size = next(
        array.shape[axis]
        for array, axis in zip(operands, axes, strict=True)
        if axis is not None
    )
    failed, *arrays = (
        batching.bdim_at_front(array, axis, size)
        for array, axis in zip(operands, axes, strict=True)
    )
    return (
        _watch.bind(
            jnp.any(failed), *(array.reshape(-1) for array in arrays), report=report
        ),
        None,
    )


_watch = Primitive("watch_of_equilibrium")
_watch.def_abstract_eval(lambda failed, *arrays, report: failed)
_watch.def_impl(lambda failed, *arrays, report: jnp.asarray(_call(report, *arrays)))
mlir.register_lowering(_watch, _lower, cacheable=False)
batching.primitive_batchers[_watch] = _batch
