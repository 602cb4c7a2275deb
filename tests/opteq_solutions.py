"""OptEq layers in float64, their fixed points by Newton's method and the minima of functions, by SciPy."""

import jax
import numpy as np
from scipy.optimize import minimize

from unroll_jax.energies.equilibrium.opteq import opteq
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

M, I = 4, 3  # noqa: E741 (state and input widths)


def draw(seed, widths, *, norm=0.9):
    rng, params = np.random.default_rng(seed), []
    for width in widths:
        W = rng.normal(size=(width, M))
        U, b = rng.normal(size=(width, I)), rng.normal(size=width)
        params.append(OptEqParams(W * norm / np.linalg.norm(W, 2), U, b))
    return rng, tuple(params), rng.normal(size=M), rng.normal(size=I)


def layers_of(params, **options):
    return [opteq(layer.W.shape[1], layer.W.shape[0], layer.U.shape[1], **options) for layer in params]


def newton(layer):
    """(params, x) -> the fixed point of a step by Newton's method on dense Jacobians: no solver of the library."""

    @jax.jit
    def both(z, params, x):
        residual = lambda z: layer.step(params, z, x) - z  # noqa: E731
        return residual(z), jax.jacobian(residual)(z)

    def solve(params, x):
        z = np.zeros(M)
        for _ in range(60):
            residual, jacobian = map(np.asarray, both(z, params, x))
            if np.max(np.abs(residual)) < 1e-14:
                break
            z = z - np.linalg.solve(jacobian, residual)
        assert np.max(np.abs(both(z, params, x)[0])) < 1e-12
        return z

    return solve


def blocks_of(layers, params, z, x):
    blocks = []
    for layer, block_params in zip(layers, params, strict=True):
        blocks.append(z := layer.step(block_params, z, x))
    return tuple(blocks)


def smooth_minimum(function, start, *args, **options):
    slope = lambda z: tuple(map(np.asarray, function(z, *args)[:2]))  # noqa: E731
    solution = minimize(slope, np.asarray(start), jac=True, tol=1e-13, **options)
    return solution.x, solution.fun
