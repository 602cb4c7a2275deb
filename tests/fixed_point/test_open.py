"""Steps as users have them: modules as params, complex states, auxiliary results,
keys. See also test_layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.fixed_point import problems
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.fixed_point import neumann

pytestmark = types_unchecked
X = jax_array(gaussian(5, 3), np.float32)
START = jax_array(np.zeros((5, 3)), np.float32)
# what compiles soonest, for steps that contract
PLAIN = {"tol": 1e-6, "solver": "picard", "adjoint": neumann(60)}


def concatenated(z, x):
    return jnp.concatenate([z, x], axis=-1)


def solved(step, params):
    return jnp.sum(
        uj.equilibrium(step, params, START, X, batch_ndim=1, **PLAIN)[0] ** 2
    )


def unrolled(step, params):
    return jnp.sum(problems.unrolled(step, params, START, X, steps=60) ** 2)


class Cell(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(6, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)  # with one mask per solve

    def __call__(self, z, x):
        return self.dropout(0.3 * jnp.tanh(self.linear(concatenated(z, x))))


def of_equinox(way):
    module = (
        eqx.nn.MLP(6, 3, 4, 1, activation=jnp.tanh, key=jax.random.key(0)),
        eqx.nn.Dropout(0.5, inference=True),
    )

    def step(pair, z, x):
        return 0.3 * jax.vmap(lambda v: pair[1](pair[0](v)))(concatenated(z, x))

    return eqx.filter(
        eqx.filter_jit(eqx.filter_grad(lambda module: way(step, module)))(module),
        eqx.is_array,
    )


def of_nnx(way):
    # A copy in each step belongs to the loop's trace. Its counts of masks are
    # discarded, as by `equilibrium`.
    def step(cell, z, x):
        return (cell if way is solved else jax.tree.map(jnp.asarray, cell))(z, x)

    return nnx.to_pure_dict(
        nnx.jit(nnx.grad(lambda cell: way(step, cell)))(Cell(nnx.Rngs(0)))
    )


@pytest.mark.parametrize("gradient", [of_nnx, pytest.param(of_equinox, marks=nightly)])
def test_modules_are_params_with_the_gradient_of_an_unroll(gradient):
    assert problems.relative_error(gradient(solved), gradient(unrolled)) < 1e-4


@in_float64
@pytest.mark.parametrize("forward_mode", [False, pytest.param(True, marks=nightly)])
def test_complex_states_are_solved_and_differentiated(forward_mode):
    real, imaginary = gaussian(2, 4, 3, seed=1)
    *A, b = real + 1j * imaginary
    A = 0.5 * np.array(A) / np.linalg.norm(A, 2)

    def step(A, state, b):
        after = A @ state["z"] + b
        return {"z": after, "r": 0.5 * state["r"] + jnp.abs(state["z"][0])}

    def loss(A, b):
        start = {"z": jnp.zeros(3, A.dtype), "r": jnp.zeros(())}
        state, info = uj.equilibrium(
            step, A, start, b, batch_ndim=0, tol=1e-10, forward_mode=forward_mode
        )
        return jnp.sum(jnp.abs(state["z"]) ** 2) + state["r"], (state, info)

    gradient, (state, info) = compiled(jax.grad(loss, argnums=(0, 1), has_aux=True))(
        A, b
    )
    z = np.linalg.solve(np.eye(3) - A, b)  # of the loss |z|^2 + 2 |z_0|
    slope = np.linalg.solve(
        np.eye(3) - A.T, 2.0 * (z + np.eye(3)[0] * z / np.abs(z)).conj()
    )
    assert bool(info.converged)
    assert_allclose(state["z"], z, rtol=1e-8)
    for got, expected in zip(gradient, (np.outer(slope, z), slope), strict=True):
        assert_allclose(got, expected, rtol=1e-7, atol=1e-9)


def test_keys_are_params_and_aux_has_a_gradient():
    def step(params, z, x):
        product = params["w"] * z
        return product + jax.random.normal(params["key"], z.shape), {"product": product}

    def total(w):
        params = {"w": w, "key": jax.random.key(3, impl="rbg")}
        z, info, aux = uj.equilibrium(
            step, params, jnp.zeros(3), has_aux=True, batch_ndim=0, **PLAIN
        )
        return jnp.sum(aux["product"]), (z, info)

    slope, (z, info) = compiled(jax.grad(total, has_aux=True))(0.5)
    drawn = np.asarray(jax.random.normal(jax.random.key(3, impl="rbg"), (3,)))
    assert bool(info.converged)
    assert_allclose(z, 2.0 * drawn, rtol=1e-5)
    assert_allclose(slope, 4.0 * np.sum(drawn), rtol=1e-4)  # of w / (1 - w)
