"""The solvers one by one: what their docstrings promise."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    skew_weights,
    symmetric_weights,
    tanh_step,
)
from unroll_jax import fixed_point as fp

pytestmark = pytest.mark.usefixtures("x64")


def solve(step, params, x, dim, solver, **options):
    """In one program."""

    @jax.jit
    def run(params, x):
        zeros = jnp.zeros((*x.shape[:-1], dim))
        return uj.equilibrium(step, params, zeros, x, solver=solver, batch_ndim=x.ndim - 1, **options)

    return run(params, x)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_damped_is_the_stated_iteration(share):
    A, x = skew_weights(), np.asarray(inputs(8))
    z = np.zeros(8)
    for _ in range(6):
        z = (1.0 - share) * z + share * np.tanh(z @ np.asarray(A) + x)
    y, _ = solve(tanh_step, A, jnp.asarray(x), 8, fp.damped(share), adjoint=fp.unrolled(6), on_failure="accept")
    np.testing.assert_allclose(y, z, rtol=1e-13)


def test_damping_converges_where_plain_steps_turn_for_ever():
    turn = lambda params, z, x: z @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + x  # noqa: E731
    x = np.array([1.0, 0.0])
    y, info = solve(turn, (), x, 2, fp.damped(0.5), tol=1e-9)
    np.testing.assert_allclose(y, turn((), np.asarray(y), x), rtol=1e-8)
    assert bool(info.converged)
    _, plain = solve(turn, (), x, 2, "picard", on_failure="accept")
    assert not bool(plain.converged)


@pytest.mark.slow
def test_plain_steps_come_first_as_long_as_they_fall_well():
    """A map that contracts tenfold needs no history; of one that contracts by a tenth, two steps, then Anderson's."""
    A, x = np.linalg.qr(np.asarray(skew_weights()))[0], np.asarray(inputs(8))
    affine = lambda A, z, x: z @ A + x  # noqa: E731

    def solved(size, solver, start=0.0):
        run = jax.jit(
            lambda A, z: uj.equilibrium(affine, A, z, x, solver=solver, tol=1e-10, max_steps=400, batch_ndim=0)
        )
        return run(size * A, np.zeros(8) + start)

    both, plain = (solved(0.1, solver) for solver in ("picard_anderson", "picard"))
    assert int(both[1].steps) == int(plain[1].steps)
    np.testing.assert_array_equal(both[0], plain[0])

    z = affine(0.9 * A, affine(0.9 * A, np.zeros(8), x), x)  # the first residual has none before it, the second shrank
    y, info = solved(0.9, "picard_anderson")
    after, rest = solved(0.9, "anderson", z)
    assert int(info.steps) == 2 + int(rest.steps)
    np.testing.assert_allclose(y, after, rtol=1e-9)
    assert int(info.steps) < int(solved(0.9, "picard")[1].steps)


def test_outside_of_jit_no_fallback_is_compiled_where_plain_steps_do():
    """The memory of the solver that would take over is made only for a map that contracts slowly."""
    made = []
    solver = fp.picard_anderson()
    watched = solver._replace(init=lambda z: (made.append(True), solver.init(z))[1])
    for weight, needed in ((0.1, False), (0.95, True)):
        z, info = uj.equilibrium(lambda w, z, x: w * z + 1.0, weight, jnp.zeros(2), batch_ndim=0, solver=watched)
        np.testing.assert_allclose(z, np.full(2, 1.0 / (1.0 - weight)), rtol=1e-4)
        assert bool(info.converged)
        assert bool(made) == needed


def test_anderson_takes_the_step_of_least_linearised_residual():
    """Four steps against the definition, solved by NumPy's least squares."""
    A, x = np.asarray(skew_weights()), np.asarray(inputs(8))
    cases = [(1, 1.0), (2, 0.7), (5, 1.0), (9, 0.7)]

    def by_hand(window, mixing):
        f = lambda z: np.tanh(z @ A + x)  # noqa: E731
        points, z = [], np.zeros(8)
        for _ in range(4):
            points.append((f(z) - z, f(z)))
            kept = points[-window - 1 :]
            dG = np.array([b[0] - a[0] for a, b in itertools.pairwise(kept)]).reshape(-1, 8)
            dF = np.array([b[1] - a[1] for a, b in itertools.pairwise(kept)]).reshape(-1, 8)
            g, image = points[-1]
            c = np.linalg.lstsq(dG.T, g)[0] if len(dG) else np.zeros(0)
            z = image - c @ dF - (1.0 - mixing) * (g - c @ dG)
        return z

    @jax.jit
    def run(A, x):
        solvers = [fp.anderson(window, mixing=mixing, ridge=0.0) for window, mixing in cases]
        options = {"adjoint": fp.unrolled(4), "on_failure": "accept"}
        return [uj.equilibrium(tanh_step, A, jnp.zeros(8), x, solver=solver, **options)[0] for solver in solvers]

    for case, y in zip(cases, run(A, x), strict=True):
        np.testing.assert_allclose(y, by_hand(*case), rtol=1e-6, atol=1e-9, err_msg=str(case))


def test_accelerated_gradient_needs_the_square_root_of_picards_steps():
    (W, _), x = symmetric_weights(8, 8, square=0.999), inputs(4, 8)
    linear = lambda W, z, x: z @ W.T @ W + x  # noqa: E731
    steps = {
        name: int(np.max(solve(linear, W, x, 8, name, tol=1e-8, max_steps=20_000)[1].steps))
        for name in ("picard", "accelerated_gradient")
    }
    assert steps["accelerated_gradient"] < 0.2 * steps["picard"]
