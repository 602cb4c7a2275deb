"""Checks of `equilibrium`: its arguments, symmetry where a method needs it, and convergence of a solve."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent
from unroll_jax.fixed_point.flat_states import flatten, norm, ratio
from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONSYMMETRIC, ROUND_OFF, STATUS, Linear, SolveInfo
from unroll_jax.fixed_point.reports import Failure, Site, watched

__all__ = [
    "ON_FAILURE",
    "ConvergenceError",
    "ConvergenceWarning",
    "Reporting",
    "asymmetry",
    "check_start",
    "flag_asymmetric",
    "report_outcome",
    "report_rows",
    "resolve_batch_ndim",
]

#: Responses of `equilibrium` to an example that does not converge.
ON_FAILURE = ("error", "warn", "accept")
SLOWEST = 0.999  # mean contraction a step, above which there was none
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


class Reporting(NamedTuple):
    """The report of failed rows, "error", "warn" or "accept", of a solve to ``tol``, at the user's line."""

    on_failure: str
    tol: float
    site: Site


def report_outcome(tree: Any, info: SolveInfo, what: str, advice: str, reporting: Reporting) -> Any:
    """``tree``, once the rows that failed are reported.

    Outside of transformations the error is raised, or the warning given, before this returns. Inside compiled code a
    callback does it while the program runs: the warning has been given once the results are there, and the error then
    reaches the caller as ``jax.errors.JaxRuntimeError`` with this message in it (`jax.block_until_ready`). Under vmap
    the examples of all calls are reported together, once. Not a program of `jax.export`, which has no callbacks.
    """
    on_failure, tol, site = reporting
    if on_failure == "accept":
        return tree

    def report(failure: Failure) -> None:
        message = (
            f"{what}: {int(failure.failed.sum())} of {failure.failed.size} examples failed at tol={tol:g}; example "
            f"{failure.worst} {STATUS[failure.status]} at relative residual {failure.residual:.3g}{_pace(failure, tol)}"
            f'; {advice}, or pass on_failure="accept"'
        )
        if on_failure == "error":
            raise ConvergenceError(message)
        site.warn(message, ConvergenceWarning)

    return watched(tree, info, report)


def _pace(failure: Failure, tol: float) -> str:
    """The mean contraction of a solve that was cut off, and how many steps it would take at that."""
    if failure.status != MAX_STEPS or failure.steps < 1 or not failure.residual > 0.0:
        return ""
    rate = failure.residual ** (1.0 / failure.steps)
    if rate > SLOWEST:
        return f" after {failure.steps} steps that do not contract (weights grown? certificates.spectral_normalise)"
    needed = failure.steps * math.log(tol) / math.log(failure.residual)
    return f" after {failure.steps} steps that contract by {rate:.3g} each (about {math.ceil(needed)} would do)"


def report_rows(tree: Any, y: Any, fy: Any, *, atol: float, epsilon: float, reporting: Reporting) -> Any:
    """``tree``; warns where a state judged as one example holds rows that are far from their own fixed points.

    The rows are those of its first axis. Nothing is reported where the relative residual of the whole state is as
    large, as of one that goes to 0.

    Args:
      tree: what the report must come before.
      y: the state, a pytree of arrays.
      fy: the step's value there.
      atol: absolute tolerance that was added.
      epsilon: relative spacing of the state's dtype.
      reporting: where, and the relative tolerance that the state as a whole was solved to.
    """
    _, tol, site = reporting
    leaves = jax.tree.leaves(y)
    if any(leaf.ndim < 2 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        return tree
    (z, _), (fz, _) = flatten(y, 1), flatten(fy, 1)
    residual = ratio(norm(fz - z), norm(fz) + atol / tol)
    whole = ratio(norm((fz - z).reshape(1, -1)), norm(fz.reshape(1, -1)) + atol / tol)

    def report(failure: Failure) -> None:
        message = (
            "batch_ndim was not given to equilibrium: all of the state was judged as one example; "
            f"{int(failure.failed.sum())} of its {failure.failed.size} rows are by themselves not at tol={tol:g}: row "
            f"{failure.worst} is at relative residual "
            f"{failure.residual:.3g}; pass batch_ndim=1 where rows are examples, batch_ndim=0 where they are not"
        )
        site.warn(message, ConvergenceWarning)

    limit = max(FAR * tol, ROUND_OFF * epsilon)
    far = (residual > limit) & (whole <= limit)
    status = jnp.where(far, MAX_STEPS, CONVERGED)
    return watched(tree, SolveInfo(residual, jnp.zeros_like(status), status), report)


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
