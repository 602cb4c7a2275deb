"""Checks of `equilibrium`: its arguments, symmetry where a method needs it, and convergence of a solve."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent
from unroll_jax.fixed_point.problem import (
    CONVERGED,
    MAX_STEPS,
    NONSYMMETRIC,
    ROUND_OFF,
    STALLED,
    STATUS,
    Linear,
    SolveInfo,
    flatten,
    norm,
    ratio,
)

__all__ = [
    "ON_FAILURE",
    "ConvergenceError",
    "ConvergenceWarning",
    "asymmetry",
    "check_start",
    "flag_asymmetric",
    "report_outcome",
    "report_rows",
    "resolve_batch_ndim",
]

#: Responses of `equilibrium` to an example that does not converge.
ON_FAILURE = ("error", "warn", "accept")
FAR = 100.0  # times the tolerance, beyond which a row is far from the accuracy of the whole state

# Of a random pair of vectors, above which a Jacobian is not taken for symmetric; far above round-off and rare to miss.
ASYMMETRY = 1e-2


class ConvergenceError(RuntimeError):
    """A fixed-point or adjoint solve did not converge.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> try:
      ...     equilibrium(lambda w, z, x: w * z + x, 0.5, jnp.zeros(3), jnp.ones(3), max_steps=1, on_failure="error")
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
      ...     z, info = equilibrium(lambda w, z, x: w * z + x, 0.5, jnp.zeros(3), jnp.ones(3), max_steps=1)
      >>> caught[0].category.__name__, bool(info.converged)
      ('ConvergenceWarning', False)
    """


def check_start(y: Any) -> None:
    """Checks that the initial state holds floating arrays, finite where their values are known.

    Raises:
      TypeError: if a leaf is not floating.
      ValueError: if a known value is not finite.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        name = f"y0{jax.tree_util.keystr(path)}"
        check_dtype(name, leaf)
        known = not isinstance(leaf, Tracer) and leaf.is_fully_addressable
        require(not known or jnp.isfinite(leaf).all(), name, "be finite", "NaN or infinity")


def resolve_batch_ndim(
    descent: Descent | Callable[..., Any], params: Any, y: Any, x: Any, batch_ndim: int | None
) -> int:
    """Returns the number of batch axes of the state: ``batch_ndim``, or the rank of the energy of a `Descent`, or 0.

    Raises:
      ValueError: if a leaf has fewer axes, or the leaves differ in them.
    """
    lowest = min(int(leaf.ndim) for leaf in jax.tree.leaves(y))
    if batch_ndim is None:
        batch_ndim = len(jax.eval_shape(descent.energy, params, y, x).shape) if isinstance(descent, Descent) else 0
    allowed = f"be between 0 and {lowest}, the least rank of the state"
    require(0 <= batch_ndim <= lowest, "batch_ndim", allowed, batch_ndim)
    batches = {leaf.shape[:batch_ndim] for leaf in jax.tree.leaves(y)}
    require(len(batches) == 1, "the leaves of y0", f"share their first batch_ndim={batch_ndim} axes", sorted(batches))
    return batch_ndim


def report_outcome(info: SolveInfo, *, what: str, advice: str, tol: float, on_failure: str) -> None:
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
            f'{STATUS[status]} at relative residual {residual:.3g}; {advice}, or pass on_failure="accept"'
        )
        if on_failure == "error":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)

    _when_failed(info.residual, info.status, report)


def report_rows(y: Any, fy: Any, *, tol: float, atol: float, epsilon: float) -> None:
    """Warns where a state judged as one example holds rows of its first axis that are far from their own fixed points.

    Nothing is reported where the relative residual of the whole state is as large, as of one that goes to 0.

    Args:
      y: the state, a pytree of arrays.
      fy: the step's value there.
      tol: relative tolerance that the state as a whole was solved to.
      atol: absolute tolerance that was added.
      epsilon: relative spacing of the state's dtype.
    """
    leaves = jax.tree.leaves(y)
    if any(leaf.ndim < 2 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        return
    (z, _), (fz, _) = flatten(y, 1), flatten(fy, 1)
    residual = ratio(norm(fz - z), norm(fz) + atol / tol)
    whole = ratio(norm((fz - z).reshape(1, -1)), norm(fz.reshape(1, -1)) + atol / tol)

    def report(failed: np.ndarray, worst: int, residual: float, _: int) -> None:
        warnings.warn(
            f"equilibrium: batch_ndim was not given, so all of the state was judged as one example; {failed.sum()} of "
            f"its {failed.size} rows are by themselves not at tol={tol:g}: row {worst} is at relative residual "
            f"{residual:.3g}; pass batch_ndim=1 where rows are examples, batch_ndim=0 where they are not",
            ConvergenceWarning,
            stacklevel=2,
        )

    limit = max(FAR * tol, ROUND_OFF * epsilon)
    far = (residual > limit) & (whole <= limit)
    _when_failed(residual, jnp.where(far, MAX_STEPS, CONVERGED), report)


def flag_asymmetric(info: SolveInfo, operator: Linear, like: Float[Array, "b m"], epsilon: float) -> SolveInfo:
    """``info`` with its own status for the rows whose Jacobian is not symmetric, at two products a solve.

    Args:
      info: how the solve went.
      operator: w -> J^T w where it ended.
      like: an array of the shape and dtype of w.
      epsilon: relative spacing of the dtype that J is computed in.
    """
    lopsided = asymmetry(operator, like) > max(ASYMMETRY, ROUND_OFF * epsilon)
    return info._replace(status=jnp.where(lopsided, NONSYMMETRIC, info.status))


def asymmetry(operator: Linear, like: Float[Array, "b m"]) -> Float[Array, " b"]:
    """|<p, J^T q> - <q, J^T p>| / (|J^T p| |q| + |J^T q| |p|) for two random vectors: about 0 where J is symmetric."""
    keys = jax.random.split(jax.random.key(0))
    # Zeros of ``like`` lend their sharding, which where it is explicit must be that of the map's own.
    p, q = (jax.random.normal(key, like.shape, like.dtype) + jnp.zeros_like(like) for key in keys)
    image_p, image_q = operator(p), operator(q)
    scale = norm(image_p) * norm(q) + norm(image_q) * norm(p)
    # Random vectors are nearly orthogonal to random images; sqrt(m) brings the figure to the order of |J - J^T| / |J|.
    width = like.shape[-1] ** 0.5
    return width * jnp.abs(jnp.sum(p * image_q - q * image_p, -1)) / jnp.where(scale > 0.0, scale, 1.0)


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
