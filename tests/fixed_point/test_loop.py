"""The loop of both directions: the steps of its solvers and adjoints, and when it
accelerates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.fixed_point.problems import (
    factored_layer,
    inputs,
    program,
    programs,
    relative_error,
    skew_weights,
    spectrum,
    symmetric_step,
)
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point.adjoints import flag_asymmetric, unroll_solver
from unroll_jax.fixed_point.status import CONVERGED, MAX_STEPS, NONSYMMETRIC
from unroll_jax.fixed_point.stopping import StopRule

pytestmark = types_unchecked


def affine(p, z, x):
    return z @ p + x


def iterates(solver, step, count):
    """The states after every one of a number of updates: those that the step is
    given, and the last."""
    seen = []
    rule = StopRule(1e-12, count, float(jnp.finfo(jnp.float64).eps))

    def watched(z):
        jax.debug.callback(lambda z: seen.append(np.array(z)[0]), z, ordered=True)
        return step(z)

    run = compiled(lambda z: unroll_solver(watched, z, solver, rule)[0])
    last = run(np.zeros((1, 8)))
    jax.effects_barrier()
    assert len(seen) == count
    return np.stack([*seen[1:], last[0]])


@in_float64
def test_anderson_takes_the_step_of_least_linearised_residual():
    """By NumPy's least squares over differences that are orthogonal in turn to the
    window of those before."""
    window = 2
    A = np.asarray(skew_weights())
    x = np.asarray(inputs(8))
    z = np.zeros(8)
    last = None
    pairs = []
    states = iterates(fp.anderson(window), lambda z: jnp.tanh(z @ A + x), 6)
    for k, state in enumerate(states):
        fz = np.tanh(z @ A + x)
        point = np.stack([fz - z, fz])
        if last is not None:
            pair = point - last
            shares = [pair[0] @ old[0] for old in pairs]
            pair = pair - sum(s * old for s, old in zip(shares, pairs, strict=True))
            pairs = [*pairs, pair / np.linalg.norm(pair[0])][-window:]
        last = point
        z = fz - sum((point[0] @ q) * u for q, u in pairs)
        assert_allclose(state, z, rtol=1e-9, atol=1e-10, err_msg=f"step {k}")


@in_float64
def test_accelerated_gradient_forgets_its_momentum_where_it_restarts():
    A = spectrum(0.0, 0.99, 8)
    b = gaussian(8, seed=4)
    states = iterates(fp.accelerated_gradient(), lambda z: z @ A + b, 60)
    z = before = np.zeros(8)
    weight = 1.0
    restarts = 0
    for k, state in enumerate(states):
        image = A @ z + b
        if (z - image) @ (image - before) > 0.0:
            restarts += 1
            weight = 1.0
        # the momentum is 0 at a weight of 1
        following = (1.0 + np.sqrt(1.0 + 4.0 * weight**2)) / 2.0
        z = image + (weight - 1.0) / following * (image - before)
        before = image
        weight = following
        assert_allclose(state, z, rtol=1e-9, atol=1e-9, err_msg=f"step {k}")
    assert restarts > 0


@in_float64
def test_damped_is_the_stated_iteration():
    A = np.asarray(skew_weights())
    x = np.asarray(inputs(8))
    z = np.zeros(8)
    states = iterates(fp.damped(0.3), lambda z: jnp.tanh(z @ A + x), 6)
    for k, state in enumerate(states):
        z = 0.7 * z + 0.3 * np.tanh(z @ A + x)
        assert_allclose(state, z, rtol=1e-13, err_msg=f"step {k}")


@in_float64
def test_acceleration_saves_steps_or_costs_little():
    """Problems of 8 numbers have zeros for the others: all share one program."""
    draw = np.random.default_rng(7)
    half = draw.normal(size=(8, 8))
    rotation = np.linalg.qr(draw.normal(size=(64, 64)))[0]
    slow = 0.999 * half.T @ half / np.linalg.norm(half, 2) ** 2
    solvers = ["picard", "anderson", "accelerated_gradient"]
    run = programs(affine, solvers, tol=1e-8, max_steps=20_000)

    def steps_of(p, x):
        """The most steps of an example of z' = z p + x from 0, by solver."""
        wide = 64 - len(p)
        x = np.pad(x, ((0, 0), (0, wide)))
        ends = run(np.pad(p, (0, wide)), 0.0 * x, x)
        assert all(ends[solver][1].converged.all() for solver in solvers[:2])
        return [int(np.max(ends[solver][1].steps)) for solver in solvers]

    picard, anderson, accelerated = steps_of(slow, draw.normal(size=(4, 8)))
    assert accelerated < 0.2 * picard
    assert anderson < 0.05 * picard
    picard, anderson, _ = steps_of(0.9 * rotation, draw.normal(size=(4, 64)))
    assert anderson < 1.4 * picard


@in_float64
def test_a_map_that_plain_steps_leave_is_solved():
    """Eigenvalues from -1.5, and a rotation that grows threefold among them: forward
    and backward."""
    basis, _ = np.linalg.qr(np.asarray(skew_weights(16)))
    x = np.asarray(inputs(4, 16))
    parts = np.diag([0.0, 0.0, *np.linspace(-1.5, 0.6, 14)])
    parts[:2, :2] = [[0.0, -3.0], [3.0, 0.0]]
    grown = basis @ parts @ basis.T
    inverse = np.linalg.inv(np.eye(16) - grown)
    options = {"tol": 1e-9, "solver": fp.anderson(10), "adjoint": fp.gmres(20)}

    def loss(x):
        z, info = uj.equilibrium(affine, grown, 0.0 * x, x, batch_ndim=1, **options)
        return jnp.sum(z**2), (z, info.converged)

    gradient, (z, converged) = compiled(jax.grad(loss, has_aux=True))(x)
    assert converged.all()
    assert relative_error(z, x @ inverse) < 1e-7
    assert relative_error(gradient, 2.0 * x @ inverse @ inverse.T) < 1e-6


SYSTEMS = {
    "contracts well": lambda J, turn: 0.3 * J,
    "contracts slowly": lambda J, turn: 0.97 * J,
    "a turn that grows": lambda J, turn: 3.0 * turn,
    "far from 0": lambda J, turn: -4.0 * np.eye(12),
    "a turn from 1": lambda J, turn: 1.5 * turn + 0.5 * np.eye(12),
}


@in_float64
def test_the_adjoint_of_a_general_map_is_a_direct_solve():
    """Each row is solved separately, with the true residual."""
    draw = np.random.default_rng(0)
    turn = np.kron(np.eye(6), [[0.0, -1.0], [1.0, 0.0]])
    J = np.triu(draw.normal(size=(12, 12)))
    J = J + 0.2 * np.tril(draw.normal(size=(12, 12)), -1)
    J = np.stack([make(J / np.linalg.norm(J, 2), turn) for make in SYSTEMS.values()])
    v = draw.normal(size=(len(J), 12))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    apply = lambda w: jnp.einsum("bij,bj->bi", J, w)
    w, info = compiled(lambda v: fp.gmres().solve(apply, v, 1e-9, 400))(v)
    for name, system, right, row, converged in zip(
        SYSTEMS, np.eye(12) - J, v, w, info.converged, strict=True
    ):
        assert converged, (name, info)
        assert relative_error(row, np.linalg.solve(system, right)) < 1e-5, name
        assert np.linalg.norm(right - system @ row) <= 1e-8, name


def test_zero_rows_cost_nothing_and_cut_off_rows_say_so():
    J = np.diag(np.linspace(0.0, 0.95, 8)).astype(np.float32)
    v = np.stack([np.zeros(8), np.full(8, 8.0**-0.5)]).astype(np.float32)
    both = fp.gmres(), fp.conjugate_gradient()
    run = compiled(lambda v: [each.solve(lambda w: w @ J, v, 1e-5, 4) for each in both])
    for w, info in run(v):
        assert not np.any(w[0])
        assert info.status.tolist() == [CONVERGED, MAX_STEPS]


@in_float64
def test_endless_conjugate_gradients_end_at_round_off():
    """The recurrence falls long after the true residual has stopped, until its
    squares cannot be divided any more."""
    J = np.float32(spectrum(0.0, 0.999, 128))
    v = gaussian(5, 128, seed=2).astype(np.float32)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    solve = fp.conjugate_gradient().solve
    w, info = compiled(lambda v: solve(lambda w: w @ J, v, 1e-300, 9000))(v)
    truth = np.linalg.solve(np.eye(128) - J.astype(np.float64), v.T).T
    error = np.abs(w - truth).max() / np.abs(truth).max()
    assert info.steps.max() < 9000
    assert error <= 1e4 * np.finfo(np.float32).eps


def test_asymmetry_within_round_off_is_no_asymmetry():
    A = np.array([[0.5, 0.1], [0.09, 0.3]], np.float32)
    ones = np.ones((1, 2), np.float32)
    info = fp.EquilibriumInfo(np.zeros(1, np.float32), *np.zeros((2, 1), np.int32))
    spacings = [float(jnp.finfo(dtype).eps) for dtype in ("float32", "bfloat16")]

    @compiled
    def run(ones):
        return [
            flag_asymmetric(info, lambda w: w @ A, ones, eps).status for eps in spacings
        ]

    assert np.ravel(run(ones)).tolist() == [NONSYMMETRIC, CONVERGED]


def test_an_adjoint_rounds_at_the_size_of_its_solution():
    """A solve that ends at a residual of 1e-3: round-off of a w that is 1e4 times v,
    a failure of one of its size."""
    info = fp.EquilibriumInfo(
        np.full(1, 1e-3, np.float32), np.full(1, 5), np.full(1, MAX_STEPS)
    )
    zeros = np.zeros((1, 3), np.float32)

    def loss(probe, size):
        adjoint = fp.Adjoint(lambda operator, v, tol, max_steps: (size * v, info))
        step = lambda c, z, x: c * z + x
        z, _ = uj.equilibrium(
            step,
            0.5,
            zeros,
            zeros + 1,
            adjoint=adjoint,
            batch_ndim=1,
            probe=probe,
            on_failure="accept",
        )
        return jnp.sum(z)

    @compiled
    def run():
        probe = fp.zero_probe(1)
        return [jax.grad(loss)(probe, size).converged[0] for size in (1e4, 1.0)]

    assert run() == [1.0, 0.0]


@nightly
@pytest.mark.usefixtures("optimised")
def test_a_tiny_cotangent_keeps_its_accuracy():
    """With the adjoints of the state, and in the small space of a factored layer."""
    factored = factored_layer(8, 12)
    general = symmetric_step, factored[1][:2]

    def pulled(x, adjoint):
        layer, params = general if adjoint else factored

        def solve(x):
            return uj.equilibrium(
                layer,
                params,
                start,
                x,
                tol=1e-6,
                solver=adjoint and "picard",
                adjoint=adjoint,
                batch_ndim=1,
            )[0]

        start = jnp.zeros((4, 8))
        y, pull = jax.vjp(solve, x)
        return [pull(jnp.full_like(y, size))[0] for size in (1.0, 1e-12, 1e-30)]

    @compiled
    def run(x):
        return [pulled(x, name) for name in ("gmres", "conjugate_gradient", None)]

    for full, *tiny in run(inputs(4, 3, dtype=jnp.float32)):
        for size, gradient in zip((1e-12, 1e-30), tiny, strict=True):
            unit = np.asarray(gradient, np.float64) / size
            assert relative_error(unit, full) < 1e-5, size


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained")
@pytest.mark.parametrize("name", ["FixedPointIteration", "Broyden"])
def test_solvers_of_jaxopt_meet_the_tolerance_unsharded(name):
    """Of every example. Sharded states and unrolled steps are an error."""
    import jaxopt

    solver = fp.jaxopt_solver(getattr(jaxopt, name))
    A = skew_weights(norm=0.8, dtype=jnp.float32)
    x = np.asarray(inputs(4, 8, dtype=jnp.float32))
    solve = program(affine, solver=solver)
    z, info = solve(A, 0.0 * x, x)
    assert info.converged.all()
    assert_allclose(z, x @ np.linalg.inv(np.eye(8) - np.asarray(A)), atol=1e-3)
    assert solve(A, 0.0 * x[:0], x[:0])[1].steps.shape == (0,)
    tiny = np.float32(1e-30)  # whose squares underflow
    small, info = solve(A, 0.0 * x, tiny * x)
    assert info.converged.all()
    assert relative_error(np.asarray(small, np.float64) / tiny, z) < 1e-4

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("data")
    run = lambda x: solve(A, jnp.zeros_like(x), x)[0]
    with pytest.raises(ValueError, match="jaxopt's solvers take no sharded states"):
        jax.eval_shape(jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows), x)
    words = 'adjoint="unrolled" needs a solver whose steps can be differentiated'
    with pytest.raises(ValueError, match=words):
        program(affine, solver=solver, adjoint="unrolled")(A, 0.0 * x, x)
