"""Reports of solves that fail: at once where values are known, else by a callback."""

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
from jaxtyping import Array, Float

from unroll_jax.fixed_point.status import (
    NONFINITE,
    SINGULAR,
    STALLED,
    STATUS,
    EquilibriumInfo,
    fail_where,
)

__all__ = [
    "ON_FAILURE",
    "ConvergenceError",
    "ConvergenceWarning",
    "Reporting",
    "call_site",
    "is_traced",
    "known",
    "report_dependence",
    "report_failures",
    "report_rows",
    "report_solution",
]

#: Responses of `equilibrium` to an example that does not converge.
ON_FAILURE = ("error", "warn", "accept")
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
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(3)
      >>> try:
      ...     equilibrium(step, 0.5, start, max_steps=1, on_failure="error")
      ... except ConvergenceError as error:
      ...     print(str(error)[:35])
      equilibrium: 1 of 1 examples failed
    """


class ConvergenceWarning(UserWarning):
    """A fixed-point or adjoint solve did not converge; its best state was used.

    Example:
      >>> import warnings, jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(3)
      >>> with warnings.catch_warnings(record=True, action="always") as caught:
      ...     z, info = equilibrium(step, 0.5, start, max_steps=1)
      >>> caught[0].category.__name__, bool(info.converged)
      ('ConvergenceWarning', False)
    """


class _WarningText(str):
    """A string that compares equal up to its first colon.

    Python then shows each kind of warning once per line, whatever its figures.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _WarningText):
            return hash(self) == hash(other)
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(str(self).split(":")[0])


class Reporting(NamedTuple):
    """How failed rows of a solve are reported.

    Attributes:
      on_failure: see `equilibrium`.
      tol: the tolerance that they missed.
      warn: a function of `call_site`.
      caller: the public function.
      hint: the last advice of the message.
      error: its class where ``on_failure`` is "error".
    """

    on_failure: str
    tol: float
    warn: Callable[[str], None]
    caller: str = "equilibrium"
    hint: str = ", or make the step contract (certificates.spectral_normalise)"
    error: type[Exception] = ConvergenceError


def call_site() -> Callable[[str], None]:
    """A function that gives a `ConvergenceWarning` at the user's line.

    That is the innermost line on the stack outside of this library, JAX and Python's
    own wrappers. By default Python shows one warning a line.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back

    place = frame.f_code.co_filename, frame.f_lineno
    # The warnings that Python has shown.
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return lambda message: warnings.warn_explicit(
        _WarningText(message), ConvergenceWarning, *place, registry=registry
    )


def is_traced(tree: Any) -> bool:
    """True if values of a pytree are not known yet."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def known(arrays: Any) -> bool:
    """True if the values of a list of arrays can be read now.

    None is traced, and none lies on other hosts in part.
    """
    if is_traced(arrays):
        return False
    return all(getattr(array, "is_fully_addressable", True) for array in arrays)


def report_failures(
    tree: Any, info: EquilibriumInfo, what: str, advice: str, reporting: Reporting
) -> Any:
    """Returns ``tree`` once failed rows are reported, as ``on_failure`` says.

    Under vmap, those of all calls are reported at once.
    """

    def message(count: str, worst: int, end: EquilibriumInfo) -> str:
        return (
            f"{what}: {count} examples failed at tol={reporting.tol:g}; example {worst}"
            f" {STATUS[int(end.status)]} at relative residual {end.residual:.3g} after"
            f" {end.steps} steps; {_remedy(end, advice)}{reporting.hint}, or pass"
            ' on_failure="accept"'
        )

    return _report(tree, info, message, reporting)


def _remedy(end: EquilibriumInfo, advice: str) -> str:
    if end.status == SINGULAR:
        return "choose a wider dtype or another adjoint"
    if end.status != NONFINITE:
        return advice
    # A NaN of the arguments ends a row at its first evaluation.
    if end.steps <= 1:
        return "look for NaN in params and x"
    return "the iteration diverges: choose another method"


def report_rows(tree: Any, info: EquilibriumInfo, reporting: Reporting) -> Any:
    """Returns ``tree``; warns of rows far from their own fixed points.

    They belong to a state that was judged as one example.
    """

    def message(count: str, worst: int, end: EquilibriumInfo) -> str:
        return (
            "batch_ndim was not given to equilibrium: all of the state was judged as"
            f" one example; {count} rows are by themselves not at"
            f" tol={reporting.tol:g}: row {worst} is at relative residual"
            f" {end.residual:.3g}; pass batch_ndim=1 where rows are examples,"
            " batch_ndim=0 where they are not"
        )

    return _report(tree, info, message, reporting._replace(on_failure="warn"))


def report_dependence(tree: Any, dependent: Float[Array, " b"], batch_ndim: int) -> Any:
    """Returns ``tree``; an error if ``dependent`` is not 0 somewhere.

    The step or condition then mixes examples.
    """

    def message(count: str, worst: int, end: EquilibriumInfo) -> str:
        return (
            f"batch_ndim={batch_ndim} must not count an axis whose examples depend on"
            f" each other, got one where example {worst} changes another (a batch"
            " norm?); pass batch_ndim=0"
        )

    info = fail_where(dependent > 0.0, dependent)
    reporting = Reporting("error", 0.0, call_site(), error=ValueError)
    return _report(tree, info, message, reporting)


def report_solution(
    tree: Any, distance: Float[Array, " b"], reporting: Reporting
) -> Any:
    """Returns ``tree`` once rows that are far from a root are reported.

    ``distance`` is relative to the size of a row, as the tolerance of ``reporting``.
    """

    def message(count: str, worst: int, end: EquilibriumInfo) -> str:
        return (
            f"{reporting.caller}: {count} results of the solver are not solutions at"
            f" tol={reporting.tol:g}, and their derivatives are wrong; example {worst}"
            f" is about {end.residual:.3g} of its size away from one; solve to a"
            " smaller error, check the order of arguments (params, z, *inputs),"
            ' raise tol, or pass on_failure="accept"'
        )

    info = fail_where(~(distance <= reporting.tol), distance)
    return _report(tree, info, message, reporting)


def _report(
    tree: Any, info: EquilibriumInfo, message: Callable[..., str], reporting: Reporting
) -> Any:
    """Returns ``tree``; gives the error or warning if a row failed.

    The message is of how many rows failed, the worst one, and its part of ``info``.
    Compiled code does so by a callback that ``tree`` waits for. JAX sees no effect in
    it: a program with effects is dispatched in Python, at .1 ms per call or more.
    """
    if reporting.on_failure == "accept":
        return tree
    report = functools.partial(_call, message, reporting)
    arrays = jax.lax.stop_gradient(tuple(info))
    if not is_traced(arrays):
        report(*arrays)
        return tree

    failed = jnp.max(info.status, initial=0) > STALLED
    reported = _report_on_host.bind(failed, *arrays, report=report)
    # Whichever part of the tree a program keeps depends on the report; the derivative
    # of the first leaf as well.
    tree, reported = jax.lax.optimization_barrier((tree, reported))
    (state, *others), structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [jnp.where(reported, jnp.nan, state), *others])


def _call(
    message: Callable[..., str], reporting: Reporting, *arrays: Any
) -> np.ndarray:
    on_host: Any = map(np.asarray, arrays)
    info = EquilibriumInfo(*on_host)
    failed = info.status > STALLED
    if failed.any():
        residual = np.nan_to_num(info.residual, nan=np.inf)
        worst = int(np.argmax(np.where(failed, residual, -1.0)))
        count = f"{failed.sum()} of {failed.size}"
        text = message(count, worst, EquilibriumInfo(*(leaf[worst] for leaf in info)))
        if reporting.on_failure == "error":
            raise reporting.error(text)
        reporting.warn(text)
    return np.zeros((), bool)


def _lower(ctx: Any, *operands: Any, report: Callable[..., Any]) -> Any:
    def skip(failed: Array, *arrays: Array) -> Array:
        return failed & False

    def call(failed: Array, *arrays: Array) -> Array:
        jax.debug.callback(report, *arrays)
        return failed & False

    def call_if_failed(failed: Array, *arrays: Array) -> Array:
        return jax.lax.cond(failed, call, skip, failed, *arrays)

    # An exported program cannot hold a callback.
    exported = ctx.module_context.lowering_parameters.for_export
    function = skip if exported else call_if_failed
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _batch(operands: Any, axes: Any, *, report: Any) -> tuple[Array, None]:
    pairs = list(zip(operands, axes, strict=True))
    size = next(array.shape[axis] for array, axis in pairs if axis is not None)
    failed, *arrays = (
        batching.bdim_at_front(array, axis, size) for array, axis in pairs
    )
    flat = [array.reshape(-1) for array in arrays]
    return _report_on_host.bind(jnp.any(failed), *flat, report=report), None


_report_on_host = Primitive("report_of_equilibrium")
_report_on_host.def_abstract_eval(lambda failed, *arrays, report: failed)
_report_on_host.def_impl(lambda failed, *arrays, report: jnp.asarray(report(*arrays)))
mlir.register_lowering(_report_on_host, _lower, cacheable=False)
batching.primitive_batchers[_report_on_host] = _batch
