"""Gradients of unrolled steps that go on long after the state has converged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import relative_error, skew_weights, tanh_step
from tests.marks import nightly
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp

pytestmark = pytest.mark.usefixtures("x64", "unchecked")


X = gaussian(6, 7, seed=1)
SKEW = np.asarray(skew_weights(7, norm=0.8, dtype=jnp.float32), float)
HALF = gaussian(7, 7, seed=3)
SYMMETRIC = 0.8 * HALF @ HALF.T / np.linalg.norm(HALF, 2) ** 2
PROBLEMS = {
    "picard": (tanh_step, SKEW),
    "damped": (tanh_step, SKEW),
    "anderson": (tanh_step, SKEW),
    "accelerated_gradient": (lambda p, z, x: z @ p + x, SYMMETRIC),
}


def test_every_solver_that_can_be_differentiated_is_unrolled():
    """Averaging is in test_averaging."""
    assert {*PROBLEMS, "averaged"} == {*fp.SOLVERS}


def implicit_gradient(step, A):
    """The fixed points z, and the gradient of sum(sin(z)) in x, by NumPy."""
    z = np.zeros_like(X)
    for _ in range(300):
        z = np.asarray(np.tanh(z @ A + X) if step is tanh_step else z @ A + X)
    slopes = 1.0 - z**2 if step is tanh_step else np.ones_like(z)
    rows = []
    for row, slope in zip(z, slopes, strict=True):
        w = np.linalg.solve(np.eye(7) - A * slope, np.cos(row))
        rows.append(slope * w)
    return z, np.stack(rows)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=nightly)])
@pytest.mark.parametrize(
    ("solver", "count"),
    [*((solver, 1000) for solver in PROBLEMS), ("anderson", 20), ("anderson", 60)],
)
def test_unrolled_steps_have_the_implicit_gradient(solver, count, dtype):
    """From zeros, and from the solution."""
    step, A = PROBLEMS[solver]
    z, expected = implicit_gradient(step, A)

    def loss(x, start):
        y, info = uj.equilibrium(
            step,
            A.astype(dtype),
            start,
            x,
            adjoint=fp.unrolled(count),
            batch_ndim=1,
            on_failure="accept",
            solver=solver,
        )
        return jnp.sum(jnp.sin(y)), (y, info.converged)

    slope = compiled(jax.vmap(jax.grad(loss, has_aux=True), (None, 0)))
    starts = np.stack([np.zeros_like(z), z]).astype(dtype)
    gradients, (states, converged) = slope(X.astype(dtype), starts)
    assert converged.all()
    bound = 1e3 * np.finfo(dtype).eps
    for place, start in enumerate(("zeros", "the solution")):
        assert relative_error(states[place], z) < bound, start
        # 20 steps of the series from the solution
        few = count == 20 and (start == "the solution" or dtype == np.float64)
        limit = 1e-3 if few else 1e2 * bound
        assert relative_error(gradients[place], expected) < limit, start
