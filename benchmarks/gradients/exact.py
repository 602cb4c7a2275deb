"""The exact equilibrium and gradient of a problem, in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def residual(cell: Cell, z: Any) -> float:
    """The largest |f(z) - z| / |f(z)| over the examples, in float64."""
    z = np.asarray(z, np.float64)
    fz = _double(cell)[0](z)
    rows = lambda a: np.linalg.norm(a.reshape(len(a), -1), axis=1)
    return float(np.max(rows(fz - z) / rows(fz)))


def exact(cell: Cell, near: Any) -> Exact:
    """Newton's method from a point nearby, then the adjoint; by SciPy's conjugate
    gradients or direct solves."""
    step, pulled, jacobian = _double(cell)

    def solved(z: np.ndarray, v: np.ndarray, transposed: bool) -> np.ndarray:
        if not cell.symmetric:
            matrices = (np.eye(v[0].size) - jacobian(z, i) for i in range(len(z)))
            rows = [
                np.linalg.solve(A.T if transposed else A, u.ravel())
                for A, u in zip(matrices, v, strict=True)
            ]
            return np.stack(rows).reshape(v.shape)
        matvec = lambda w: w - pulled(z, w.reshape(v.shape))[1].ravel()
        operator: Any = scipy.sparse.linalg.LinearOperator
        operator = operator((v.size, v.size), matvec=matvec, dtype=np.float64)
        w, failed = scipy.sparse.linalg.cg(
            operator, v.ravel(), rtol=1e-13, maxiter=5000
        )
        if failed:
            raise RuntimeError("conjugate gradients in float64 did not converge")
        return w.reshape(v.shape)

    z = np.asarray(near, np.float64)
    for _ in range(50):
        difference = step(z) - z
        if np.linalg.norm(difference) <= 1e-13 * np.linalg.norm(z):
            return Exact(
                z,
                as_vector(
                    pulled(z, solved(z, np.asarray(cell.target, np.float64), True))[0]
                ),
            )
        z = z + solved(z, difference, False)
    raise RuntimeError("the exact equilibrium was not found")


def _double(cell: Cell) -> tuple[Callable, Callable, Callable]:
    """In float64: the step, its pullback to params and state, and the Jacobian of
    one example."""
    with jax.enable_x64(True):
        params, x = jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)),
            (cell.params, cell.x),
        )
        step = jax.jit(cell.step)
        pulled = jax.jit(
            lambda params, z, x, w: jax.vjp(lambda p, z: cell.step(p, z, x), params, z)[
                1
            ](w)
        )
        one = jax.jit(
            jax.jacrev(lambda z, params, x: cell.step(params, z[None], x[None])[0])
        )

    def run(function: Callable, *arrays: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*arrays))

    return (
        lambda z: run(step, params, z, x),
        lambda z, w: run(pulled, params, z, x, w),
        lambda z, i: run(one, z[i], params, x[i]).reshape(z[i].size, z[i].size),
    )
