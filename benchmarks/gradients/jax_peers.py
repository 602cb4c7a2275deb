"""jaxopt, Optimistix and banax on the same equilibria, with all hints they take."""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gradients.problems import Cell

__all__ = ["LIBRARIES", "Way", "banax", "installed", "ways"]

LIBRARIES = ("jaxopt", "optimistix", "banax")
MAX_STEPS = 3000
# ``(cell, backward) -> (params, forward) -> state``: a relative tolerance on the
# residual of the adjoint system, and an absolute one on |f(z) - z|, of an example where
# the way is mapped over examples, else of the batch.
Way = Callable[[Cell, float], Callable[[Any, jax.Array], jax.Array]]


def installed(name: str) -> Any:
    """The module, or None where it is not installed."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "JAXopt is no longer maintained", DeprecationWarning
        )
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def ways(cell: Cell) -> dict[str, dict[str, functools.partial]]:
    """The ways of each library that is installed, by name (see `Way` and `banax`)."""
    finders = (_jaxopt_ways, _optimistix_ways, _banax_ways)
    return {
        library: find(cell)
        for library, find in zip(LIBRARIES, finders, strict=True)
        if installed(library) is not None
    }


def _jaxopt_ways(cell: Cell) -> dict[str, functools.partial]:
    """Its solvers with its linear solvers.

    A smaller ridge than its default, and a longer history, can be quicker. Its Broyden
    method is left out: on 64 x 64 states it did not end within minutes.
    """

    def anderson(history, ridge):
        return "AndersonAcceleration", {"history_size": history, "ridge": ridge}

    forward: dict[str, tuple[str, dict[str, Any]]] = {
        "Picard": ("FixedPointIteration", {}),
        "Anderson 5": anderson(5, 1e-8),
        "Anderson 5 ridge 1e-5": anderson(5, 1e-5),
        "Anderson 10": anderson(10, 1e-8),
    }
    if cell.symmetric:
        forward["LBFGS on the energy"] = ("LBFGS", {})
    ways: dict[str, functools.partial] = {}
    linear = ("cg",) if cell.symmetric else ("bicgstab", "gmres", "normal_cg")
    for name in linear:
        for title, solver in forward.items():
            way = functools.partial(_jaxopt, *solver, name)
            ways[f"{title}, {name}"] = functools.partial(way, False)
            if title in ("Picard", "Anderson 5"):
                ways[f"{title}, {name}, vmap"] = functools.partial(way, True)
    return ways


def _optimistix_ways(cell: Cell) -> dict[str, functools.partial]:
    """Its solvers with the linear solvers of lineax."""
    ways: dict[str, functools.partial] = {}
    linear = ("CG", "Cholesky") if cell.symmetric else ("BiCGStab", "GMRES", "LU")
    for name in linear:
        direct = name in ("Cholesky", "LU")
        if direct and cell.start[0].size > 256:
            continue  # seconds and hundreds of megabytes
        for solver in ("FixedPointIteration", "Newton", "inexact Newton"):
            way = functools.partial(_optimistix, solver, name)
            # direct solvers solve exactly, and need one example at a time
            if not direct:
                ways[f"{solver}, {name}"] = functools.partial(way, False)
            if not direct or solver != "inexact Newton":
                ways[f"{solver}, {name}, vmap"] = functools.partial(way, True)
    return ways


def _banax_ways(_: Cell) -> dict[str, functools.partial]:
    ways: dict[str, functools.partial] = {}
    for name in ("Picard", "Anderson"):
        ways[name] = functools.partial(banax, name, False)
        ways[f"{name}, vmap"] = functools.partial(banax, name, True)
    return ways


def banax(
    name: str, mapped: bool, cell: Cell, forward: float, backward: float
) -> Callable[[Any], jax.Array]:
    """The state of params. Both tolerances are relative, and constants.

    They hold for the batch or for an example, as in `Way`.
    """
    solver = getattr(installed("banax.solver"), name)
    tolerances = (forward, backward)
    solvers = (solver(rtol=tol, max_steps=MAX_STEPS) for tol in tolerances)
    method = installed("banax.adjoint").Implicit(*solvers)

    def step(z, params, x):
        return cell.step(params, z, x)

    def run(params, _, z, x):
        return method((step, (params, x)), z).value

    solve = _over_examples(mapped, cell, run)
    return lambda params: solve(params, jnp.float32(forward))


def _jaxopt(
    name: str,
    settings: dict[str, Any],
    linear: str,
    mapped: bool,
    cell: Cell,
    backward: float,
) -> Callable[[Any, jax.Array], jax.Array]:
    options: dict[str, Any] = {"tol": backward, "maxiter": MAX_STEPS}
    if linear == "gmres":
        options |= {"maxiter": 100, "solve_method": "incremental"}  # of 20 steps each
    solve = getattr(installed("jaxopt.linear_solve"), f"solve_{linear}")
    solve = functools.partial(solve, **options)
    settings = settings | {"maxiter": MAX_STEPS}
    settings |= {"implicit_diff": True, "implicit_diff_solve": solve}

    def function(z, params, x):
        if name == "LBFGS":
            # the energy has the gradient z - f(z)
            return jnp.sum(cell.layer.energy(params, z, x))
        return cell.step(params, z, x)

    def run(params: Any, forward: jax.Array, z: jax.Array, x: jax.Array) -> jax.Array:
        solver = getattr(installed("jaxopt"), name)
        solver = solver(function, tol=forward, **settings)
        return solver.run(z, params, x).params

    return _over_examples(mapped, cell, run)


def _optimistix(
    solver: str, linear: str, mapped: bool, cell: Cell, backward: float
) -> Callable[[Any, jax.Array], jax.Array]:
    optimistix, lineax = installed("optimistix"), installed("lineax")
    norm = optimistix.two_norm
    target = float(jnp.linalg.norm(cell.target[0] if mapped else cell.target))
    tags = frozenset()
    if linear in ("CG", "Cholesky"):
        tags = frozenset({lineax.negative_semidefinite_tag, lineax.symmetric_tag})

    def linear_solver(atol: Any, rtol: float = 0.0) -> Any:
        method = getattr(lineax, linear)
        if linear in ("Cholesky", "LU"):
            return method()
        return method(rtol=rtol, atol=atol, norm=norm, max_steps=MAX_STEPS)

    adjoint = optimistix.ImplicitAdjoint(linear_solver(backward * target))
    common: dict[str, Any] = {"adjoint": adjoint, "max_steps": MAX_STEPS}
    common |= {"throw": False, "tags": tags}

    def step(z, args):
        params, x = args
        return cell.step(params, z, x)

    def run(params: Any, forward: jax.Array, z: jax.Array, x: jax.Array) -> jax.Array:
        tolerances: dict[str, Any] = {"rtol": 0.0, "atol": forward, "norm": norm}
        if solver == "FixedPointIteration":
            method = optimistix.FixedPointIteration(**tolerances)
            return optimistix.fixed_point(step, method, z, (params, x), **common).value
        inner = linear_solver(forward, rtol=0.1 if solver == "inexact Newton" else 0.0)
        method = optimistix.Newton(**tolerances, linear_solver=inner)
        root = optimistix.root_find(
            lambda z, args: step(z, args) - z, method, z, (params, x), **common
        )
        return root.value

    return _over_examples(mapped, cell, run)


def _over_examples(
    mapped: bool, cell: Cell, run: Callable[..., jax.Array]
) -> Callable[[Any, jax.Array], jax.Array]:
    if mapped:
        run = jax.vmap(run, in_axes=(None, None, 0, 0))
    return lambda params, forward: run(params, forward, cell.start, cell.x)
