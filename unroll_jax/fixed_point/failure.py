"""What happens when a solve does not converge: an error, a warning, or nothing, as asked, in both passes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from unroll_jax.fixed_point.problem import STALLED, STATUS, SolveInfo

__all__ = ["ON_FAILURE", "ConvergenceError", "ConvergenceWarning", "check_outcome"]

ON_FAILURE = ("error", "warn", "accept")


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

    def report(residual: Array, status: Array) -> None:
        message = _message(np.asarray(residual), np.asarray(status), what, way_out, tol)
        if message is None:
            return
        if on_failure == "error":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)

    @jax.custom_batching.custom_vmap
    def watch(residual: Float[Array, " b"], status: Int[Array, " b"]) -> tuple[()]:
        jax.lax.cond(
            jnp.any(status > STALLED),
            lambda residual, status: jax.debug.callback(report, residual, status),
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

    if any(isinstance(leaf, Tracer) for leaf in info):
        watch(jax.lax.stop_gradient(info.residual), info.status)
    else:
        report(info.residual, info.status)


def _message(residual: np.ndarray, status: np.ndarray, what: str, way_out: str, tol: float) -> str | None:
    failed = status > STALLED
    if not failed.any():
        return None
    worst = int(np.argmax(np.where(failed, np.nan_to_num(residual, nan=np.inf), -1.0)))
    return (
        f"{what}: {int(failed.sum())} of {failed.size} examples failed at tol={tol:g}; example {worst} "
        f"{STATUS[int(status[worst])]} at relative residual {float(residual[worst]):.3g}; {way_out}, "
        'or pass on_failure="accept"'
    )
