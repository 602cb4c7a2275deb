"""What happens when a solve does not converge: an error, a warning, or nothing, as asked, in both passes."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from unroll_jax.fixed_point.problem import (
    CONVERGED,
    MAX_STEPS,
    ROUND_OFF,
    STALLED,
    STATUS,
    SolveInfo,
    flatten,
    norm,
    ratio,
)

__all__ = ["ON_FAILURE", "ConvergenceError", "ConvergenceWarning", "check_outcome", "check_rows"]

ON_FAILURE = ("error", "warn", "accept")
FAR = 100.0  # times the tolerance, beyond which a row by itself is not what the whole was solved to


class ConvergenceError(RuntimeError):
    """A fixed-point or adjoint solve did not converge."""


class ConvergenceWarning(UserWarning):
    """A fixed-point or adjoint solve did not converge; its best state was used."""


def check_outcome(info: SolveInfo, *, what: str, way_out: str, tol: float, on_failure: str) -> None:
    """Reports the rows that failed.

    Outside of transformations the error is raised, or the warning given, before this returns. Inside compiled code a
    callback does it while the program runs: the error then reaches the caller as ``jax.errors.JaxRuntimeError`` with
    this message in it, when the results are first waited for (`jax.block_until_ready`), and the warning is sure to
    have been given after `jax.effects_barrier`. Under vmap the examples of all calls are reported together, once.
    """
    if on_failure == "accept":
        return

    def report(failed: np.ndarray, worst: int, residual: float, status: int) -> None:
        message = (
            f"{what}: {int(failed.sum())} of {failed.size} examples failed at tol={tol:g}; example {worst} "
            f'{STATUS[status]} at relative residual {residual:.3g}; {way_out}, or pass on_failure="accept"'
        )
        if on_failure == "error":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)

    _when_failed(info.residual, info.status, report)


def check_rows(y: Any, fy: Any, *, tol: float, epsilon: float) -> None:
    """Warns where a state judged as one example holds rows of its first axis that are far from their own fixed points.

    Args:
      y: the state, a pytree of arrays.
      fy: the step's value there.
      tol: relative tolerance that the state as a whole was solved to.
      epsilon: relative spacing of the state's dtype.
    """
    leaves = jax.tree.leaves(y)
    if any(leaf.ndim < 2 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        return
    (z, _), (fz, _) = flatten(y, 1), flatten(fy, 1)
    residual = ratio(norm(fz - z), norm(fz))

    def report(failed: np.ndarray, worst: int, residual: float, _: int) -> None:
        warnings.warn(
            f"equilibrium: batch_ndim was not given, so all of the state was judged as one example; {failed.sum()} of "
            f"its {failed.size} rows are by themselves not at tol={tol:g}: row {worst} is at relative residual "
            f"{residual:.3g}; pass batch_ndim=1 where rows are examples, batch_ndim=0 where they are not",
            ConvergenceWarning,
            stacklevel=2,
        )

    far = residual > max(FAR * tol, ROUND_OFF * epsilon)
    _when_failed(residual, jnp.where(far, MAX_STEPS, CONVERGED), report)


def _when_failed(
    residual: Float[Array, " b"], status: Int[Array, " b"], report: Callable[[np.ndarray, int, float, int], None]
) -> None:
    """Calls ``report(failed, worst, its residual, its status)`` if a row failed, from compiled code by a callback."""

    def call(residual: Array, status: Array) -> None:
        sizes, ends = np.asarray(residual), np.asarray(status)
        failed = ends > STALLED
        if failed.any():
            worst = int(np.argmax(np.where(failed, np.nan_to_num(sizes, nan=np.inf), -1.0)))
            report(failed, worst, float(sizes[worst]), int(ends[worst]))

    @jax.custom_batching.custom_vmap
    def watch(residual: Float[Array, " b"], status: Int[Array, " b"]) -> tuple[()]:
        jax.lax.cond(
            jnp.any(status > STALLED),
            lambda residual, status: jax.debug.callback(call, residual, status),
            lambda residual, status: None,
            residual,
            status,
        )
        return ()

    # The rule that vmap has for callbacks calls back once an example; this one joins the examples first.
    @watch.def_vmap
    def _(size: int, batched: list[bool], residual: Array, status: Array) -> tuple[tuple[()], tuple[()]]:
        pair = zip((residual, status), batched, strict=True)
        watch(*(jnp.broadcast_to(a if is_batched else a[None], (size, a.shape[-1])).ravel() for a, is_batched in pair))
        return (), ()

    if isinstance(residual, Tracer) or isinstance(status, Tracer):
        watch(jax.lax.stop_gradient(residual), status)
    else:
        call(residual, status)
