"""jaxopt and Optimistix on the same equilibria, each told what it can be told, so that its best is what is timed."""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gradients.problems import Cell

__all__ = ["Way", "installed", "jaxopt_ways", "optimistix_ways"]

MAX_STEPS = 3000
# ``(cell, forward, backward) -> params -> state``: an absolute tolerance on |f(z) - z|, of an example where the way is
# mapped over examples, else of the batch; and a relative one on the residual of the adjoint system.
Way = Callable[[Cell, float, float], Callable[[Any], jax.Array]]


def installed(name: str) -> Any:
    """The module, or None where it is not installed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def jaxopt_ways(cell: Cell) -> dict[str, Way]:
    """Its solvers with its linear solvers; a smaller ridge than its default, and a longer history, can be quicker."""
    if installed("jaxopt") is None:
        return {}
    linear = ("cg",) if cell.symmetric else ("bicgstab", "gmres", "normal_cg")
    ways: dict[str, Way] = {}
    for name in linear:
        ways[f"Picard, {name}"] = functools.partial(_jaxopt, None, 0.0, name, False)
        for history, ridge in ((5, 1e-5), (5, 1e-8), (10, 1e-8)):
            ways[f"Anderson {history} ridge {ridge:.0e}, {name}"] = functools.partial(
                _jaxopt, history, ridge, name, False
            )
        ways[f"Anderson 5 ridge 1e-08, {name}, vmap"] = functools.partial(_jaxopt, 5, 1e-8, name, True)
    return ways


def optimistix_ways(cell: Cell) -> dict[str, Way]:
    """Its solvers with the linear solvers of lineax; direct ones need one example at a time."""
    if installed("optimistix") is None:
        return {}
    linear = ("CG", "Cholesky") if cell.symmetric else ("BiCGStab", "GMRES", "LU")
    ways: dict[str, Way] = {}
    for name in linear:
        direct = name in ("Cholesky", "LU")
        if direct and cell.start[0].size > 256:
            continue  # seconds and hundreds of megabytes
        for solver in ("FixedPointIteration", "Newton"):
            for mapped in (True,) if direct else (False, True):
                key = f"{solver}, {name}" + (", vmap" if mapped else "")
                ways[key] = functools.partial(_optimistix, solver, name, mapped)
    return ways


def _jaxopt(
    history: int | None, ridge: float, linear: str, mapped: bool, cell: Cell, forward: float, backward: float
) -> Callable[[Any], jax.Array]:
    jaxopt, solves = installed("jaxopt"), installed("jaxopt.linear_solve")
    options = {"tol": backward, "maxiter": MAX_STEPS}
    if linear == "gmres":
        options |= {"maxiter": 100, "solve_method": "incremental"}  # of 20 steps each
    step = lambda z, params, x: cell.layer.step(params, z, x)  # noqa: E731
    common: dict[str, Any] = {
        "maxiter": MAX_STEPS,
        "tol": forward,
        "implicit_diff": True,
        "implicit_diff_solve": functools.partial(getattr(solves, f"solve_{linear}"), **options),
    }
    if history is None:
        solver = jaxopt.FixedPointIteration(step, **common)
    else:
        solver = jaxopt.AndersonAcceleration(step, history_size=history, ridge=ridge, **common)
    return _over_examples(mapped, cell, lambda params, z, x: solver.run(z, params, x).params)


def _optimistix(
    solver: str, linear: str, mapped: bool, cell: Cell, forward: float, backward: float
) -> Callable[[Any], jax.Array]:
    optimistix, lineax = installed("optimistix"), installed("lineax")
    target = float(jnp.linalg.norm(cell.target[0] if mapped else cell.target))
    symmetric = linear in ("CG", "Cholesky")
    tags = frozenset({lineax.negative_semidefinite_tag, lineax.symmetric_tag} if symmetric else ())

    def linear_solver(atol: float) -> Any:
        if linear in ("Cholesky", "LU"):
            return getattr(lineax, linear)()
        options = {"rtol": 0.0, "atol": atol, "norm": optimistix.two_norm, "max_steps": MAX_STEPS}
        return getattr(lineax, linear)(**options)

    tolerances: dict[str, Any] = {"rtol": 0.0, "atol": forward, "norm": optimistix.two_norm}
    common: dict[str, Any] = {
        "adjoint": optimistix.ImplicitAdjoint(linear_solver(backward * target)),
        "tags": tags,
        "max_steps": MAX_STEPS,
        "throw": False,
    }

    def run(params: Any, z: jax.Array, x: jax.Array) -> jax.Array:
        if solver == "Newton":
            method = optimistix.Newton(**tolerances, linear_solver=linear_solver(forward))
            change = lambda z, args: cell.layer.step(args[0], z, args[1]) - z  # noqa: E731
            return optimistix.root_find(change, method, z, (params, x), **common).value
        method = optimistix.FixedPointIteration(**tolerances)
        step = lambda z, args: cell.layer.step(args[0], z, args[1])  # noqa: E731
        return optimistix.fixed_point(step, method, z, (params, x), **common).value

    return _over_examples(mapped, cell, run)


def _over_examples(mapped: bool, cell: Cell, run: Callable[..., jax.Array]) -> Callable[[Any], jax.Array]:
    run = jax.vmap(run, in_axes=(None, 0, 0)) if mapped else run
    return lambda params: run(params, cell.start, cell.x)
