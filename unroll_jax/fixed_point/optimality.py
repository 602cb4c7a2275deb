"""Implicit gradients of any solver's result, from the condition that its result
fulfils."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from unroll_jax.arguments import POSITIVE, at_least, checked, in_interval, one_of
from unroll_jax.fixed_point.adjoints import (
    Adjoint,
    Linear,
    Unrolled,
    gmres,
    resolve_adjoint,
)
from unroll_jax.fixed_point.derivatives import (
    Backward,
    Probe,
    check_examples,
    check_probe,
    with_gradient,
)
from unroll_jax.fixed_point.program import as_state, trace
from unroll_jax.fixed_point.reports import ON_FAILURE, Reporting, call_site
from unroll_jax.fixed_point.rows import dot
from unroll_jax.fixed_point.solvers import cache_factory
from unroll_jax.numerics import full_precision
from unroll_jax.step_checks import check_step

__all__ = ["implicit_argmin", "implicit_root"]

WINDOW = 30  # directions of the default GMRES, which may be far from a contraction here
HINT = "; the condition's derivative in z may be singular at the solution"


@checked(
    adjoint_tol=in_interval("(0, 1)"),
    adjoint_max_steps=at_least(1),
    on_failure=one_of(ON_FAILURE),
    batch_ndim=at_least(0),
)
def implicit_root(
    optimality: Callable[..., Any],
    *,
    adjoint: str | Adjoint | None = None,
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
              \Big(\frac{\partial F}{\partial \theta} d\theta + \frac{\partial F}{\partial x} dx\Big) ,

    by vector products with the derivatives of F only. The solver may be anything that
    finds z: a loop, another library, or SciPy (outside of `jax.jit` as it is, inside by
    `jax.pure_callback`); it is never differentiated, and sees values without gradients.
    Values that ``optimality`` closes over are differentiated too. The result is as
    exact as the solver's z: at another point the derivatives belong to a root nearby.

    Args:
      optimality: ``(params, z, *inputs) -> F``, of the structure, shapes and dtypes of
        z.
      adjoint: a name of `ADJOINTS` or an `Adjoint`, for I - J = dF/dz; None is `gmres`
        of 30 directions. Those that need a symmetric J probe for it. Series such as
        "neumann" need |I - dF/dz| < 1.
      adjoint_tol, adjoint_max_steps: relative tolerance and cap of the linear solve.
      on_failure: "error", "warn" or "accept" where the linear solve does not converge,
        see `equilibrium`.
      batch_ndim: how many leading axes of z are batch axes. F must not mix examples: an
        error outside of `jax.jit`.
      forward_mode: enables `jax.jvp` and higher-order derivatives.
      has_aux: whether the solver returns ``(z, aux)``; aux has no derivative.
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
    if not callable(optimality):
        raise TypeError(
            "optimality must be a function (params, z, *inputs) -> F, got"
            f" {optimality!r}"
        )
    linear = resolve_adjoint(adjoint or gmres(WINDOW))
    if isinstance(linear, Unrolled):
        raise ValueError(
            'adjoint must solve a linear system, got "unrolled": the steps of the'
            " solver are not known"
        )

    linear = linear if linear.symmetric else _balanced(linear)
    backward = Backward(linear, float(adjoint_tol), int(adjoint_max_steps))

    def shifted(params: Any, z: Any, inputs: Any) -> Any:
        """The step z - F, whose Jacobian J has I - J = dF/dz; its value is z itself,
        which F of any scale keeps."""
        value = optimality(params, z, *inputs)
        check_step(z, value, what="optimality")
        return jax.tree.map(
            lambda z, value: z - (value - jax.lax.stop_gradient(value)), z, value
        )

    def decorate(solver: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(solver)
        @full_precision()
        def solve(
            params: Any, z0: Any, *inputs: Any, probe: Probe | None = None
        ) -> Any:
            z = solver(*_constant((params, z0, *inputs)))
            z, aux = z if has_aux else (z, None)
            program, operands, z = trace(
                shifted, params, as_state("the solution", z), inputs, batch_ndim
            )
            check_probe(probe, program.batch, reverse=not forward_mode)
            reporting = Reporting(on_failure, adjoint_tol, call_site(), HINT)
            flat = check_examples(
                program, operands, program.flatten(jax.tree.leaves(z)), in_jit=check
            )
            z = with_gradient(
                program,
                backward,
                operands,
                flat,
                reporting,
                forward_mode=forward_mode,
                probe=probe,
            )
            return (program.state(z), _constant(aux)) if has_aux else program.state(z)

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
      >>> @implicit_argmin(
      ...     lambda weight, z, x: jnp.sum((z - x) ** 2) + weight * jnp.sum(z**2)
      ... )
      ... def shrink(weight, z0, x):
      ...     return x / (1.0 + weight)
      >>> float(
      ...     jax.grad(lambda weight: shrink(weight, jnp.zeros(1), jnp.ones(1))[0])(1.0)
      ... )  # -1 / (1 + weight)^2
      -0.25
    """
    for name, function in (("objective", objective), ("prox", prox)):
        if not callable(function) and (name == "objective" or function is not None):
            raise TypeError(f"{name} must be a function, got {function!r}")
    gradient = jax.grad(objective, argnums=1)

    def stationary(params: Any, z: Any, *inputs: Any) -> Any:
        slope = gradient(params, z, *inputs)
        if prox is None:
            return slope
        after = prox(
            params,
            jax.tree.map(lambda z, slope: z - step_size * slope, z, slope),
            step_size,
        )
        check_step(z, after, what="prox")
        return jax.tree.map(lambda z, after: z - after, z, after)

    default = "conjugate_gradient" if prox is None else None
    return implicit_root(stationary, adjoint=adjoint or default, **options)


@cache_factory
def _balanced(adjoint: Adjoint) -> Adjoint:
    """The adjoint on A s w' = v, w = s w', with A = dF/dz scaled by s to the size of
    1: F may be of any scale."""

    def solve(operator: Linear, v: Any, tol: float, max_steps: int) -> Any:
        image = v - operator(v)
        size = jnp.sqrt(dot(image, image))[:, None]
        scale = jnp.where(dot(image, v)[:, None] < 0.0, -1.0, 1.0) / jnp.where(
            size > 0.0, size, 1.0
        )
        w, info = adjoint.solve(
            lambda w: w - scale * (w - operator(w)), v, tol, max_steps
        )
        return scale * w, info

    return adjoint._replace(solve=solve)


def _constant(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if hasattr(leaf, "dtype") else leaf,
        tree,
    )
