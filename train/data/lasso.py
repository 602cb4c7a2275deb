"""Solutions of the Lasso: the fixed points of ISTA, by FISTA with restarts."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unroll_jax.energies import ListaParams, lista
from unroll_jax.fixed_point import equilibrium

__all__ = ["solve_lasso"]


def solve_lasso(
    signals: Float[np.ndarray, "samples dim"],
    dictionary: Float[np.ndarray, "atoms dim"],
    sparsity: float,
    max_steps: int,
    tol: float = 1e-30,
) -> tuple[Float[np.ndarray, "samples atoms"], Float[np.ndarray, "samples"]]:
    r"""The codes that minimise :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`, and the relative residual of each.

    These are codes of FISTA from 0, with restarts where it overshoots, after ``max_steps`` steps, or once a step moves
    each by less than ``tol`` of its size; by default never.

    Source: Beck and Teboulle (2009), with the step 1 / |D|_2^2; O'Donoghue and Candes (2015) for the restarts.
    """
    atoms, dim = dictionary.shape
    curvature = float(np.linalg.norm(dictionary, 2) ** 2)
    codes, residuals = _solver(dim, atoms, sparsity, curvature, max_steps, tol)(dictionary, signals)
    return np.asarray(codes), np.asarray(residuals)


@functools.cache
def _solver(
    dim: int, atoms: int, sparsity: float, curvature: float, max_steps: int, tol: float
) -> Callable[[np.ndarray, np.ndarray], tuple[jax.Array, jax.Array]]:
    layer = lista(dim, atoms, sparsity=sparsity, curvature=curvature)

    @jax.jit
    def solve(dictionary: jax.Array, signals: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jnp.zeros((len(signals), 1, atoms), signals.dtype)
        # A step's Jacobian is symmetric on the active atoms only, which is enough for FISTA.
        codes, info = equilibrium(
            layer,
            ListaParams(dictionary),
            start,
            signals[:, None],
            solver="accelerated_gradient",
            tol=tol,
            max_steps=max_steps,
            on_failure="accept",
        )
        return codes[:, 0], info.residual

    return solve
