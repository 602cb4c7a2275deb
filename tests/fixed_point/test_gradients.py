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
from unroll_jax.fixed_point import ADJOINTS, SOLVERS

pytestmark = pytest.mark.usefixtures("x64")

EXACT = [name for name in ADJOINTS if name not in ("neumann", "one_step", "unrolled")]
# Averaging finds another point than plain iteration only in the limit; its own tests are in test_averaging.
GENERAL = ["picard", "damped", "anderson", "broyden", "jaxopt_fixed_point", "jaxopt_anderson"]
# What compiles quickest, where the solver and the adjoint are not under test.
PLAIN = {"tol": 1e-11, "solver": "picard", "adjoint": "bicgstab"}
SYMMETRIC = [name for name in SOLVERS if name != "averaged"]


def loss_of(step, x, batch_ndim=1, **options):
    def loss(params, x=x):
        zeros = jnp.zeros((*x.shape[:-1], 8))
        options.setdefault("tol", 1e-10)
        y, _ = uj.equilibrium(
            step, params, zeros, x, batch_ndim=batch_ndim, max_steps=2000, on_failure="error", **options
        )
        return jnp.sum(jnp.sin(y) * jnp.arange(8.0))

    return loss


def reference_gradient(step, params, x, steps=400):
    def loss(params, x):
        return jnp.sum(jnp.sin(unrolled(step, params, jnp.zeros((*x.shape[:-1], 8)), x, steps=steps)) * jnp.arange(8.0))

    return jax.jit(jax.grad(loss, (0, 1)))(params, x)


@pytest.mark.parametrize("solver", SYMMETRIC)
def test_every_solver_and_adjoint_agrees_with_unrolled_autodiff_on_a_symmetric_layer(solver):
    params, x = symmetric_weights(), inputs(4, 3)
    adjoints = EXACT if solver == "anderson" else ["conjugate_gradient", "gmres", "bicgstab", "anderson"]
    losses = {name: loss_of(symmetric_step, x, solver=solver, adjoint=name) for name in adjoints}
    found = jax.jit(lambda params, x: {n: jax.grad(f, (0, 1))(params, x) for n, f in losses.items()})(params, x)
    expected = reference_gradient(symmetric_step, params, x)
    errors = {name: relative_error(gradient, expected) for name, gradient in found.items()}
    assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize("solver", GENERAL)
def test_every_general_solver_and_adjoint_agrees_with_unrolled_autodiff_on_a_layer_far_from_normal(solver):
    params, x = skew_weights(), inputs(4, 8)
    adjoints = [name for name in EXACT if not ADJOINTS[name]().symmetric]
    adjoints = adjoints if solver == "anderson" else adjoints[:3]
    losses = {name: loss_of(tanh_step, x, solver=solver, adjoint=name) for name in adjoints}
    found = jax.jit(lambda params, x: {n: jax.grad(f, (0, 1))(params, x) for n, f in losses.items()})(params, x)
    expected = reference_gradient(tanh_step, params, x)
    errors = {name: relative_error(gradient, expected) for name, gradient in found.items()}
    assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize("solver", [name for name in SYMMETRIC if SOLVERS[name]().unrollable])
def test_every_solver_that_says_so_can_be_unrolled(solver):
    params, x = symmetric_weights(), inputs(4, 3)
    loss = loss_of(symmetric_step, x, solver=solver, adjoint=fixed_point.unrolled(150), tol=1e-8)
    gradient = jax.jit(jax.grad(loss, (0, 1)))(params, x)
    assert relative_error(gradient, reference_gradient(symmetric_step, params, x)) < 1e-6


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


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-7])
def test_the_documented_error_bounds_hold_over_random_problems(tol):
    """f = tanh(A z + b), loss |y|^2 / 2, gradient in b: beta = L_v = 1, L_B = k |A|, L_J = k |A|^2, k = max|tanh''|."""
    k = 4.0 / 27.0**0.5  # the largest slope of sech^2 is 4 / (3 sqrt 3)

    @jax.jit
    def figures(A, b):
        def loss(b):
            y, info = uj.equilibrium(
                tanh_step, A, jnp.zeros(8), b, tol=tol, adjoint_tol=tol, solver="picard", adjoint="gmres"
            )
            return 0.5 * jnp.sum(y**2), (y, info.residual)

        (_, (y, residual)), gradient = jax.value_and_grad(loss, has_aux=True)(b)
        exact = unrolled(tanh_step, A, jnp.zeros(8), b, steps=2000)
        J = jax.jacobian(lambda z: tanh_step(A, z, b))(exact)
        slope = 1.0 - exact**2
        right = slope * jnp.linalg.solve(jnp.eye(8) - J.T, exact)
        return y, residual, gradient, exact, right

    for seed in range(12):
        c = (0.3, 0.7, 0.95)[seed % 3]
        A, b = skew_weights(norm=c, seed=seed), inputs(8, seed=seed)
        y, residual, gradient, exact, right = (np.asarray(a) for a in figures(A, b))
        e = residual * np.linalg.norm(y) / (1.0 - c)
        assert np.linalg.norm(y - exact) <= c * e + 1e-13
        size = np.linalg.norm(exact)
        rho = tol * np.linalg.norm(y)
        bound = (rho + c * e + k * c**2 * e * size / (1.0 - c)) / (1.0 - c) + k * c * e * size / (1.0 - c)
        assert np.linalg.norm(gradient - right) <= bound + 1e-13
