"""jaxopt, Optimistix and banax on the same equilibria, each with every hint it
takes."""

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
    """The ways of each library that is installed, by name; see `Way`, and `banax`
    for the other kind."""
    ways = zip(LIBRARIES, (_jaxopt_ways, _optimistix_ways, _banax_ways), strict=True)
    return {
        library: find(cell) for library, find in ways if installed(library) is not None
    }


def _jaxopt_ways(cell: Cell) -> dict[str, functools.partial]:
    """Its solvers with its linear solvers; a smaller ridge than its default, and a
    longer history, can be quicker.

    Its Broyden method is left out: of 64 x 64 states it did not end within minutes.
    """

    def anderson(history, ridge):
        return (
            "AndersonAcceleration",
            {"history_size": history, "ridge": ridge},
        )

    forward: dict[str, tuple[str, dict[str, Any]]] = {
        "Picard": ("FixedPointIteration", {}),
        "Anderson 5": anderson(5, 1e-8),
        "Anderson 5 ridge 1e-5": anderson(5, 1e-5),
        "Anderson 10": anderson(10, 1e-8),
    }
    if cell.symmetric:
        forward["LBFGS on the energy"] = ("LBFGS", {})
    ways: dict[str, functools.partial] = {}
    for name in ("cg",) if cell.symmetric else ("bicgstab", "gmres", "normal_cg"):
        for title, solver in forward.items():
            ways[f"{title}, {name}"] = functools.partial(_jaxopt, *solver, name, False)
        for title in ("Picard", "Anderson 5"):
            ways[f"{title}, {name}, vmap"] = functools.partial(
                _jaxopt, *forward[title], name, True
            )
    return ways


def _optimistix_ways(cell: Cell) -> dict[str, functools.partial]:
    """Its solvers with the linear solvers of lineax; direct ones need one example at
    a time."""
    ways: dict[str, functools.partial] = {}
    for name in ("CG", "Cholesky") if cell.symmetric else ("BiCGStab", "GMRES", "LU"):
        direct = name in ("Cholesky", "LU")
        if direct and cell.start[0].size > 256:
            continue  # seconds and hundreds of megabytes
        for solver in (
            "FixedPointIteration",
            "Newton",
            *(() if direct else ("inexact Newton",)),
        ):
            for mapped in (True,) if direct else (False, True):
                ways[f"{solver}, {name}" + ", vmap" * mapped] = functools.partial(
                    _optimistix, solver, name, mapped
                )
    return ways


def _banax_ways(_: Cell) -> dict[str, functools.partial]:
    names = [
        (name, mapped) for name in ("Picard", "Anderson") for mapped in (False, True)
    ]
    return {
        name + ", vmap" * mapped: functools.partial(banax, name, mapped)
        for name, mapped in names
    }


def banax(
    name: str, mapped: bool, cell: Cell, forward: float, backward: float
) -> Callable[[Any], jax.Array]:
    """The state of params; both tolerances are constants, relative, of the batch or
    of an example as in `Way`."""
    solver, adjoint = (
        getattr(installed("banax.solver"), name),
        installed("banax.adjoint"),
    )
    method = adjoint.Implicit(
        *(solver(rtol=tol, max_steps=MAX_STEPS) for tol in (forward, backward))
    )
    step = lambda z, params, x: cell.step(params, z, x)
    run = lambda params, _, z, x: method((step, (params, x)), z).value
    return lambda params: _over_examples(mapped, cell, run)(
        params, jnp.float32(forward)
    )


def _jaxopt(
    name: str,
    settings: dict[str, Any],
    linear: str,
    mapped: bool,
    cell: Cell,
    backward: float,
) -> Callable[[Any, jax.Array], jax.Array]:
    jaxopt, solves = installed("jaxopt"), installed("jaxopt.linear_solve")
    options: dict[str, Any] = {"tol": backward, "maxiter": MAX_STEPS}
    if linear == "gmres":
        options |= {"maxiter": 100, "solve_method": "incremental"}  # of 20 steps each
    function = lambda z, params, x: cell.step(params, z, x)
    if name == "LBFGS":
        function = lambda z, params, x: jnp.sum(
            cell.layer.energy(params, z, x)
        )  # with gradient z - f(z)
    solve = functools.partial(getattr(solves, f"solve_{linear}"), **options)
    settings = settings | {
        "maxiter": MAX_STEPS,
        "implicit_diff": True,
        "implicit_diff_solve": solve,
    }

    def run(params: Any, forward: jax.Array, z: jax.Array, x: jax.Array) -> jax.Array:
        return (
            getattr(jaxopt, name)(function, tol=forward, **settings)
            .run(z, params, x)
            .params
        )

    return _over_examples(mapped, cell, run)


def _optimistix(
    solver: str, linear: str, mapped: bool, cell: Cell, backward: float
) -> Callable[[Any, jax.Array], jax.Array]:
    optimistix, lineax = installed("optimistix"), installed("lineax")
    target = float(jnp.linalg.norm(cell.target[0] if mapped else cell.target))
    symmetric = linear in ("CG", "Cholesky")
    tags = frozenset(
        {lineax.negative_semidefinite_tag, lineax.symmetric_tag} if symmetric else ()
    )

    def linear_solver(atol: Any, rtol: float = 0.0) -> Any:
        if linear in ("Cholesky", "LU"):
            return getattr(lineax, linear)()
        return getattr(lineax, linear)(
            rtol=rtol, atol=atol, norm=optimistix.two_norm, max_steps=MAX_STEPS
        )

    adjoint = optimistix.ImplicitAdjoint(linear_solver(backward * target))
    common: dict[str, Any] = {
        "adjoint": adjoint,
        "max_steps": MAX_STEPS,
        "throw": False,
        "tags": tags,
    }

    def run(params: Any, forward: jax.Array, z: jax.Array, x: jax.Array) -> jax.Array:
        tolerances: dict[str, Any] = {
            "rtol": 0.0,
            "atol": forward,
            "norm": optimistix.two_norm,
        }
        step = lambda z, args: cell.step(args[0], z, args[1])
        if solver == "FixedPointIteration":
            method = optimistix.FixedPointIteration(**tolerances)
            return optimistix.fixed_point(step, method, z, (params, x), **common).value
        inner = linear_solver(forward, rtol=0.1 if solver == "inexact Newton" else 0.0)
        method = optimistix.Newton(**tolerances, linear_solver=inner)
        return optimistix.root_find(
            lambda z, args: step(z, args) - z, method, z, (params, x), **common
        ).value

    return _over_examples(mapped, cell, run)


def _over_examples(
    mapped: bool, cell: Cell, run: Callable[..., jax.Array]
) -> Callable[[Any, jax.Array], jax.Array]:
    run = jax.vmap(run, in_axes=(None, None, 0, 0)) if mapped else run
    return lambda params, forward: run(params, forward, cell.start, cell.x)
