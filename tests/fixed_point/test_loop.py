"""The loop of both directions: its steps, its ends, its safeguards, and sizes from 1e-25 to 1e25."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    relative_error,
    skew_weights,
    symmetric_step,
    symmetric_weights,
    tanh_step,
)
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import STATUS
from unroll_jax.fixed_point.adjoints import asymmetric, unroll_solver
from unroll_jax.fixed_point.loop import iterate
from unroll_jax.fixed_point.sizes import Rule

pytestmark = pytest.mark.usefixtures("unchecked")

CONVERGED, STALLED, MAX_STEPS, NONFINITE, _ = range(5)


def affine(p, z, x):
    return z @ p + x


def solve(step, params, start, x=None, **options):
    """In one program, an example a row; x is closed over."""
    options = {"batch_ndim": 1, "on_failure": "accept"} | options
    return jax.jit(lambda params, start: uj.equilibrium(step, params, start, x, **options))(params, start)


def quadratic(size=8, norm=0.99):
    """A, symmetric with eigenvalues in [0, norm], and b of z' = A z + b."""
    basis, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(size, size)))
    return (basis * np.linspace(0.0, norm, size)) @ basis.T, np.random.default_rng(4).normal(size=size)


def iterates(solver, step, z, count):
    """The states that ``count`` updates of a solver go through from z."""
    rule = Rule(1e-12, 1, float(jnp.finfo(z.dtype).eps))
    ends = [jax.jit(lambda z, k=k: unroll_solver(step, z, solver, rule._replace(max_steps=k))[0])(z) for k in count]
    return np.stack(ends)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("window", [2, 9])
def test_anderson_takes_the_step_of_least_linearised_residual(window):
    """By NumPy's least squares over differences that are orthogonal in turn to the window of those before."""
    A, x = np.asarray(skew_weights()), np.asarray(inputs(8))
    z, Q, U, last = np.zeros(8), [], [], None
    states = iterates(fp.anderson(window), lambda z: jnp.tanh(z @ A + x), np.zeros((1, 8)), range(1, 7))[:, 0]
    for k in range(6):
        fz = np.tanh(z @ A + x)
        d = fz - z
        if last is not None:
            q, u = d - last[0], fz - last[1]
            shares = [q @ old for old in Q[-window:]]
            q, u = (a - sum(s * old for s, old in zip(shares, B[-window:], strict=True)) for a, B in ((q, Q), (u, U)))
            Q, U = [*Q, q / np.linalg.norm(q)][-window:], [*U, u / np.linalg.norm(q)][-window:]
        last = d, fz
        z = fz - sum((d @ q) * u for q, u in zip(Q, U, strict=True))
        np.testing.assert_allclose(states[k], z, rtol=1e-9, atol=1e-10, err_msg=f"step {k}")


@pytest.mark.usefixtures("x64")
def test_accelerated_gradient_forgets_its_momentum_where_it_restarts():
    A, b = quadratic()
    states = iterates(fp.accelerated_gradient(), lambda z: z @ A + b, np.zeros((1, 8)), (5, 20, 60))[:, 0]
    z, before, weight, restarts, seen = np.zeros(8), np.zeros(8), 1.0, 0, []
    for _ in range(60):
        image = A @ z + b
        uphill = (z - image) @ (image - before) > 0.0
        restarts += uphill
        weight = 1.0 if uphill else weight
        following = (1.0 + np.sqrt(1.0 + 4.0 * weight**2)) / 2.0
        z = image + (0.0 if uphill else (weight - 1.0) / following) * (image - before)
        before, weight = image, following
        seen.append(z)
    np.testing.assert_allclose(states, [seen[4], seen[19], seen[59]], rtol=1e-9, atol=1e-9)
    assert restarts > 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_damped_is_the_stated_iteration(share):
    A, x, z = np.asarray(skew_weights()), np.asarray(inputs(8)), np.zeros(8)
    for _ in range(6):
        z = (1.0 - share) * z + share * np.tanh(z @ A + x)
    y, _ = solve(tanh_step, A, np.zeros((1, 8)), x[None], solver=fp.damped(share), adjoint=fp.unrolled(6))
    np.testing.assert_allclose(y[0], z, rtol=1e-13)


@pytest.mark.usefixtures("x64")
def test_accelerated_gradient_needs_the_square_root_of_picards_steps():
    (W, _), x = symmetric_weights(8, 8, square=0.999), inputs(4, 8)
    options = {"tol": 1e-8, "max_steps": 20_000}
    steps = {
        name: int(np.max(solve(affine, W.T @ W, np.zeros((4, 8)), x, solver=name, **options)[1].steps))
        for name in ("picard", "accelerated_gradient", "anderson")
    }
    assert steps["accelerated_gradient"] < 0.2 * steps["picard"]
    assert steps["anderson"] < 0.05 * steps["picard"]


@pytest.mark.usefixtures("x64")
def test_plain_steps_come_first_and_stay_where_they_are_quick():
    """A map that contracts tenfold is solved by them; of one that contracts by a tenth they are few."""
    (A, _), x = quadratic(norm=1.0), np.asarray(inputs(1, 8))
    steps = {}
    for rate in (0.1, 0.9):
        for solver in ("anderson", "picard"):
            _, info = solve(affine, rate * A, np.zeros((1, 8)), x, solver=solver, tol=1e-10, max_steps=400)
            steps[rate, solver] = int(info.steps[0])
    assert 0 <= steps[0.1, "anderson"] - steps[0.1, "picard"] < 4  # residuals are checked every four steps
    assert steps[0.9, "anderson"] < 0.2 * steps[0.9, "picard"]


@pytest.mark.usefixtures("x64")
def test_acceleration_that_does_not_help_is_given_up():
    """A window of 5 gains nothing on a rotation of 64 dimensions; without the rule it would cost its steps."""
    A = np.linalg.qr(np.random.default_rng(6).normal(size=(64, 64)))[0]
    x = np.random.default_rng(7).normal(size=(8, 64))
    plain, both = (
        int(np.max(solve(affine, 0.9 * A, np.zeros((8, 64)), x, solver=s)[1].steps)) for s in ("picard", "anderson")
    )
    assert both < 1.4 * plain


@pytest.mark.usefixtures("x64")
def test_a_map_that_plain_steps_leave_is_solved():
    """Eigenvalues from -1.5, and a rotation that grows threefold among them: forward and backward."""
    A, x = np.linalg.qr(np.asarray(skew_weights(16)))[0], np.asarray(inputs(4, 16))
    parts = np.diag([0.0, 0.0, *np.linspace(-1.5, 0.6, 14)])
    parts[:2, :2] = [[0.0, -3.0], [3.0, 0.0]]
    grown = A @ parts @ A.T
    direct = np.linalg.solve(np.eye(16) - grown.T, x.T).T

    def loss(x):
        options = {"batch_ndim": 1, "tol": 1e-9, "solver": fp.anderson(10), "adjoint": fp.gmres(20)}
        z, info = uj.equilibrium(affine, grown, np.zeros((4, 16)), x, **options)
        return jnp.sum(z**2), (z, info.converged)

    gradient, (z, converged) = jax.jit(jax.grad(loss, has_aux=True))(x)
    assert converged.all()
    assert relative_error(z, direct) < 1e-7
    assert relative_error(gradient, np.linalg.solve(np.eye(16) - grown, 2.0 * direct.T).T) < 1e-6


SYSTEMS = {
    "contracts well": lambda J, turn: 0.3 * J,
    "contracts slowly": lambda J, turn: 0.97 * J,
    "a turn that grows": lambda J, turn: 3.0 * turn,
    "far from 0": lambda J, turn: -4.0 * np.eye(12),
    "a turn from 1": lambda J, turn: 1.5 * turn + 0.5 * np.eye(12),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("adjoint", ["gmres", fp.gmres(20)])
def test_the_adjoint_of_a_general_map_is_a_direct_solve(adjoint):
    """Each row by itself, with the true residual."""
    draw, turn = np.random.default_rng(0), np.kron(np.eye(6), [[0.0, -1.0], [1.0, 0.0]])
    J = np.triu(draw.normal(size=(12, 12))) + 0.2 * np.tril(draw.normal(size=(12, 12)), -1)
    J = np.stack([make(J / np.linalg.norm(J, 2), turn) for make in SYSTEMS.values()])
    v = draw.normal(size=(len(J), 12))
    v[:] /= np.linalg.norm(v, axis=1, keepdims=True)
    operator = lambda w: jnp.einsum("bij,bj->bi", J, w)  # noqa: E731
    solver = fp.ADJOINTS[adjoint]() if isinstance(adjoint, str) else adjoint
    w, info = jax.jit(lambda v: solver.solve(operator, v, 1e-9, 400))(v)
    expected = np.linalg.solve(np.eye(12) - J, v[..., None])[..., 0]
    for row, name in enumerate(SYSTEMS):
        assert info.converged[row], (name, info)
        assert relative_error(w[row], expected[row]) < 1e-5, name
    residual = np.linalg.norm(v - (w - np.einsum("bij,bj->bi", J, w)), axis=1)
    assert (residual <= 1e-8).all()


def test_rows_of_zeros_cost_nothing_and_a_cut_off_row_says_so():
    J = np.diag(np.linspace(0.0, 0.95, 8)).astype(np.float32)
    v = np.stack([np.zeros(8), np.full(8, 8.0**-0.5)]).astype(np.float32)
    for name in ("gmres", "conjugate_gradient"):
        solver = fp.ADJOINTS[name]()
        w, info = jax.jit(functools.partial(solver.solve, lambda w: w @ J, tol=1e-5, max_steps=4))(v)
        assert not np.any(w[0]), name
        assert info.status.tolist() == [CONVERGED, MAX_STEPS], name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_conjugate_gradients_told_to_go_on_for_ever_end_at_round_off(dtype):
    """The recurrence falls long after the true residual has stopped, until its squares cannot be divided any more."""
    with jax.enable_x64(True):
        basis = np.linalg.qr(np.random.default_rng(1).normal(size=(128, 128)))[0]
        J = ((basis * np.linspace(0.0, 0.999, 128)) @ basis.T).astype(dtype)
        v = np.random.default_rng(2).normal(size=(5, 128)).astype(dtype)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        w, info = jax.jit(lambda J, v: fp.conjugate_gradient().solve(lambda w: w @ J, v, 1e-300, 9000))(J, v)
    truth = np.linalg.solve(np.eye(128) - J.astype(np.float64), v.T).T
    assert int(info.steps.max()) < 9000
    assert np.abs(np.asarray(w) - truth).max() <= 1e4 * np.finfo(dtype).eps * np.abs(truth).max()


def test_asymmetry_within_round_off_is_no_asymmetry():
    A = np.array([[0.5, 0.1], [0.09, 0.3]], np.float32)
    info = fp.EquilibriumInfo(np.zeros(1, np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32))
    for dtype, words in ((jnp.float32, STATUS[4]), (jnp.bfloat16, STATUS[0])):
        flagged = asymmetric(info, lambda w: w @ A, jnp.ones((1, 2)), float(jnp.finfo(dtype).eps))
        assert STATUS[int(flagged.status[0])] == words


# ---------------------------------------------------------------------------------------------------- how rows end


def test_every_example_stops_by_itself_whatever_the_batch():
    """The same example needs the same steps alone and among 1,024; a whole-batch norm would run on."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(1024, 8, dtype=jnp.float32)
    all_, one = (solve(tanh_step, A, jnp.zeros_like(rows), rows, solver="picard")[1] for rows in (x, x[:1]))
    assert np.all(all_.converged)
    assert int(all_.steps[0]) == int(one.steps[0])
    assert np.min(all_.steps) < np.max(all_.steps) < 100


@pytest.mark.parametrize("solver", ["picard", None])
def test_a_converged_example_is_frozen(solver):
    """An example that is at its fixed point comes back bit for bit, however long another one takes."""
    x = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    y, info = solve(lambda p, z, x: 0.5 * z + x, (), np.zeros((2, 2), np.float32), x, solver=solver, tol=1e-6)
    assert info.steps.tolist()[0] == 1 < info.steps.tolist()[1]
    assert not np.any(np.asarray(y)[0])


@pytest.mark.parametrize("solver", ["picard", "damped", "anderson"])
def test_stalled_at_round_off_is_an_outcome_of_its_own(solver):
    """A tolerance under float32's round-off ends long before the cap, and counts as converged."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(8, 8, dtype=jnp.float32)
    _, info = solve(tanh_step, A, jnp.zeros_like(x), x, solver=solver, tol=1e-12, max_steps=5000)
    assert set(info.status.tolist()) <= {CONVERGED, STALLED}
    assert solver == "picard" or STALLED in info.status.tolist()  # Picard may land on it exactly
    assert int(np.max(info.steps)) < 300
    assert float(np.max(info.residual)) < 16 * np.finfo(np.float32).eps


@pytest.mark.parametrize("solver", ["picard", None])
def test_bfloat16_ends_at_its_round_off_and_not_before(solver):
    p, start = jnp.asarray(0.95, jnp.bfloat16), np.zeros((1, 3), jnp.bfloat16)
    step = lambda p, z, x: p * z + 1  # noqa: E731
    z, info = solve(step, p, start, solver=solver)
    assert np.all(info.converged)
    np.testing.assert_allclose(np.asarray(z, np.float32), 20.0, rtol=0.1)
    z, info = solve(step, p, start, solver="picard", max_steps=3)
    assert np.all(info.status == MAX_STEPS)


@pytest.mark.parametrize("solver", ["anderson", "picard", "damped"])
def test_a_map_without_a_fixed_point_does_not_converge(solver):
    drifting = lambda p, z, x: z + jax.nn.softplus(-z) + p  # noqa: E731
    for drift, start in ((0.1, 0.0), (0.1, 3.0), (0.005, 0.0), (0.001, 0.0)):
        _, info = solve(drifting, drift, np.full((2, 3), start, np.float32), solver=solver)
        assert not np.any(info.converged), (drift, start)
        assert np.all(info.residual > 1e-5)


def test_what_is_returned_is_the_best_state_met():
    """Started at the fixed point of a rotation that grows, every step is worse."""
    turn = 1.5 * np.array([[0.0, 1.0], [-1.0, 0.0]], np.float32)
    near = np.linalg.solve(np.eye(2) - turn.T, np.ones(2)).astype(np.float32) + np.array([1e-3, 0.0], np.float32)
    y, info = solve(lambda p, z, x: z @ turn + 1.0, (), near[None], solver="picard", max_steps=30)
    assert relative_error(y[0], near @ turn + 1.0) < 1e-6
    assert float(info.residual[0]) < 3e-3


@pytest.mark.parametrize("solver", ["picard", None])
def test_an_overflow_on_the_way_and_a_nan_are_told_apart(solver):
    """exp leaves the range after some steps; anderson returns to what it had, a plain iteration ends."""
    start = np.array([[0.5], [np.nan]], np.float32)[:1]
    _, info = solve(lambda p, z, x: p * z, jnp.nan, start, solver=solver)
    assert info.status.tolist() == [NONFINITE]
    z, info = solve(lambda p, z, x: jnp.exp(2.0 * z), (), start, solver=solver)
    assert not info.converged[0]
    assert solver == "picard" or np.isfinite(z).all()


@pytest.mark.parametrize("size", [1e-25, 1e-15, 1.0, 1e15, 1e25])
@pytest.mark.parametrize("solver", ["picard", "damped", "anderson"])
def test_the_size_of_the_state_changes_neither_the_steps_nor_the_answer(size, solver):
    x = np.asarray(inputs(4, 8, dtype=jnp.float32))
    A = np.asarray(skew_weights(norm=0.95, dtype=jnp.float32))
    z, info = solve(affine, A, np.zeros_like(x), np.float32(size) * x, solver=solver)
    _, usual = solve(affine, A, np.zeros_like(x), x, solver=solver)
    assert info.converged.all()
    assert np.abs(np.asarray(info.steps) - np.asarray(usual.steps)).max() <= 3
    assert relative_error(np.asarray(z, np.float64) / size, np.linalg.solve(np.eye(8) - A.T, x.T).T) < 1e-3


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_states_may_grow_from_tiny_ones_and_shrink_from_large_ones(start):
    """tanh(2 z) leaves the unstable 0 for 0.957504, the root of z = tanh(2 z)."""
    z, info = solve(lambda p, z, x: jnp.tanh(2 * z), (), np.full((1, 3), start, np.float32), solver="picard")
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 0.95750402, rtol=1e-4)


# ------------------------------------------------------------------------------------ zero, and absolute tolerances


def shrink(rate, z, x):
    return rate * z


@pytest.mark.parametrize("solver", ["picard", "damped", "accelerated_gradient", None])
def test_a_contraction_to_zero_converges(solver):
    """Half as far a step, `damped` needs twice the steps of `picard`."""
    z, info = solve(shrink, 0.95, np.ones((2, 3), np.float32), solver=solver, max_steps=1000)
    assert np.all(info.converged)
    assert np.abs(z).max() < 2e-6
    assert np.all(info.steps < 600)
    _, info = solve(shrink, 0.95, np.ones((2, 3), np.float32), solver="picard", max_steps=50)
    assert np.all(info.status == MAX_STEPS)


@pytest.mark.parametrize("start", [1e-6, 1.0, 10.0])
def test_a_small_fixed_point_is_not_taken_for_zero(start):
    x = np.array([[0.1], [1.0]], np.float32)
    z, info = solve(
        lambda p, z, x: 0.9 * z + x, (), np.full((2, 1), start, np.float32), x, solver="picard", max_steps=400
    )
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 10.0 * x, rtol=2e-4)


def test_an_absolute_tolerance_ends_the_solve():
    start = np.ones((1, 3), np.float32)
    z, info = solve(shrink, 0.95, start, solver="picard", atol=1e-3)
    assert info.converged.all()
    assert 0.9e-3 < 0.05 * np.linalg.norm(z) / 0.95 <= 1.001e-3  # z is f of the state that was judged
    z, info = solve(shrink, 0.95, start, solver="picard", atol=0.0)  # all relative
    assert info.status[0] == MAX_STEPS
    np.testing.assert_allclose(info.residual[0], 1 / 0.95 - 1, rtol=1e-4)
    assert np.abs(z).max() < 1e-4  # the last state all the same
    options = {"solver": "picard", "tol": 1e-3, "atol": 2e-3}
    _, info = solve(lambda p, z, x: 0.5 * z + 1.0, (), np.zeros((1, 1), np.float32), **options)
    assert info.steps[0] == 9  # |f(z) - z| = 2^-k, at most 2e-3 + 1e-3 * 2 from k = 8 on


@pytest.mark.parametrize("atol", [-1e-3, np.nan, np.inf])
def test_an_absolute_tolerance_out_of_range_is_an_error(atol):
    with pytest.raises(ValueError, match="atol must be"):
        uj.equilibrium(shrink, 0.5, jnp.ones(3), atol=atol)


def test_a_factored_layer_and_unrolled_steps_take_an_absolute_tolerance():
    layer = uj.opteq(4, 3, 2)
    params, x = jax.jit(layer.init)(jax.random.key(0)), jnp.ones((2, 2))
    loose, tight = (solve(layer, params, jnp.ones((2, 4)), x, tol=1e-6, atol=atol)[1] for atol in (1e-1, None))
    assert np.all(loose.converged)
    assert np.all(loose.steps <= tight.steps)
    assert solve(shrink, 0.9, np.ones((1, 3), np.float32), atol=1e-3, adjoint=fp.unrolled(100))[1].converged.all()


def test_an_adjoint_rounds_at_the_size_of_its_solution():
    """A solve that ends at a residual of 1e-3: round-off of a w that is 1e4 times v, a failure of one of its size."""

    def ended_at(size):
        info = fp.EquilibriumInfo(np.full(1, 1e-3, np.float32), np.full(1, 5), np.full(1, MAX_STEPS))
        return fp.Adjoint(lambda operator, v, tol, max_steps: (size * v, info))

    def loss(probe, size):
        zeros, ones = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
        options = {"adjoint": ended_at(size), "batch_ndim": 1, "probe": probe, "on_failure": "accept"}
        return jnp.sum(uj.equilibrium(lambda c, z, x: c * z + x, 0.5, zeros, ones, **options)[0])

    large, usual = jax.jit(lambda probe: [jax.grad(loss)(probe, size) for size in (1e4, 1.0)])(fp.zero_probe(1))
    assert (large.converged[0], usual.converged[0]) == (1.0, 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_tiny_cotangent_keeps_its_accuracy():
    params, x = symmetric_weights(dtype=jnp.float32), inputs(4, 3, dtype=jnp.float32)

    def pulled(x, adjoint):
        options = {"tol": 1e-6, "solver": "picard", "adjoint": adjoint, "batch_ndim": 1}
        y, pull = jax.vjp(lambda x: uj.equilibrium(symmetric_step, params, jnp.zeros((4, 8)), x, **options)[0], x)
        return [pull(jnp.full_like(y, size))[0] for size in (1.0, 1e-12, 1e-30)]

    adjoints = ("gmres", "conjugate_gradient")
    for adjoint, (full, *tiny) in jax.jit(lambda x: {name: pulled(x, name) for name in adjoints})(x).items():
        for size, gradient in zip((1e-12, 1e-30), tiny, strict=True):
            assert relative_error(np.asarray(gradient, np.float64) / size, full) < 1e-5, (adjoint, size)


def test_the_loop_runs_without_the_rest():
    y, info = iterate(lambda z: 0.5 * z + 1.0, jnp.zeros((2, 3)), fp.anderson(), Rule(1e-5, 50, 1e-7))
    np.testing.assert_allclose(y, 2.0, rtol=1e-5)
    assert info.converged.all()


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained")
@pytest.mark.parametrize("name", ["FixedPointIteration", "AndersonAcceleration", "Broyden"])
def test_solvers_of_jaxopt_bring_every_example_to_the_tolerance_and_sharded_states_are_an_error(name):
    import jaxopt

    solver = fp.jaxopt_solver(getattr(jaxopt, name))
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(4, 8, dtype=jnp.float32)
    z, info = solve(affine, A, jnp.zeros_like(x), x, solver=solver)
    assert info.converged.all()
    np.testing.assert_allclose(z, np.linalg.solve(np.eye(8) - np.asarray(A).T, np.asarray(x).T).T, atol=1e-3)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("data")
    run = lambda x: uj.equilibrium(affine, A, jnp.zeros_like(x), x, solver=solver, batch_ndim=1)[0]  # noqa: E731
    with pytest.raises(ValueError, match="jaxopt's solvers take no sharded states"):
        jax.eval_shape(jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows), x)
    with pytest.raises(ValueError, match='adjoint="unrolled" needs a solver whose steps can be differentiated'):
        solve(affine, A, jnp.zeros_like(x), x, solver=solver, adjoint="unrolled")
