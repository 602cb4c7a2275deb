"""Implicit gradients of any solver's result, from the condition that it fulfils."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, in_interval, one_of
from unroll_jax.fixed_point.adjoints import Adjoint, gmres, resolve_adjoint
from unroll_jax.fixed_point.computation import NO_DERIVATIVE
from unroll_jax.fixed_point.dependence import check_examples
from unroll_jax.fixed_point.derivatives import (
    Backward,
    Probe,
    check_probe,
    with_gradient,
)
from unroll_jax.fixed_point.program import (
    Problem,
    Program,
    as_state,
    trace,
)
from unroll_jax.fixed_point.reports import (
    ON_FAILURE,
    Reporting,
    call_site,
    is_traced,
    report_solution,
)
from unroll_jax.fixed_point.rows import norm
from unroll_jax.fixed_point.stopping import ROUND_OFF
from unroll_jax.numerics import full_precision, over
from unroll_jax.step_checks import PARAMETERS, STATES, check_step

__all__ = ["implicit_argmin", "implicit_root"]

WINDOW = 30  # directions of the default GMRES, which may be far from a contraction here
HINT = "; the condition's derivative in z may be singular at the solution"
ORDER = "conditions here are F(params, z, *inputs), where jaxopt's are F(z, *args)"


@checked(
    tol=in_interval("(0, 1)"),
    adjoint_tol=in_interval("(0, 1)"),
    adjoint_max_steps=at_least(1),
    on_failure=one_of(ON_FAILURE),
    batch_ndim=at_least(0),
)
def implicit_root(
    optimality: Callable[..., Any],
    *,
    adjoint: str | Adjoint | None = None,
    tol: float = 1e-3,
    adjoint_tol: float = 1e-5,
    adjoint_max_steps: int = 1000,
    on_failure: str = "warn",
    batch_ndim: int = 0,
    forward_mode: bool = False,
    has_aux: bool = False,
    check: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    r"""Gives a solver of :math:`F(\theta, z, x) = 0` the derivatives of the implicit
    function theorem.

    .. math:: d z^* = -\Big(\frac{\partial F}{\partial z}\Big)^{-1}
              \Big(\frac{\partial F}{\partial \theta} d\theta
              + \frac{\partial F}{\partial x} dx\Big) ,

    by vector products with the derivatives of F only. The solver may be anything that
    finds z: a loop, another library, or SciPy (outside of `jax.jit` as it is, inside by
    `jax.pure_callback`). It is never differentiated, and sees values without gradients.
    Values that ``optimality`` closes over are differentiated too.

    The result is as exact as the solver's z. F and one vector product estimate the
    distance of z from a root, |F|^2 / |F^T dF/dz|; a z that is far from one counts as
    failed.

    Args:
      optimality: ``(params, z, *inputs) -> F``, of the structure, shapes and dtypes of
        z.
      adjoint: a name of `ADJOINTS` or an `Adjoint`, for I - J = dF/dz; None is `gmres`
        of 30 directions. Those that need a symmetric J probe for it. Series such as
        "neumann" need |I - dF/dz| < 1.
      tol: distance of z from a root above which an example counts as failed, relative
        to the larger of |z| and |z0|. Round-off is allowed.
      adjoint_tol, adjoint_max_steps: relative tolerance and cap of the linear solve.
      on_failure: "error", "warn" or "accept" where z is not a root or the linear solve
        does not converge, see `equilibrium`.
      batch_ndim: how many leading axes of z are batch axes. F must not mix examples: an
        error outside of `jax.jit`.
      forward_mode: enables `jax.jvp` and higher-order derivatives.
      has_aux: True if the solver returns ``(z, aux)``; aux has no derivative.
      check: checks inside of `jax.jit` too that F does not mix examples, as in
        `equilibrium`.

    Returns:
      A decorator of ``solver(params, z0, *inputs) -> z``; the initial state z0 receives
      no gradient. The decorated function also takes ``probe``, see
      `unroll_jax.fixed_point.zero_probe`, in reverse mode.

    Source: the implicit function theorem; the interface follows jaxopt's
    ``custom_root``, in our order of arguments (Blondel et al., 2022, Efficient and
    Modular Implicit Differentiation).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> @implicit_root(lambda a, z: z**2 - a)
      ... def square_root(a, z0):
      ...     return jnp.sqrt(a)  # any solver
      >>> float(jax.grad(square_root)(4.0, 1.0))  # 1 / (2 sqrt(a))
      0.25
    """
    _check_names("optimality", optimality)
    linear = resolve_adjoint(adjoint or gmres(WINDOW))
    if linear.num_steps is not None:
        raise ValueError(
            'adjoint must solve a linear system, got "unrolled": the steps of the'
            " solver are not known"
        )

    caller = getattr(optimality, "caller", "implicit_root")
    descend = _descent_of(optimality)
    swapped = _descent_of(
        getattr(optimality, "swapped", _in_order_of_jaxopt(optimality))
    )

    def decorate(solver: Callable[..., Any]) -> Callable[..., Any]:
        _check_names("the solver", solver)

        @functools.wraps(solver)
        @full_precision()
        def solve(
            params: Any, z0: Any, *inputs: Any, probe: Probe | None = None
        ) -> Any:
            result = solver(*_constant((params, z0, *inputs)))
            z, aux = result if has_aux else (result, None)
            z = as_state("the solution", z)
            is_root = functools.partial(
                _is_root, swapped, params, z, inputs, batch_ndim
            )
            try:
                problem = trace(descend, params, z, inputs, batch_ndim)
            except (TypeError, ValueError) as error:
                if is_root(np.inf):
                    raise _order_error(caller) from error
                raise
            program = problem.program
            check_probe(probe, program.batch, reverse=not forward_mode)

            reporting = Reporting(on_failure, tol, call_site(), caller, HINT)
            flat = check_examples(problem, problem.start, in_jit=check)
            flat = _check_solution(problem, flat, z0, reporting, is_root)
            steps = int(adjoint_max_steps)
            backward = Backward(program, linear, float(adjoint_tol), steps, True)
            options = {"forward_mode": forward_mode, "probe": probe}
            flat = with_gradient(backward, problem.operands, flat, reporting, **options)
            z = program.state(flat)
            return (z, _constant(aux)) if has_aux else z

        return solve

    return decorate


@checked(step_size=POSITIVE)
def implicit_argmin(
    objective: Callable[..., Any],
    *,
    prox: Callable[..., Any] | None = None,
    step_size: float = 1.0,
    adjoint: str | Adjoint | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    r"""Gives a solver of :math:`\min_z h(\theta, z, x) + \phi(\theta, z)` implicit
    derivatives, see `implicit_root`.

    The condition is :math:`\nabla_z h = 0`, or with a prox, for any step size s > 0,

    .. math:: z = prox_{s \phi}(z - s \nabla_z h(\theta, z, x)) .

    Args:
      objective: ``(params, z, *inputs) -> h``, a scalar; smooth.
      prox: ``(params, z, step_size) -> z``, of a penalty or a projection (see
        `PROXIMALS`), or None.
      step_size: s, positive; the solution does not depend on it. About 1 / |Hessian|
        conditions the system best.
      adjoint: as in `implicit_root`; None without a prox is "conjugate_gradient", for
        positive definite Hessians.
      **options: the others of `implicit_root`.

    Source: Blondel et al. (2022), Efficient and Modular Implicit Differentiation,
    Sections 2.2 and 2.3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> ridge = lambda weight, z, x: (z - x) ** 2 + weight * z**2
      >>> @implicit_argmin(ridge)
      ... def shrink(weight, z0, x):
      ...     return x / (1.0 + weight)
      >>> float(jax.grad(shrink)(1.0, 0.0, 1.0))  # -1 / (1 + weight)^2
      -0.25
    """
    _check_names("objective", objective)
    if prox is not None:
        _check_names("prox", prox)
    swapped = _in_order_of_jaxopt(jax.grad(objective, argnums=0))
    condition = _Stationary(jax.grad(objective, argnums=1), prox, step_size, swapped)
    default = "conjugate_gradient" if prox is None else None
    return implicit_root(condition, adjoint=adjoint or default, **options)


class _Stationary(NamedTuple):
    """The condition of a minimiser, as a function (params, z, *inputs) -> F."""

    gradient: Callable[..., Any]
    prox: Callable[..., Any] | None
    step_size: float
    swapped: Callable[..., Any]
    caller: str = "implicit_argmin"

    def __call__(self, params: Any, z: Any, *inputs: Any) -> Any:
        slope = self.gradient(params, z, *inputs)
        if self.prox is None:
            return slope
        size = self.step_size
        moved = jax.tree.map(lambda z, slope: z - size * slope, z, slope)
        after = self.prox(params, moved, size)
        check_step(z, after, what="prox")
        return jax.tree.map(jnp.subtract, z, after)


def _descent_of(optimality: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``(params, z, inputs) -> -F``, the direction of a step on F."""

    def descend(params: Any, z: Any, inputs: Any) -> Any:
        value = optimality(params, z, *inputs)
        check_step(z, value, what="optimality")
        return jax.tree.map(jnp.negative, value)

    return descend


def _in_order_of_jaxopt(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, z, *inputs: function(z, params, *inputs)


def _is_root(
    descend: Callable[..., Any],
    params: Any,
    z: Any,
    inputs: Any,
    batch_ndim: int,
    tol: float,
) -> bool:
    """Returns True if z is known to be within ``tol`` of a root of a condition; for
    infinity, if the condition is of the form of z."""
    try:
        params, z, inputs = _constant((params, z, inputs))
        problem = trace(descend, params, z, inputs, batch_ndim)
        if tol == np.inf:
            return True
        program, operands, start = problem
        distance = _distance(program, operands, start, None)
        # any z is a root of a condition that is 0 for all
        _, pull = jax.vjp(lambda z: program.apply(operands, z), start)
        depends = jnp.any(pull(jnp.ones_like(start))[0] != 0.0)
        return bool(depends & jnp.all(distance <= tol))
    # whatever a condition raises that was not written for these arguments
    except Exception:
        return False


def _order_error(caller: str) -> TypeError:
    what = "objective" if caller == "implicit_argmin" else "optimality"
    return TypeError(
        f"{what} must take (params, z, ...), but the solver's result fits"
        f" {what}(z, params, ...); {ORDER}"
    )


def _check_solution(
    problem: Problem,
    z: Float[Array, "b m"],
    start: Any,
    reporting: Reporting,
    is_root: Callable[[float], bool],
) -> Float[Array, "b m"]:
    """Returns ``z`` once rows that are far from a root are reported; a TypeError if
    ``is_root`` finds it to be one in the other order of arguments."""
    program, operands, _ = problem
    if reporting.on_failure == "accept":
        return z
    rows = _like(start, program)
    try:
        distance = _distance(program, *_constant((operands, z, rows)))
    # a condition without a derivative in reverse mode
    except NO_DERIVATIVE:
        return z
    tol = max(reporting.tol, ROUND_OFF * program.epsilon)
    if not is_traced(distance) and not jnp.all(distance <= tol) and is_root(tol):
        raise _order_error(reporting.caller)
    return report_solution(z, distance, reporting._replace(tol=tol))


@functools.partial(jax.jit, static_argnums=0)
@full_precision()
def _distance(
    program: Program,
    operands: Any,
    z: Float[Array, "b m"],
    start: Float[Array, "b m"] | None,
) -> Float[Array, " b"]:
    r"""Returns the distance of each row from a root, relative to its size.

    Near a root :math:`z^*` F is A (z - z^*), so that |F|^2 <= |A^T F| |z - z^*|: the
    estimate |F|^2 / |A^T F| is at most the distance.
    """
    value, pull = jax.vjp(lambda z: program.apply(operands, z), z)
    length = norm(value)
    steepness = norm(pull(over(value, length[:, None]))[0])
    size = norm(z)
    if start is not None:
        size = jnp.maximum(size, norm(start))
    relative = over(over(length, steepness), size)
    # Where F is not 0, it cannot be 0 nearby if its derivative or the scale is.
    undefined = (length > 0.0) & ((steepness == 0.0) | (size == 0.0))
    return jnp.where(undefined, jnp.inf, relative)


def _check_names(what: str, function: Callable[..., Any]) -> None:
    """A TypeError unless it is a function, and none of (z, params, ...)."""
    if not callable(function):
        raise TypeError(f"{what} must be a function (params, z, ...), got {function!r}")
    try:
        names = list(inspect.signature(function).parameters)
    # callables without one, such as some of compiled modules
    except (TypeError, ValueError):
        return
    if names and names[0] in STATES and PARAMETERS.intersection(names[1:]):
        given = ", ".join(names)
        raise TypeError(f"{what} must take (params, z, ...), got ({given}); {ORDER}")


def _like(start: Any, program: Program) -> Float[Array, "b m"] | None:
    """Returns the initial state as rows if it has the form of the result, else None."""
    leaves, tree = jax.tree.flatten(start)
    shapes = [aval.shape for aval in program.avals]
    if tree != program.tree or list(map(np.shape, leaves)) != shapes:
        return None
    return program.flatten(map(jnp.asarray, leaves))


def _constant(tree: Any) -> Any:
    # modules of flax.linen are leaves that have a dtype
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if hasattr(leaf, "astype") else leaf,
        tree,
    )
