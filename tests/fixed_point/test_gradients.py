"""Implicit gradients: against float64 autodiff through a converged unroll, and against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    relative_error,
    skew_weights,
    symmetric_step,
    symmetric_weights,
    tanh_step,
    unrolled,
)
from unroll_jax import fixed_point

pytestmark = pytest.mark.usefixtures("x64")

# What compiles quickest, where the solver and the adjoint are not under test.
PLAIN = {"tol": 1e-11, "solver": "picard", "adjoint": "bicgstab"}


def loss_of(step, x, batch_ndim=1, **options):
    def loss(params, x=x):
        zeros = jnp.zeros((*x.shape[:-1], 8))
        options.setdefault("tol", 1e-10)
        y, _ = uj.equilibrium(
            step, params, zeros, x, batch_ndim=batch_ndim, max_steps=2000, on_failure="error", **options
        )
        return jnp.sum(jnp.sin(y) * jnp.arange(8.0))

    return loss


def test_plain_unrolling_is_autodiff_through_the_steps():
    params, x = symmetric_weights(), inputs(4, 3)
    loss = lambda params: jnp.sum(  # noqa: E731
        uj.equilibrium(
            symmetric_step,
            params,
            jnp.ones((4, 8)),
            x,
            adjoint=fixed_point.unrolled(3),
            on_failure="accept",
            batch_ndim=1,
        )[0]
        ** 2
    )
    looped = lambda params: jnp.sum(unrolled(symmetric_step, params, jnp.ones((4, 8)), x, steps=3) ** 2)  # noqa: E731
    assert relative_error(jax.grad(loss)(params), jax.grad(looped)(params)) < 1e-14


@pytest.mark.parametrize("adjoint", ["gmres", "bicgstab", "conjugate_gradient"])
def test_gradients_equal_finite_differences(adjoint):
    params, x = symmetric_weights(), inputs(2, 3)
    step = lambda params, z, x: jnp.tanh(z @ params[0].T + x @ params[1].T) @ params[0]  # noqa: E731
    loss = jax.jit(loss_of(step, x, adjoint=adjoint, solver="picard"))
    check_grads(loss, (params, x), order=1, modes=["rev"])


@pytest.mark.parametrize(("terms", "error"), [(1, None), (5, None), (40, 1e-5)])
def test_neumann_terms_equal_the_series_and_one_step_is_its_first(terms, error):
    A, x = skew_weights(norm=0.5), inputs(8)
    z = unrolled(tanh_step, A, jnp.zeros(8), x, steps=200)
    J = jax.jacobian(lambda z: tanh_step(A, z, x))(z)
    v = np.cos(np.asarray(z)) * np.arange(8.0)
    w = sum(np.linalg.matrix_power(J.T, k) @ v for k in range(terms))
    expected = w * (1.0 - np.asarray(z) ** 2)  # the derivative of tanh, for the gradient with respect to x
    loss = loss_of(tanh_step, x, batch_ndim=0, adjoint=fixed_point.neumann(terms), solver="picard")
    assert relative_error(jax.jit(jax.grad(loss, 1))(A, x), expected) < 1e-8
    if terms == 1:
        loss = loss_of(tanh_step, x, batch_ndim=0, adjoint="one_step", solver="picard")
        assert relative_error(jax.jit(jax.grad(loss, 1))(A, x), expected) < 1e-8
    if error is not None:
        exact = np.linalg.solve(np.eye(8) - J.T, v) * (1.0 - np.asarray(z) ** 2)
        assert relative_error(expected, exact) < error


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_batch_ranks_give_the_same_as_one_example_at_a_time(batch):
    A, x = skew_weights(), inputs(*batch, 8)

    def both(A, x, y0, batch_ndim):
        y, info = uj.equilibrium(tanh_step, A, y0, x, batch_ndim=batch_ndim, **PLAIN)
        return jnp.sum(y**3), info

    compiled = jax.jit(lambda A, x: jax.value_and_grad(both, (0, 1), has_aux=True)(A, x, jnp.zeros_like(x), len(batch)))
    (_, info), gradient = compiled(A, x)
    assert {leaf.shape for leaf in info} == {batch}
    one = jax.jit(jax.grad(lambda A, x: both(A, x, jnp.zeros(8), 0)[0], (0, 1)))
    singles = [one(A, row) for row in x.reshape(-1, 8)]
    expected = sum(g[0] for g in singles), jnp.stack([g[1] for g in singles]).reshape(x.shape)
    assert relative_error(gradient, expected) < 1e-9


def test_the_initial_state_and_a_warm_start_get_no_gradient_and_do_not_change_the_answer():
    A, x = skew_weights(), inputs(3, 8)
    solve = jax.jit(lambda y0: uj.equilibrium(tanh_step, A, y0, x, batch_ndim=1, **PLAIN))
    cold, info = solve(jnp.zeros_like(x))
    warm, info_warm = solve(cold)
    assert relative_error(warm, cold) < 1e-10
    assert int(info_warm.steps.max()) == 1 < int(info.steps.min())
    assert not jax.grad(lambda y0: solve(y0)[0].sum())(cold).any()


def test_what_the_step_closes_over_gets_its_gradient_and_integers_may_be_closed_over():
    A, x = skew_weights(), inputs(3, 8)

    @jax.jit
    def both(A, x, order):
        def loss(A, x, find):
            step = lambda params, z, _: jnp.tanh((z @ A + x)[:, order])  # noqa: E731
            return jnp.sum(find(step) ** 2)

        find = lambda step: uj.equilibrium(step, (), jnp.zeros((3, 8)), batch_ndim=1, **PLAIN)[0]  # noqa: E731
        plain = lambda step: unrolled(step, (), jnp.zeros((3, 8)), None, steps=200)  # noqa: E731
        return [jax.grad(jax.jit(loss, static_argnums=2), (0, 1))(A, x, how) for how in (find, plain)]

    found, expected = both(A, x, jnp.arange(8)[::-1])
    assert relative_error(found, expected) < 1e-8


def test_a_state_may_be_a_pytree():
    A, x = skew_weights(), inputs(4, 8)

    def step(A, state, x):
        joined = jnp.tanh(jnp.concatenate([state["a"].reshape(4, 6), state["b"]], -1) @ A + x)
        return {"a": joined[:, :6].reshape(4, 2, 3), "b": joined[:, 6:]}

    def loss(A):
        y, _ = uj.equilibrium(step, A, {"a": jnp.zeros((4, 2, 3)), "b": jnp.zeros((4, 2))}, x, batch_ndim=1, **PLAIN)
        return jnp.sum(y["a"] ** 2) + jnp.sum(y["b"] ** 2)

    expected = jax.grad(lambda A: jnp.sum(unrolled(tanh_step, A, jnp.zeros((4, 8)), x, steps=200) ** 2))(A)
    assert relative_error(jax.jit(jax.grad(loss))(A), expected) < 1e-8
