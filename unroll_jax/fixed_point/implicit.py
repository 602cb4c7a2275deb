"""Depth without end: the equilibrium of a step, with gradients by the implicit function theorem."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.adjoints import Adjoint, Unrolled, asymmetry
from unroll_jax.fixed_point.factored import Prepared, factored_adjoint, factored_solve, prepare
from unroll_jax.fixed_point.failure import check_outcome
from unroll_jax.fixed_point.problem import NONSYMMETRIC, Problem, SolveInfo, flatten, norm
from unroll_jax.fixed_point.solvers import Solver, run
from unroll_jax.fixed_point.tables import resolve_adjoint, resolve_solver

__all__ = ["EquilibriumInfo", "Probe", "equilibrium", "probe"]


ASYMMETRY = 1e-2  # of random probes, above which a Jacobian is not taken for symmetric


class EquilibriumInfo(NamedTuple):
    """What `equilibrium` says of its forward solve, per example.

    Attributes:
      residual: relative, |f(z) - z| / |f(z)| at the z that the state returned is f of.
      steps: evaluations of the step until the example ended.
      status: how it ended, an index into `STATUS`.
      converged: whether it met the tolerance or stalled at round-off.
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]
    converged: Array


class Probe(NamedTuple):
    """Carries the statistics of the backward solve out as its own cotangent: pass zeros, differentiate with respect to it.

    Attributes:
      residual: |v + J^T w - w| / |v| of each example, NaN where the adjoint does not measure it.
      steps: steps of the adjoint solve, as floats.
      converged: 1.0 where the adjoint met its tolerance or stalled at round-off.
    """

    residual: Float[Array, "*batch"]
    steps: Float[Array, "*batch"]
    converged: Float[Array, "*batch"]


def probe(*batch: int) -> Probe:
    """A `Probe` of zeros for a batch shape."""
    return Probe(*(jnp.zeros(batch) for _ in Probe._fields))


def equilibrium(
    descent: Descent | Callable[[Params, Any, Any], Any],
    params: Params,
    y0: Any,
    x: Any = None,
    *,
    solver: str | Solver | None = None,
    adjoint: str | Adjoint | Unrolled | None = None,
    tol: float = 1e-5,
    max_steps: int = 200,
    on_failure: str = "warn",
    adjoint_tol: float | None = None,
    adjoint_max_steps: int | None = None,
    batch_ndim: int | None = None,
    probe: Probe | None = None,
) -> tuple[Any, EquilibriumInfo]:
    r"""The fixed point z = f(z) of a step, and its gradient by the implicit function theorem.

    The forward solve runs under `stop_gradient`; one step is then taken from its result, through which parameters, x
    and whatever the step closes over are differentiated; the cotangent v of that step is replaced by

    .. math:: w = (I - J^T)^{-1} v ,

    solved with vector products alone. Memory does not depend on the number of iterations. The cotangent is normalised
    before its solve, an example at a time, so that tiny ones keep their accuracy. If f contracts with c < 1, the state
    is within c / (1 - c) times |f(z) - z| of the fixed point, and the gradient within
    :math:`(\epsilon_b + c_2 \epsilon_f) / (1 - c)` of the exact one, relative to |v|, for a Jacobian that changes
    at the rate c_2 and absolute errors of the two solves.

    Args:
      descent: a `Descent`, or a step ``(params, y, x) -> y'`` alone.
      params: parameters of the step, a pytree.
      y0: initial state, a pytree of floating arrays that share their batch axes; receives no gradient. The equilibrium
        of an earlier call is a warm start.
      x: the input the step sees, or None.
      solver: a name of `SOLVERS`, or a `Solver`; None is semismooth Newton in the layer's own small space for a
        factored layer (`opteq`), else "anderson".
      adjoint: a name of `ADJOINTS`, an `Adjoint`, or `unrolled(k)` (then the solver is k Picard steps); None is
        conjugate gradients in the small space for a factored layer, else "gmres".
      tol: relative tolerance of the forward solve, |f(z) - z| <= tol |f(z)| for every example.
      max_steps: cap of the forward solve.
      on_failure: "error", "warn" or "accept" where an example does not converge, in the forward and the backward pass.
      adjoint_tol: relative tolerance of the adjoint solve; None is ``tol``.
      adjoint_max_steps: cap of the adjoint solve; None is ``max_steps``.
      batch_ndim: how many leading axes of the state are batch axes. None asks the energy of a `Descent`, and is 0 for a
        step alone: then all of the state is one example.
      probe: zeros of `unroll_jax.fixed_point.probe`; its cotangent is the statistics of the backward solve.

    Returns:
      ``(y, info)``: the equilibrium, and an `EquilibriumInfo`.

    Raises:
      ValueError: if an option is outside what is stated here, or the step changes the state's structure or shapes.
      TypeError: if a state leaf is not floating.
      ConvergenceError: if ``on_failure="error"`` and an example does not converge (inside jit as the runtime's error).

    Source: Bai, Kolter, Koltun (2019), Theorem 1; design lessons from measurements of its successors.
    """
    structured = getattr(descent, "factored", None)
    chosen = None if solver is None and structured else resolve_solver(solver or "anderson")
    backward = None if adjoint is None and structured else resolve_adjoint(adjoint or "gmres")
    _check_options(tol, max_steps, on_failure, adjoint_tol, adjoint_max_steps)
    step = descent.step if isinstance(descent, Descent) else descent
    y0 = jax.tree.map(lambda leaf: jax.lax.stop_gradient(jnp.asarray(leaf)), y0)
    _check_state(step, params, y0, x)
    batch_ndim = _batch_ndim(descent, params, y0, x, batch_ndim)
    batch = jax.tree.leaves(y0)[0].shape[:batch_ndim]
    start, restore = flatten(y0, batch_ndim)

    def apply(operands: Any, z: Array) -> Array:
        params, x = operands
        return flatten(step(params, restore(z), x), batch_ndim)[0].astype(z.dtype)

    # What the step closes over becomes an argument, so that no tracer of the caller's outlives its trace.
    apply, closed_over = jax.closure_convert(apply, (params, x), start)
    operands = ((params, x), *closed_over)
    function = lambda operands, z: apply(operands[0], z, *operands[1:])  # noqa: E731
    if isinstance(backward, Unrolled):
        return _unrolled(function, operands, start, restore, batch, backward.num_steps, tol, on_failure)

    held = jax.lax.stop_gradient(operands)
    small = None
    if structured is not None and (chosen is None or backward is None):
        small = _small(structured(*jax.lax.stop_gradient((params, x))), start)
    if chosen is None:
        z, info = factored_solve(*small, jnp.zeros_like(small[1].offset), tol=tol, max_steps=max_steps)
    else:
        z, info = run(_problem(function, held), start, chosen, tol=tol, max_steps=max_steps)
    z = jax.lax.stop_gradient(z)
    check_outcome(info, what="equilibrium", way_out="raise max_steps or tol", tol=tol, on_failure=on_failure)
    solve = _adjoint_solve(function, backward, None if small is None else small[1].activation)
    settings = _Settings(solve, adjoint_tol or tol, adjoint_max_steps or max(max_steps, 200), on_failure, backward)
    fz = _correct(settings, function(operands, z), _flat_probe(probe, z), (held, z, _arrays(small)))
    return restore(fz), _shaped(info, batch)


class _Settings(NamedTuple):
    """What the backward pass needs that is no array."""

    solve: Callable[..., tuple[Array, SolveInfo]]
    tol: float
    max_steps: int
    on_failure: str
    adjoint: Adjoint | None


def _adjoint_solve(function: Any, adjoint: Adjoint | None, activation: Any) -> Callable[..., tuple[Array, SolveInfo]]:
    def general(kept: Any, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        operands, z, _ = kept
        assert adjoint is not None
        operator = _problem(function, operands).pull(z)
        w, info = adjoint.solve(operator, v, tol, max_steps)
        if adjoint.symmetric:
            lopsided = asymmetry(operator, v)
            info = info._replace(status=jnp.where(lopsided > ASYMMETRY, NONSYMMETRIC, info.status))
        return w, info

    def factored(kept: Any, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        _, z, (prepared, offset) = kept
        layer = Factored(prepared.matrix, offset, activation)
        return factored_adjoint(prepared, layer, z, v, tol=tol, max_steps=max_steps)

    return factored if adjoint is None else general


def _small(layer: Factored, start: Array) -> tuple[Prepared, Factored]:
    dtype = start.dtype
    matrix, offset = layer.matrix.astype(dtype), layer.offset.astype(dtype)
    offset = offset.reshape(-1, offset.shape[-1])
    return prepare(matrix, start.shape[0]), Factored(matrix, offset, layer.activation)


def _arrays(small: tuple[Prepared, Factored] | None) -> Any:
    return None if small is None else (small[0], small[1].offset)


def _flat_probe(probe: Probe | None, z: Array) -> Probe:
    if probe is None:
        return Probe(*(jnp.zeros(z.shape[0], z.dtype) for _ in Probe._fields))
    return jax.tree.map(lambda leaf: leaf.reshape(z.shape[0]).astype(z.dtype), probe)


def _problem(function: Callable[[Any, Array], Array], operands: Any) -> Problem:
    def pull(z: Array) -> Callable[[Array], Array]:
        _, transposed = jax.vjp(lambda state: function(operands, state), z)
        return lambda w: transposed(w)[0]

    return Problem(apply=lambda z: function(operands, z), pull=pull)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _correct(settings: _Settings, fz: Array, probe: Probe, kept: Any) -> Array:
    """The identity on fz, whose cotangent is corrected from that of one step to that of the equilibrium."""
    return fz


def _correct_forward(settings: _Settings, fz: Array, probe: Probe, kept: Any) -> tuple[Array, Any]:
    return fz, kept


def _correct_backward(settings: _Settings, kept: Any, cotangent: Array) -> tuple[Any, ...]:
    size = norm(cotangent)
    unit = cotangent / jnp.where(size > 0.0, size, 1.0)[:, None]
    w, info = settings.solve(kept, unit, settings.tol, settings.max_steps)
    if settings.adjoint is None or settings.adjoint.exact:
        check_outcome(
            info,
            what="adjoint of equilibrium",
            way_out="raise adjoint_max_steps or adjoint_tol, or choose another adjoint",
            tol=settings.tol,
            on_failure=settings.on_failure,
        )
    statistics = Probe(info.residual, info.steps.astype(w.dtype), info.converged.astype(w.dtype))
    return w * size[:, None], statistics, jax.tree.map(_no_cotangent, kept)


def _no_cotangent(leaf: Array) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)


_correct.defvjp(_correct_forward, _correct_backward)


def _unrolled(
    function: Any, operands: Any, z: Array, restore: Any, batch: tuple[int, ...], num_steps: int, tol: float, on_failure: str
) -> tuple[Any, EquilibriumInfo]:
    def body(state: Array, _: None) -> tuple[Array, None]:
        return function(operands, state), None

    before, _ = jax.lax.scan(body, z, length=num_steps - 1)
    after = function(operands, before)
    held = jax.lax.stop_gradient((before, after))
    _, info = run(
        Problem(apply=lambda _: held[1], pull=lambda z: lambda w: w), held[0], resolve_solver("picard"), tol=tol, max_steps=1
    )
    info = info._replace(steps=jnp.full_like(info.steps, num_steps))
    check_outcome(info, what="unrolled equilibrium", way_out="raise num_steps", tol=tol, on_failure=on_failure)
    return restore(after), _shaped(info, batch)


def _shaped(info: SolveInfo, batch: tuple[int, ...]) -> EquilibriumInfo:
    return EquilibriumInfo(*(leaf.reshape(batch) for leaf in (info.residual, info.steps, info.status, info.converged)))


def _check_options(
    tol: float, max_steps: int, on_failure: str, adjoint_tol: float | None, adjoint_max_steps: int | None
) -> None:
    for name, value in (("tol", tol), ("adjoint_tol", adjoint_tol)):
        if value is not None and not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be in (0, 1), got {value}")
    for name, value in (("max_steps", max_steps), ("adjoint_max_steps", adjoint_max_steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if on_failure not in ("error", "warn", "accept"):
        raise ValueError(f'on_failure must be "error", "warn" or "accept", got {on_failure!r}')


def _check_state(step: Callable[..., Any], params: Params, y: Any, x: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"y0{jax.tree_util.keystr(path)} must have a floating dtype, got {leaf.dtype}; cast it first")
    after = jax.eval_shape(step, params, y, x)
    if jax.tree.structure(y) != jax.tree.structure(after):
        raise ValueError(
            f"the step must keep the state's structure, {jax.tree.structure(y)} became {jax.tree.structure(after)}"
        )
    for old, new in zip(jax.tree.leaves(y), jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"the step must keep shape and dtype, {old.dtype}{list(old.shape)} became {new.dtype}{list(new.shape)}"
            )


def _batch_ndim(descent: Any, params: Params, y: Any, x: Any, batch_ndim: int | None) -> int:
    lowest = min(leaf.ndim for leaf in jax.tree.leaves(y))
    if batch_ndim is None:
        batch_ndim = jax.eval_shape(descent.energy, params, y, x).ndim if isinstance(descent, Descent) else 0
    if not 0 <= batch_ndim <= lowest:
        raise ValueError(f"batch_ndim must be between 0 and {lowest}, the least rank of the state, got {batch_ndim}")
    if len({leaf.shape[:batch_ndim] for leaf in jax.tree.leaves(y)}) > 1:
        raise ValueError(f"the leaves of y0 must share their first batch_ndim={batch_ndim} axes")
    return batch_ndim
