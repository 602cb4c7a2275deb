"""What happens when a solve does not converge: an error, a warning, or nothing, as asked, in both passes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.fixed_point.problem import STATUS, SolveInfo

__all__ = ["ON_FAILURE", "ConvergenceError", "ConvergenceWarning", "check_outcome"]

ON_FAILURE = ("error", "warn", "accept")


class ConvergenceError(RuntimeError):
    """A fixed-point or adjoint solve did not converge."""


class ConvergenceWarning(UserWarning):
    """A fixed-point or adjoint solve did not converge; its best state was used."""


def check_outcome(info: SolveInfo, *, what: str, way_out: str, tol: float, on_failure: str) -> None:
    """Reports the rows that failed, from inside compiled code too.

    Under jit an error raised here reaches the caller as the runtime's own error with this message in it.
    """
    if on_failure == "accept":
        return

    def report(residual: np.ndarray, status: np.ndarray) -> None:
        failed = np.asarray(status) > 1
        if not failed.any():
            return
        worst = int(np.argmax(np.where(failed, np.nan_to_num(residual, nan=np.inf), -1.0)))
        message = (
            f"{what}: {int(failed.sum())} of {failed.size} examples did not reach tol={tol:g}; example {worst} "
            f"{STATUS[int(np.ravel(status)[worst])]} at relative residual {float(np.ravel(residual)[worst]):.3g}; {way_out}, "
            'or pass on_failure="accept"'
        )
        if on_failure == "error":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)

    if any(isinstance(leaf, jax.core.Tracer) for leaf in info):
        any_failed = jnp.any(info.status > 1)
        jax.lax.cond(
            any_failed,
            lambda residual, status: jax.debug.callback(report, residual, status),
            lambda residual, status: None,
            info.residual,
            info.status,
        )
    else:
        report(np.asarray(info.residual), np.asarray(info.status))
