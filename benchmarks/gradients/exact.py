"""The exact equilibrium and gradient of a problem, in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse.linalg

from benchmarks.gradients.problems import Cell

__all__ = ["Exact", "as_vector", "exact", "residual"]


class Exact(NamedTuple):
    """The equilibrium and the gradient in float64, the latter as one vector."""

    z: np.ndarray
    gradient: np.ndarray


def as_vector(tree: Any) -> np.ndarray:
    """The leaves of a pytree as one vector in float64."""
    leaves = jax.tree.leaves(tree)
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def residual(cell: Cell, z: Any) -> float:
    """The largest |f(z) - z| / |f(z)| over the examples, in float64."""
    z = np.asarray(z, np.float64)
    step, *_ = _double(cell)
    fz = step(z)
    rows = (len(z), -1)
    gap = np.linalg.norm((fz - z).reshape(rows), axis=1)
    return float(np.max(gap / np.linalg.norm(fz.reshape(rows), axis=1)))


def exact(cell: Cell, near: Any) -> Exact:
    """Newton's method from a point nearby, then the adjoint.

    Linear systems are solved directly, or if symmetric by SciPy's conjugate gradients.
    """
    step, pull_back, jacobian = _double(cell)

    def solve(z: np.ndarray, v: np.ndarray, *, transposed: bool) -> np.ndarray:
        """(I - J)^-1 v or (I - J)^-T v, for the Jacobian J of the step at z."""
        if not cell.symmetric:
            rows = []
            for i, u in enumerate(v):
                matrix = np.eye(u.size) - jacobian(z, i)
                rows.append(
                    np.linalg.solve(matrix.T if transposed else matrix, u.ravel())
                )
            return np.stack(rows).reshape(v.shape)

        def matvec(w):
            return w - pull_back(z, w.reshape(v.shape))[1].ravel()

        operator: Any = scipy.sparse.linalg.LinearOperator
        operator = operator((v.size, v.size), matvec=matvec, dtype=np.float64)
        cg = scipy.sparse.linalg.cg
        w, failed = cg(operator, v.ravel(), rtol=1e-13, maxiter=5000)
        if failed:
            raise RuntimeError("conjugate gradients in float64 did not converge")
        return w.reshape(v.shape)

    z = np.asarray(near, np.float64)
    for _ in range(50):
        difference = step(z) - z
        if np.linalg.norm(difference) <= 1e-13 * np.linalg.norm(z):
            adjoint = solve(z, np.asarray(cell.target, np.float64), transposed=True)
            return Exact(z, as_vector(pull_back(z, adjoint)[0]))
        z = z + solve(z, difference, transposed=False)
    raise RuntimeError("the exact equilibrium was not found")


def _double(cell: Cell) -> tuple[Callable, Callable, Callable]:
    """The step, its pullback to params and state, and the Jacobian of one example.

    They compute in float64, on NumPy arrays.
    """

    def pull_back(params, z, x, w):
        _, pull = jax.vjp(lambda params, z: cell.step(params, z, x), params, z)
        return pull(w)

    def step_of_one(z, params, x):
        return cell.step(params, z[None], x[None])[0]

    def run(function: Callable, *arrays: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*arrays))

    params, x = jax.tree.map(lambda leaf: np.float64(leaf), (cell.params, cell.x))
    step = jax.jit(cell.step)
    pulled = jax.jit(pull_back)
    jacobian = jax.jit(jax.jacrev(step_of_one))
    return (
        lambda z: run(step, params, z, x),
        lambda z, w: run(pulled, params, z, x, w),
        lambda z, i: run(jacobian, z[i], params, x[i]).reshape(z[i].size, z[i].size),
    )
