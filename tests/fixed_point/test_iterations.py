"""What single parts of the iterations are there for: each on a problem that fails without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import STATUS, linear
from unroll_jax.fixed_point.backward import as_problem
from unroll_jax.fixed_point.checks import flag_asymmetric
from unroll_jax.fixed_point.flat_states import epsilon_of
from unroll_jax.fixed_point.problem import Point, SolveInfo
from unroll_jax.fixed_point.progress import RUNNING, Progress, at_the_cap

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.usefixtures("unchecked")]


def iterates(solver, step, z, count):
    """The states that ``count`` steps of a solver go through from z, each row by itself."""

    @jax.jit
    def run(z):
        problem = as_problem(lambda _, z: step(z), (), float(jnp.finfo(z.dtype).eps))
        going = jnp.ones(len(z), bool)

        def body(carry, number):
            z, memory = carry
            fz = step(z)
            residual = jnp.linalg.norm(fz - z, axis=1) / jnp.linalg.norm(fz, axis=1)
            after, memory = solver.update(problem, Point(z, fz, residual, going, number), memory)
            return (after, memory), after

        return jax.lax.scan(body, (z, solver.init(z)), jnp.arange(count))[1]

    return np.asarray(run(z))


def quadratic(size=8, norm=0.99):
    """A, symmetric with eigenvalues in [0, norm], and b of z' = A z + b."""
    basis, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(size, size)))
    return (basis * np.linspace(0.0, norm, size)) @ basis.T, np.random.default_rng(4).normal(size=size)


def test_accelerated_gradient_forgets_its_momentum_where_it_restarts():
    A, b = quadratic()
    states = iterates(fp.accelerated_gradient(), lambda z: z @ A + b, np.zeros((1, 8)), 60)[:, 0]
    z, before, weight, restarts = np.zeros(8), np.zeros(8), 1.0, 0
    for step in range(60):
        image = A @ z + b
        uphill = (z - image) @ (image - before) > 0.0
        restarts += uphill
        weight = 1.0 if uphill else weight
        following = (1.0 + np.sqrt(1.0 + 4.0 * weight**2)) / 2.0
        z = image + (0.0 if uphill else (weight - 1.0) / following) * (image - before)
        before, weight = image, following
        np.testing.assert_allclose(states[step], z, rtol=1e-9, atol=1e-9)
    assert restarts > 0


def test_damped_by_name_is_damped():
    """z' = 2 - z turns for ever under plain steps, and halfway lies its fixed point."""
    z, info = uj.equilibrium(lambda p, z, x: 2.0 - z, None, np.zeros((1, 2)), batch_ndim=1, solver="damped")
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 1.0)


def test_conjugate_gradients_stop_relative_to_their_right_side():
    A, v = quadratic(40)
    v = np.stack([1e-3 * v, v, 1e3 * v])
    _, info = jax.jit(lambda v: linear.conjugate_gradient(lambda w: w @ A, v, tol=1e-6, max_steps=100))(v)
    assert len(set(info.steps.tolist())) == 1
    assert np.all(info.residual <= 1e-6)


def test_asymmetry_within_round_off_is_no_asymmetry():
    A = np.array([[0.5, 0.1], [0.09, 0.3]], np.float32)
    info = SolveInfo(np.zeros(1, np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32))
    statuses = jax.jit(
        lambda z: [
            flag_asymmetric(info, lambda w: w @ A, z, float(jnp.finfo(dtype).eps)).status
            for dtype in (jnp.float32, jnp.bfloat16)
        ]
    )
    single, half = statuses(np.ones((1, 2), np.float32))
    assert (STATUS[int(single[0])].startswith("has a Jacobian"), STATUS[int(half[0])]) == (True, "converged")


def test_round_off_is_that_of_the_coarsest_dtype():
    state = {"a": np.ones(2, np.float32), "b": jnp.ones(2, jnp.bfloat16)}
    assert epsilon_of(state) == float(jnp.finfo(jnp.bfloat16).eps)


def test_a_row_that_is_cut_off_had_stalled_if_nothing_improved_lately():
    rows = [(1e-7, 5, RUNNING), (1e-7, 1, RUNNING), (1e-2, 50, RUNNING), (1e-7, 5, 3)]
    residual, since, status = (np.array(column) for column in zip(*rows, strict=True))
    one = np.ones(4)
    ended = at_the_cap(Progress(np.zeros((4, 1)), residual, since, status, one, one, (one, one)), 1e-6, 1e-9)
    assert [STATUS[int(s)] for s in ended] == [
        "stalled at round-off",
        "reached max_steps",
        "reached max_steps",
        STATUS[3],
    ]


@pytest.mark.slow
def test_the_default_step_of_forward_backward_contracts():
    """W = a turn by 3: steps of 1 / |I - W| would diverge, those of 1 / |I - W|^2 do not."""
    W, x = np.array([[0.0, 3.0], [-3.0, 0.0]]), np.ones((1, 2))
    z, info = fp.monotone_equilibrium(
        W, x, splitting="forward_backward", margin=1.0, activation="identity", max_steps=500
    )
    assert np.all(info.converged)
    np.testing.assert_allclose(z, np.linalg.solve(np.eye(2) - W, x[0])[None], rtol=1e-3)


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_damping_outside_of_0_and_1_is_named(share):
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\]"):
        fp.damped(share)


def test_andersons_differences_have_unit_length():
    """A ridge of 1e-6 is small beside differences of any size: the path is that without a ridge, at every scale."""
    A, b = quadratic(norm=0.9)
    paths = [
        iterates(fp.anderson(3, ridge=1e-6), lambda z, s=s: z @ A + s * b, np.zeros((1, 8)), 6) / s
        for s in (1e-6, 1.0, 1e6)
    ]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-6)
    np.testing.assert_allclose(paths[2], paths[1], rtol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(iterates(fp.picard(), lambda z: z @ A + b, np.zeros((1, 8)), 6), paths[1], rtol=1e-2)
