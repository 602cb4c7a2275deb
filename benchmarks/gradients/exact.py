"""The exact equilibrium and gradient of a problem, in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from benchmarks.gradients.problems import BlockParams, Cell, TanhParams
from unroll_jax.energies import OptEqParams

__all__ = ["Exact", "exact", "residual"]


class Exact(NamedTuple):
    """The equilibrium and the gradient in float64, the latter as one vector."""

    z: np.ndarray
    gradient: np.ndarray


class _Weights(NamedTuple):
    W: np.ndarray
    U: np.ndarray
    b: np.ndarray


def residual(cell: Cell, z: Any) -> float:
    """The largest |f(z) - z| / |f(z)| over the examples, in float64."""
    z = np.asarray(z, np.float64)
    fz = _double(cell)[0](z)
    rows = lambda a: np.linalg.norm(a.reshape(len(a), -1), axis=1)  # noqa: E731
    return float(np.max(rows(fz - z) / rows(fz)))


def exact(cell: Cell, near: Any) -> Exact:
    """Newton's method from a point nearby, then the adjoint system, each by direct solves in NumPy.

    Of a convolution, whose matrix is too large, by SciPy's conjugate gradients to a residual of 1e-13; of the tanh
    cell and the transformer block, which contract, by as many plain steps as that takes.
    """
    if isinstance(cell.params, TanhParams | BlockParams):
        return _exact_contraction(cell, near)
    if cell.start.ndim > 2:
        return _exact_conv(cell, near)
    chain = [cell.params] if isinstance(cell.params, OptEqParams) else list(cell.params)
    chain = [_Weights(*_doubles(*params)) for params in chain]
    factors: dict[bytes, Any] = {}
    rows = zip(*_doubles(near, cell.x, cell.target), strict=True)
    pieces = [_exact_row(chain, z, x, target, factors) for z, x, target in rows]
    gradient = [np.sum([piece[1][i] for piece in pieces], axis=0) for i in range(3 * len(chain))]
    return Exact(np.stack([piece[0] for piece in pieces]), np.concatenate([np.ravel(part) for part in gradient]))


def _exact_row(
    chain: list[_Weights], z: np.ndarray, x: np.ndarray, target: np.ndarray, factors: dict[bytes, Any]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """One example: its equilibrium and the gradients in W, U, b of every layer."""
    for _ in range(50):
        states, slopes, after = _forward(chain, z, x)
        factor = _factor(chain, slopes, factors)
        if np.linalg.norm(after - z) <= 1e-13 * np.linalg.norm(after):
            break
        z = z + scipy.linalg.lu_solve(factor, after - z)
    else:
        raise RuntimeError("the exact equilibrium was not found")
    w, gradients = scipy.linalg.lu_solve(factor, target, trans=1), []
    for params, state, slope in reversed(list(zip(chain, states, slopes, strict=True))):
        hidden = params.W @ state + params.U @ x + params.b
        pulled = slope * (params.W @ w)
        of_W = np.outer(np.maximum(hidden, 0.0), w) + np.outer(pulled, state)
        gradients = [of_W, np.outer(pulled, x), pulled, *gradients]
        w = params.W.T @ pulled
    return z, gradients


def _factor(chain: list[_Weights], slopes: list[np.ndarray], factors: dict[bytes, Any]) -> Any:
    """I - J in factors, made once for every set of active units."""
    key = b"".join(slope.tobytes() for slope in slopes)
    if key not in factors:
        jacobian = np.eye(chain[0].W.shape[1])
        for params, slope in zip(chain, slopes, strict=True):
            active = params.W[slope]
            jacobian = active.T @ (active @ jacobian if len(chain) > 1 else active)
        factors[key] = scipy.linalg.lu_factor(np.eye(len(jacobian)) - jacobian)
    return factors[key]


def _forward(chain: list[_Weights], z: np.ndarray, x: np.ndarray) -> tuple[list, list, np.ndarray]:
    """The states before every layer, the slopes of the relu in it, and the state after all."""
    states, slopes = [], []
    for params in chain:
        hidden = params.W @ z + params.U @ x + params.b
        states.append(z)
        slopes.append(hidden > 0.0)
        z = params.W.T @ np.maximum(hidden, 0.0)
    return states, slopes, z


def _exact_conv(cell: Cell, near: Any) -> Exact:
    step, pull, gradient = _double(cell)
    z = np.asarray(near, np.float64)
    for _ in range(50):
        difference = step(z) - z
        if np.linalg.norm(difference) <= 1e-12 * np.linalg.norm(z):
            break
        z = z + _solved(pull(z), difference)
    else:
        raise RuntimeError("the exact equilibrium was not found")
    return Exact(z, gradient(z, _solved(pull(z), np.asarray(cell.target, np.float64))))


def _exact_contraction(cell: Cell, near: Any) -> Exact:
    step, pull, gradient = _double(cell)
    z, target = np.asarray(near, np.float64), np.asarray(cell.target, np.float64)
    z = _repeated(step, z)
    pulled = pull(z)
    return Exact(z, gradient(z, _repeated(lambda w: target + pulled(w), target)))


def _repeated(step: Callable[[np.ndarray], np.ndarray], z: np.ndarray) -> np.ndarray:
    for _ in range(2000):
        after = step(z)
        if np.linalg.norm(after - z) <= 1e-14 * np.linalg.norm(after):
            return after
        z = after
    raise RuntimeError("plain steps in float64 did not converge")


def _solved(pull: Callable[[np.ndarray], np.ndarray], v: np.ndarray) -> np.ndarray:
    matvec = lambda w: w - pull(w.reshape(v.shape)).ravel()  # noqa: E731
    operator: Any = scipy.sparse.linalg.LinearOperator
    operator = operator((v.size, v.size), matvec=matvec, dtype=np.float64)
    w, failed = scipy.sparse.linalg.cg(operator, v.ravel(), rtol=1e-13, maxiter=5000)
    if failed:
        raise RuntimeError("conjugate gradients in float64 did not converge")
    return w.reshape(v.shape)


def _double(cell: Cell) -> tuple[Callable, Callable, Callable]:
    """The step, its vector products with the transposed Jacobian and its gradient in the params, all in float64."""
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), (cell.params, cell.x))
        step = jax.jit(cell.layer.step)
        pulled = jax.jit(lambda params, z, x, w: jax.vjp(lambda p, z: cell.layer.step(p, z, x), params, z)[1](w))

    def run(function: Callable, *arrays: np.ndarray) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*arrays))

    return (
        lambda z: run(step, params, z, x),
        lambda z: lambda w: run(pulled, params, z, x, w)[1],
        lambda z, w: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run(pulled, params, z, x, w)[0])]),
    )


def _doubles(*arrays: Any) -> list[np.ndarray]:
    return [np.asarray(array, np.float64) for array in arrays]
