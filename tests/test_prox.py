"""Proximal operators as functions: against jaxopt, against cvxpy, and with thresholds of every kind."""

import warnings

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from unroll_jax import prox

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that it is no longer maintained
    import jaxopt

Z = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 2.0
T, W, S = 0.7, 0.4, 1.3
# Ours, jaxopt's (its gamma is weight / threshold) and the penalty with the set for cvxpy.
OPERATORS = {
    "lasso": (lambda z: prox.lasso(z, T, S), lambda z: jaxopt.prox.prox_lasso(z, T, S), lambda u: T * cp.norm1(u)),
    "nonnegative_lasso": (
        lambda z: prox.nonnegative_lasso(z, T, S),
        lambda z: jaxopt.prox.prox_non_negative_lasso(z, T, S),
        lambda u: T * cp.sum(u),
    ),
    "ridge": (
        lambda z: prox.ridge(z, W, S),
        lambda z: jaxopt.prox.prox_ridge(z, W, S),
        lambda u: W * cp.sum_squares(u) / 2,
    ),
    "nonnegative_ridge": (
        lambda z: prox.nonnegative_ridge(z, W, S),
        lambda z: jaxopt.prox.prox_non_negative_ridge(z, W, S),
        lambda u: W * cp.sum_squares(u) / 2,
    ),
    "elastic_net": (
        lambda z: prox.elastic_net(z, T, W, S),
        lambda z: jaxopt.prox.prox_elastic_net(z, (T, W / T), S),
        lambda u: T * cp.norm1(u) + W * cp.sum_squares(u) / 2,
    ),
    "group_lasso": (
        lambda z: prox.group_lasso(z, T, S),
        lambda z: jaxopt.prox.prox_group_lasso(z, T, S),
        lambda u: T * cp.norm(u, 2),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_that_of_jaxopt_and_solves_its_problem(name):
    apply, theirs, penalty = OPERATORS[name]
    z = Z.ravel()
    near = apply(jnp.asarray(z))
    np.testing.assert_allclose(near, theirs(jnp.asarray(z)), atol=1e-6)
    u = cp.Variable(z.size, nonneg=name.startswith("nonnegative"))
    cp.Problem(cp.Minimize(S * penalty(u) + cp.sum_squares(u - z) / 2)).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(near, u.value, atol=1e-4)
    check_grads(apply, (jnp.asarray(z),), order=1, modes=["rev", "fwd"], atol=1e-2, rtol=1e-2)


def test_every_public_operator_is_tested():
    assert set(OPERATORS) == set(prox.__all__)


@pytest.mark.parametrize("name", ["lasso", "nonnegative_lasso", "ridge", "nonnegative_ridge", "group_lasso"])
def test_numbers_may_be_traced_arrays_and_pytrees(name):
    operator = getattr(prox, name)
    state, each = {"a": jnp.asarray(Z), "b": jnp.asarray(Z[0])}, {"a": 0.5, "b": 0.25}
    both = jax.jit(operator)(state, each)
    np.testing.assert_allclose(both["a"], operator(jnp.asarray(Z), 0.5), atol=1e-6)
    np.testing.assert_allclose(both["b"], operator(jnp.asarray(Z[0]), 0.25), atol=1e-6)
    rows = jnp.array([[0.1], [0.5], [0.0]])
    if name != "group_lasso":
        expected = jnp.stack([operator(jnp.asarray(z), t) for z, t in zip(Z, rows[:, 0], strict=True)])
        np.testing.assert_allclose(operator(jnp.asarray(Z), rows), expected, atol=1e-6)
    slope = jax.grad(lambda t: jnp.sum(operator(jnp.asarray(Z), t)))(0.3)
    difference = (jnp.sum(operator(Z, 0.301)) - jnp.sum(operator(Z, 0.299))) / 0.002
    np.testing.assert_allclose(slope, difference, rtol=1e-2, atol=1e-2)


def test_groups_lie_along_axes_and_a_group_of_zeros_has_a_gradient():
    each = prox.group_lasso(jnp.asarray(Z), jnp.array([[0.1], [9.0], [0.3]]), axis=1)
    expected = [jaxopt.prox.prox_group_lasso(jnp.asarray(z), t) for z, t in zip(Z, (0.1, 9.0, 0.3), strict=True)]
    np.testing.assert_allclose(each, jnp.stack(expected), atol=1e-6)
    assert bool(jnp.isfinite(jax.jacobian(prox.group_lasso)(jnp.zeros(3))).all())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: prox.lasso(jnp.ones(2), -1.0), ValueError, "threshold must be at least 0, got -1.0"),
        (lambda: prox.ridge(jnp.ones(2), 1.0, -1.0), ValueError, "step_size must be at least 0, got -1.0"),
        (lambda: prox.ridge(jnp.ones(2), jnp.array([1.0, -2.0])), ValueError, "weight must be at least 0"),
        (lambda: prox.lasso([1.0, 2.0]), TypeError, "z must be an array, got list; jnp.asarray makes one"),
        (lambda: prox.lasso(()), ValueError, "z must hold at least one array"),
    ],
)
def test_a_bad_number_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


SETS = {
    "simplex": (
        lambda z: optax.projections.projection_simplex(z, 1.5),
        lambda z: jaxopt.projection.projection_simplex(z, 1.5),
        lambda u: [cp.sum(u) == 1.5, u >= 0],
    ),
    "l1_ball": (
        lambda z: optax.projections.projection_l1_ball(z, 1.5),
        lambda z: jaxopt.projection.projection_l1_ball(z, 1.5),
        lambda u: [cp.norm1(u) <= 1.5],
    ),
    "l2_ball": (
        lambda z: optax.projections.projection_l2_ball(z, 1.5),
        lambda z: jaxopt.projection.projection_l2_ball(z, 1.5),
        lambda u: [cp.norm(u, 2) <= 1.5],
    ),
    "linf_ball": (
        lambda z: optax.projections.projection_linf_ball(z, 0.5),
        lambda z: jaxopt.projection.projection_linf_ball(z, 0.5),
        lambda u: [cp.norm(u, "inf") <= 0.5],
    ),
    "box": (
        lambda z: optax.projections.projection_box(z, -0.3, 0.8),
        lambda z: jaxopt.projection.projection_box(z, (-0.3, 0.8)),
        lambda u: [u >= -0.3, u <= 0.8],
    ),
    "hyperplane": (
        lambda z: optax.projections.projection_hyperplane(z, jnp.arange(4.0), 1.0),
        lambda z: jaxopt.projection.projection_hyperplane(z, (jnp.arange(4.0), 1.0)),
        lambda u: [np.arange(4.0) @ u == 1.0],
    ),
    "halfspace": (
        lambda z: optax.projections.projection_halfspace(z, jnp.arange(4.0), 1.0),
        lambda z: jaxopt.projection.projection_halfspace(z, (jnp.arange(4.0), 1.0)),
        lambda u: [np.arange(4.0) @ u <= 1.0],
    ),
}


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_the_projections_of_optax_that_our_docs_name_are_those_of_jaxopt(name):
    project, theirs, constraints = SETS[name]
    near = jax.vmap(project)(jnp.asarray(Z))
    np.testing.assert_allclose(near, jax.vmap(theirs)(jnp.asarray(Z)), atol=1e-6)
    u = cp.Variable(Z.shape[1])
    cp.Problem(cp.Minimize(cp.sum_squares(u - Z[0])), constraints(u)).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(near[0], u.value, atol=1e-4)
    slopes, expected = (jax.jacobian(way)(jnp.asarray(Z[0])) for way in (project, theirs))
    np.testing.assert_allclose(slopes, expected, atol=1e-5)
