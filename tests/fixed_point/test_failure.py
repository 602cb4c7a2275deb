"""Solves that do not converge: an error, a warning or accepted, as asked, in both passes, under every transform."""

import jax
import jax.numpy as jnp
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, relative_error, skew_weights, tanh_step
from unroll_jax import fixed_point
from unroll_jax.fixed_point import STATUS, ConvergenceError, ConvergenceWarning

FORWARD = {"max_steps": 2, "solver": "picard"}
BACKWARD = {"adjoint_max_steps": 1, "adjoint_tol": 1e-6}


def value(x, **options):
    A = skew_weights(norm=0.9, dtype=jnp.float32)
    y, info = uj.equilibrium(tanh_step, A, jnp.zeros(x.shape), x, batch_ndim=x.ndim - 1, **options)
    return jnp.sum(y**2), info


def gradient(x, **options):
    options = {"solver": "picard", "adjoint": "bicgstab"} | options
    return jax.grad(lambda x: value(x, **options)[0])(x)


def draw(*shape):
    return inputs(*shape, 8, dtype=jnp.float32)


TRANSFORMS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda carry, row: (carry, f(row)), 0.0, x)[1]),
    "checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
}


def finish(result):
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("function", "options", "what"),
    [(value, FORWARD, "^equilibrium"), (gradient, BACKWARD, "^adjoint of equilibrium")],
    ids=["forward", "backward"],
)
def test_an_error_is_raised_a_warning_given_or_nothing_said(transform, function, options, what):
    x = draw(4)
    run = lambda outcome: finish(TRANSFORMS[transform](lambda x: function(x, on_failure=outcome, **options))(x))  # noqa: E731
    error = ConvergenceError if transform == "eager" else jax.errors.JaxRuntimeError
    with pytest.raises(error, match=what.lstrip("^") + ": .* examples failed at tol.*reached max_steps.*raise"):
        run("error")
    with pytest.warns(ConvergenceWarning, match=what):
        warned = run("warn")
    if transform in ("eager", "jit"):
        assert relative_error(run("accept"), warned) == 0.0


def test_the_default_warns():
    with pytest.warns(ConvergenceWarning, match="raise max_steps or tol"):
        value(draw(4), **FORWARD)


def test_under_vmap_all_examples_are_reported_at_once():
    with pytest.warns(ConvergenceWarning, match="of 6 examples") as caught:
        finish(jax.jit(jax.vmap(jax.vmap(lambda x: value(x, **FORWARD)[0])))(draw(2, 3)))
    assert len(caught) == 1


def test_info_says_which_examples_failed_and_how():
    x = draw(3).at[1].set(jnp.nan)
    _, info = value(x, on_failure="accept", solver="picard", max_steps=200)
    assert info.converged.tolist() == [True, False, True]
    assert STATUS[int(info.status[1])] == "met a value that is not finite"
    with pytest.raises(ConvergenceError, match="example 1 met a value that is not finite"):
        value(x, on_failure="error")


def test_a_nan_in_one_example_reaches_no_other():
    clean, dirty = draw(3), draw(3).at[1].set(jnp.nan)
    run = jax.jit(lambda x: gradient(x, on_failure="accept"))
    clean, dirty = run(clean), run(dirty)
    assert jnp.isnan(dirty[1]).any()
    assert jnp.array_equal(clean[::2], dirty[::2])


def test_the_probe_carries_the_statistics_of_the_backward_solve_out():
    x = draw(4)

    def loss(probe, limit):
        return value(x, probe=probe, on_failure="accept", adjoint_tol=1e-5, adjoint_max_steps=limit)[0]

    good, bad = (jax.grad(loss)(fixed_point.zero_probe(4), limit) for limit in (200, 1))
    assert (good.residual <= 1e-5).all()
    assert good.converged.all()
    assert (good.steps > 1).all()
    assert (bad.residual > 1e-5).all()
    assert not bad.converged.any()
    assert (bad.steps == 1).all()


def test_a_jacobian_that_is_not_symmetric_is_an_error_for_an_adjoint_that_needs_symmetry():
    with pytest.raises(ConvergenceError, match="Jacobian that is not symmetric, which this method needs"):
        gradient(draw(4), adjoint="conjugate_gradient", on_failure="error")


@pytest.mark.parametrize("transform", ["eager", "jit", "vmap"])
@pytest.mark.parametrize("solver", ["accelerated_gradient", "newton_cg"])
def test_a_solver_that_needs_symmetry_refuses_a_layer_without_it(solver, transform):
    run = TRANSFORMS[transform](lambda x: value(x, solver=solver, on_failure="error"))
    error = ConvergenceError if transform == "eager" else jax.errors.JaxRuntimeError
    with pytest.raises(error, match="Jacobian that is not symmetric, which this method needs"):
        finish(run(draw(2, 3) if transform == "vmap" else draw(3)))


def test_an_unrolled_solver_that_needs_symmetry_refuses_a_layer_without_it():
    options = {"solver": "accelerated_gradient", "adjoint": "unrolled", "tol": 0.9, "on_failure": "accept"}
    _, info = value(draw(4), **options)
    assert STATUS[int(info.status[0])].startswith("has a Jacobian that is not symmetric")
    assert not info.converged.any()


def test_what_is_returned_is_the_best_state_met():
    """Started at the fixed point of a rotation that grows, every step is worse."""
    turn = 1.5 * jnp.array([[0.0, 1.0], [-1.0, 0.0]])
    step = lambda params, z, x: z @ turn + 1.0  # noqa: E731
    near = jnp.linalg.solve(jnp.eye(2) - turn.T, jnp.ones(2)) + jnp.array([1e-3, 0.0])
    y, info = uj.equilibrium(step, (), near, solver="picard", max_steps=30, on_failure="accept")
    assert relative_error(y, step((), near, None)) < 1e-6
    assert float(info.residual) < 3e-3


@pytest.mark.parametrize("adjoint", ["neumann", "one_step"])
def test_an_inexact_adjoint_by_choice_is_no_failure(adjoint):
    assert jnp.isfinite(gradient(draw(4), adjoint=adjoint, on_failure="error")).all()
