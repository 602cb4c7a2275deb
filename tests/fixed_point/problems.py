"""Fixed-point problems with known answers, drawn by NumPy, and their gradients by
unrolled autodiff."""

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax as uj
from tests.reference import compiled, gaussian, jax_array


def symmetric_weights(
    dim=8, width=6, *, inputs=3, square=0.8, seed=0, dtype=jnp.float64
):
    """W (width, dim) with spectral norm^2 = square, U (width, inputs): the layer W^T
    relu(W z + U x)."""
    draw = np.random.default_rng(seed)
    W = draw.normal(size=(width, dim))
    U = draw.normal(size=(width, inputs))
    W = W * np.sqrt(square) / np.linalg.norm(W, 2)
    return jax_array(W, dtype), jax_array(U, dtype)


def symmetric_step(params, z, x):
    W, U = params
    return jax.nn.relu(z @ W.T + x @ U.T) @ W


def factored_layer(
    dim, width, square=0.9, activation="relu", dtype=jnp.float32, **options
):
    W, U = symmetric_weights(dim, width, square=square, dtype=dtype)
    return uj.opteq(dim, width, 3, activation=activation, **options), uj.OptEqParams(
        W, U, jax_array(np.zeros(width, dtype))
    )


def skew_weights(dim=8, *, norm=0.7, seed=0, dtype=jnp.float64):
    """A strictly upper triangular matrix and a little more: its Jacobian is far from
    normal."""
    draw = np.random.default_rng(seed)
    A = np.triu(draw.normal(size=(dim, dim)), 1) + 0.1 * draw.normal(size=(dim, dim))
    return jax_array(norm * A / np.linalg.norm(A, 2), dtype)


def spectrum(least, most, width):
    """A symmetric matrix with evenly spaced eigenvalues."""
    basis, _ = np.linalg.qr(gaussian(width, width, seed=5))
    return (basis * np.linspace(least, most, width)) @ basis.T


def tanh_step(A, z, x):
    return jnp.tanh(z @ A + x)


def inputs(*shape, seed=1, dtype=jnp.float64):
    return jax_array(np.random.default_rng(seed).normal(size=shape), dtype)


def unrolled(step, params, z, x, *, steps):
    """The equilibrium by so many plain steps that it is exact to round-off. Autodiff
    goes through them."""
    return jax.lax.scan(lambda z, _: (step(params, z, x), None), z, length=steps)[0]


def solve(step, **options):
    """``(params, start, x) -> (z, info)``, by default one example per row, and
    failures are accepted."""
    options = {"batch_ndim": 1, "on_failure": "accept"} | options
    return lambda params, start, x=None: uj.equilibrium(
        step, params, start, x, **options
    )


def program(step, **options):
    return compiled(solve(step, **options))


def programs(step, solvers, **options):
    runs = {str(solver): solve(step, solver=solver, **options) for solver in solvers}
    return compiled(
        lambda params, start, x=None: {
            solver: run(params, start, x) for solver, run in runs.items()
        }
    )


def relative_error(a, b):
    a, b = (
        np.concatenate(
            [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(t)]
        )
        for t in (a, b)
    )
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def finish(result):
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result
