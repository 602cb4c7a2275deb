"""Reversible iterations and phantom gradients, against autodiff of the same steps written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import finish, inputs, relative_error, skew_weights, symmetric_weights, tanh_step
from tests.fixed_point.problems import unrolled as plain_steps
from unroll_jax.fixed_point import ConvergenceWarning, neumann, phantom, reversible

START = np.linspace(-1.0, 1.0, 32).reshape(4, 8)
SILENT = {"batch_ndim": 1, "on_failure": "accept"}


def loss_of(z):
    return jnp.sum(jnp.sin(z) * np.arange(8.0))


def indexed_step(A, z, x):
    """Integers among the inputs have no gradient."""
    order, shift = x
    return tanh_step(A, z[..., order], shift)


def reversible_states(params, x, num_steps, share):
    """The recurrence of `reversible`, written out."""
    before = z = jnp.asarray(START)
    for _ in range(num_steps):
        before, z = z, (1.0 - share) * before + share * indexed_step(params, z, x)
    return before, z


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("num_steps", "share"), [(1, 0.5), (12, 0.8), (25, 0.5)])
def test_the_reversible_gradient_is_that_of_autodiff_through_the_steps(num_steps, share):
    order, A, shift = np.roll(np.arange(8), 3), skew_weights(norm=0.9), inputs(4, 8)

    def ours(A, shift):
        adjoint = reversible(num_steps, share=share)
        z, info = uj.equilibrium(indexed_step, A, START, (order, shift), adjoint=adjoint, **SILENT)
        return loss_of(z), (z, info)

    def written_out(A, shift):
        before, z = reversible_states(A, (order, shift), num_steps, share)
        return loss_of(z), (before, z)

    run = jax.jit(lambda A, shift: [jax.grad(f, (0, 1), has_aux=True)(A, shift) for f in (ours, written_out)])
    (gradient, (z, info)), (expected, (before, last)) = run(A, shift)
    np.testing.assert_allclose(z, last, rtol=1e-13)
    assert relative_error(gradient, expected) < 1e-10
    previous = reversible_states(A, (order, shift), num_steps - 1, share)[1] if num_steps > 1 else START
    evaluated = np.asarray(indexed_step(A, previous, (order, shift)))
    residual = np.linalg.norm(evaluated - before, axis=1) / np.linalg.norm(evaluated, axis=1)
    np.testing.assert_allclose(info.residual, residual, rtol=1e-9)
    assert info.steps.tolist() == [num_steps] * 4


def test_the_memory_of_the_reversible_gradient_does_not_grow_with_the_steps(optimised):
    x = inputs(16, 24, dtype=jnp.float32)

    def temporary(num_steps):
        solve = lambda A: uj.equilibrium(tanh_step, A, jnp.zeros_like(x), x, adjoint=reversible(num_steps), **SILENT)  # noqa: E731
        program = jax.jit(jax.grad(lambda A: jnp.sum(solve(A)[0] ** 2))).lower(skew_weights(24, dtype=jnp.float32))
        return program.compile().memory_analysis().temp_size_in_bytes

    assert temporary(10) == temporary(1000) > 0


def test_a_reversible_iteration_that_cannot_be_run_backwards_is_reported():
    """In float32, by its initial state: after few steps it is recovered, and after many it is lost."""
    A, x = skew_weights(norm=0.9, dtype=jnp.float32), inputs(4, 8, dtype=jnp.float32)

    def gradient(num_steps):
        solve = lambda A: uj.equilibrium(  # noqa: E731
            tanh_step, A, jnp.zeros_like(x), x, batch_ndim=1, tol=0.5, adjoint=reversible(num_steps, share=0.8)
        )[0]
        return finish(jax.jit(jax.grad(lambda A: loss_of(solve(A))))(A))

    gradient(4)
    with pytest.warns(ConvergenceWarning, match=r"reversible adjoint .* take fewer steps, a smaller share or float64"):
        gradient(40)


def test_a_reversible_adjoint_takes_no_solver():
    with pytest.raises(ValueError, match="solver must be None with a reversible adjoint, which is an iteration"):
        uj.equilibrium(
            tanh_step, np.eye(8, dtype="f"), np.ones((4, 8), "f"), 0.0, solver="anderson", adjoint="reversible"
        )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("num_steps", "damping"), [(1, 1.0), (4, 1.0), (5, 0.6)])
def test_a_phantom_gradient_is_that_of_damped_steps_from_the_equilibrium(num_steps, damping):
    A, x = skew_weights(norm=0.9), inputs(4, 8)

    def ours(A, x):
        adjoint = phantom(num_steps, damping=damping)
        z, info = uj.equilibrium(tanh_step, A, START, x, adjoint=adjoint, tol=1e-12, **SILENT)
        return loss_of(z), info

    def written_out(A, x):
        z = jax.lax.stop_gradient(plain_steps(tanh_step, A, jnp.zeros((4, 8)), x, steps=400))
        for _ in range(num_steps):
            z = (1.0 - damping) * z + damping * tanh_step(A, z, x)
        return loss_of(z), None

    run = jax.jit(lambda A, x: [jax.grad(f, (0, 1), has_aux=True)(A, x) for f in (ours, written_out)])
    (gradient, info), (expected, _) = run(A, x)
    assert info.converged.all()
    assert relative_error(gradient, expected) < 1e-9


@pytest.mark.usefixtures("x64")
def test_a_phantom_gradient_of_a_factored_layer_starts_where_its_newton_method_ends():
    W, U = symmetric_weights()
    layer, x, b = uj.opteq(8, 6, 3), inputs(4, 3), jnp.asarray(np.linspace(-0.3, 0.3, 6))

    def ours(W):
        z, info = uj.equilibrium(layer, uj.OptEqParams(W, U, b), START, x, adjoint=phantom(3), tol=1e-12)
        return loss_of(z), info

    def written_out(W):
        step = lambda z: layer.step(uj.OptEqParams(W, U, b), z, x)  # noqa: E731
        z = jax.lax.fori_loop(0, 400, lambda _, z: step(z), jnp.asarray(START))
        return loss_of(step(step(step(jax.lax.stop_gradient(z))))), None

    (gradient, info), (expected, _) = jax.jit(lambda W: [jax.grad(f, has_aux=True)(W) for f in (ours, written_out)])(W)
    assert info.converged.all()
    assert info.steps.max() < 20  # by Newton's method
    assert relative_error(gradient, expected) < 1e-9


@pytest.mark.usefixtures("x64")
def test_the_damped_series_equals_its_partial_sum_and_converges_where_the_plain_one_does_not():
    """J has eigenvalues down to -1.5."""
    J = np.diag(np.linspace(-1.5, 0.4, 8))
    v, terms, damping = np.linspace(1.0, 2.0, 8), 60, 0.6
    operator = lambda w: w @ jnp.asarray(J)  # noqa: E731
    w, info = neumann(terms, damping=damping).solve(operator, jnp.asarray(v)[None], 1e-6, 0)
    damped = (1.0 - damping) * np.eye(8) + damping * J
    expected = damping * sum(np.linalg.matrix_power(damped, k) @ v for k in range(terms))
    np.testing.assert_allclose(w[0], expected, rtol=1e-12)
    np.testing.assert_allclose(w[0], np.linalg.solve(np.eye(8) - J, v), rtol=1e-5)
    assert bool(info.converged[0])
    assert not bool(neumann(terms).solve(operator, jnp.asarray(v)[None], 1e-6, 0)[1].converged[0])
