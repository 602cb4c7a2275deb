"""What general libraries were measured to get wrong, one test a lesson."""

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
    unrolled,
)
from unroll_jax import fixed_point
from unroll_jax.fixed_point import STATUS, anderson
from unroll_jax.fixed_point.problem import SolveInfo


def solve(step, params, x, dim, **options):
    return uj.equilibrium(step, params, jnp.zeros((*x.shape[:-1], dim), x.dtype), x, batch_ndim=x.ndim - 1, **options)


def factored(dim, width, skip=1.0):
    """An OptEq layer whose width says in which space it is small, and its parameters."""
    W, U = symmetric_weights(dim, width, square=0.9)
    return uj.energies.opteq(dim, width, 3, skip=skip), uj.OptEqParams(W, U, jnp.asarray(np.zeros(width)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dim", "width", "skip"), [(24, 6, 1.0), (6, 24, 1.0), (8, 8, 1.0), (8, 6, 0.4)])
def test_iterating_where_it_is_small_gives_the_same_point_and_gradient(dim, width, skip):
    layer, params = factored(dim, width, skip=skip)

    @jax.jit
    def both(params, x):
        small = lambda p: solve(layer, p, x, dim, tol=1e-11, on_failure="error")[0]  # noqa: E731
        large = lambda p: unrolled(symmetric_step, p[:2], jnp.zeros((4, dim)), x, steps=350)  # noqa: E731
        return [jax.value_and_grad(lambda p, find=find: jnp.sum(find(p) ** 3))(params) for find in (small, large)]

    (value, gradient), (expected, slope) = both(params, inputs(4, 3))
    assert relative_error(value, expected) < 1e-9
    assert relative_error(gradient[:2], slope[:2]) < 1e-8


@pytest.mark.usefixtures("x64")
def test_the_small_solve_starts_from_where_it_is_told():
    layer, params = factored(24, 6)
    run = jax.jit(lambda params, z: uj.equilibrium(layer, params, z, inputs(4, 3)))
    z, cold = run(params, np.zeros((4, 24)))
    _, warm = run(params, z)
    assert int(np.max(warm.steps)) == 1 < int(np.max(cold.steps))


def test_every_example_stops_by_itself_whatever_the_batch():
    """The same example needs the same steps alone and among 1,024; a whole-batch norm would run on."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(1024, 8, dtype=jnp.float32)
    options = {"solver": "picard", "tol": 1e-5, "max_steps": 100}
    info, one = jax.jit(lambda x: [solve(tanh_step, A, rows, 8, **options)[1] for rows in (x, x[:1])])(x)
    steps = np.asarray(info.steps)
    assert np.all(info.converged)
    assert steps[0] == int(one.steps[0])
    assert steps.min() < steps.max() < 100


def test_a_converged_example_is_frozen():
    """An example that is at its fixed point comes back bit for bit, however long another one takes."""
    x = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    step = lambda params, z, x: 0.5 * z + x  # noqa: E731
    y, info = jax.jit(lambda x: solve(step, (), x, 2, solver="picard", tol=1e-6))(x)
    assert info.steps.tolist()[0] == 1 < info.steps.tolist()[1]
    assert not np.any(np.asarray(y)[0])


def test_stalled_at_round_off_is_an_outcome_of_its_own():
    """A tolerance under float32's round-off ends long before the cap, and counts as converged."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(8, 8, dtype=jnp.float32)
    options, solvers = {"tol": 1e-12, "max_steps": 5000, "on_failure": "error"}, ("picard", "anderson")
    infos = jax.jit(lambda x: {s: solve(tanh_step, A, x, 8, solver=s, **options)[1] for s in (*solvers, "damped")})(x)
    good, stalled = STATUS.index("converged"), STATUS.index("stalled at round-off")
    for solver, info in infos.items():
        assert set(info.status.tolist()) <= {good, stalled}, solver
        assert solver == "picard" or stalled in info.status.tolist(), solver  # Picard may land on it exactly
        assert int(np.max(info.steps)) < 300, solver
        assert float(np.max(info.residual)) < 16 * np.finfo(np.float32).eps, solver


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_tiny_cotangent_keeps_its_accuracy():
    params, x = symmetric_weights(dtype=jnp.float32), inputs(4, 3, dtype=jnp.float32)

    def pulled(x, adjoint):
        find = lambda x: solve(symmetric_step, params, x, 8, tol=1e-6, solver="picard", adjoint=adjoint)[0]  # noqa: E731
        y, pull = jax.vjp(find, x)
        return [pull(jnp.full_like(y, size))[0] for size in (1.0, 1e-12, 1e-30)]

    adjoints = ("gmres", "neumann_gcr", "conjugate_gradient")
    for adjoint, (full, *tiny) in jax.jit(lambda x: {name: pulled(x, name) for name in adjoints})(x).items():
        for size, gradient in zip((1e-12, 1e-30), tiny, strict=True):
            assert relative_error(np.asarray(gradient, np.float64) / size, full) < 1e-5, (adjoint, size)


@pytest.mark.usefixtures("unchecked")
def test_an_adjoint_rounds_at_the_size_of_its_solution():
    """A solve that ends at a residual of 1e-3: round-off of a w that is 1e4 times v, a failure of one of its size."""
    step = lambda c, z, x: c * z + x  # noqa: E731

    def ended_at(size):
        info = SolveInfo(np.full(1, 1e-3, np.float32), np.full(1, 5), np.full(1, STATUS.index("reached max_steps")))
        return fixed_point.Adjoint(lambda operator, v, tol, max_steps: (size * v, info))

    def loss(probe, size):
        options = {"adjoint": ended_at(size), "batch_ndim": 1, "probe": probe, "on_failure": "accept"}
        return jnp.sum(
            uj.equilibrium(step, 0.5, np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32), **options)[0]
        )

    zero = fixed_point.zero_probe(1)
    large, usual = jax.jit(lambda probe: [jax.grad(loss)(probe, size) for size in (1e4, 1.0)])(zero)
    assert (large.converged[0], usual.converged[0]) == (1.0, 0.0)


def test_andersons_ridge_means_the_same_at_every_scale():
    """Scaling the state by 1e-6 or 1e6 changes neither path nor steps, as an absolute ridge would."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), np.asarray(inputs(4, 8, dtype=jnp.float32))
    linear = lambda A, z, x: z @ A + x  # noqa: E731
    run = jax.jit(lambda x: solve(linear, A, x, 8, solver=anderson(ridge=1e-6), tol=1e-5)[1].steps)
    steps = [np.asarray(run(np.float32(scale) * x)) for scale in (1e-6, 1.0, 1e6)]
    assert np.abs(steps[0] - steps[1]).max() <= 1
    assert np.abs(steps[2] - steps[1]).max() <= 1


def test_anderson_mixes_from_the_second_step_and_is_quicker_than_picard():
    """A linear map in one dimension is solved by the secant through the first two residuals: three evaluations."""
    params, x = symmetric_weights(32, 16, square=0.95, dtype=jnp.float32), inputs(16, 3, dtype=jnp.float32)

    @jax.jit
    def steps(params, x):
        counts = {s: solve(symmetric_step, params, x, 32, solver=s)[1].steps for s in ("picard", "anderson")}
        secant, one = anderson(1, ridge=0.0), jnp.ones((1, 1))
        counts["secant"] = solve(lambda c, z, x: c * z + x, 0.9, one, 1, solver=secant, tol=1e-5)[1].steps
        return counts

    counts = {name: int(np.max(count)) for name, count in steps(params, x).items()}
    assert counts["anderson"] < 0.6 * counts["picard"]
    assert counts["secant"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_vmap_holds_no_gradient_of_the_weights_per_example():
    """64 examples by vmap against 64 in a batch: temporaries of the gradient in W stay of one order."""
    W, U = symmetric_weights(128, 64, dtype=jnp.float32)
    x = inputs(64, 3, dtype=jnp.float32)

    def temporary(find):
        options = {"solver": "picard", "adjoint": "conjugate_gradient", "on_failure": "accept"}
        program = jax.jit(jax.grad(lambda p: jnp.sum(find(p, options) ** 2))).lower((W, U)).compile()
        return program.memory_analysis().temp_size_in_bytes

    batched = temporary(lambda p, options: solve(symmetric_step, p, x, 128, **options)[0])
    mapped = temporary(lambda p, options: jax.vmap(lambda row: solve(symmetric_step, p, row, 128, **options)[0])(x))
    per_example_weights = 64 * W.size * 4
    assert mapped < batched + per_example_weights / 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.usefixtures("x64")
def test_every_dtype_reaches_its_own_round_off(dtype):
    params, x = symmetric_weights(dtype=dtype), inputs(4, 3, dtype=dtype)
    epsilon = float(jnp.finfo(dtype).eps)
    options = {"adjoint": "neumann_gcr", "tol": max(1e-12, 2 * epsilon)}

    def loss(params):
        y, info = solve(symmetric_step, params, x, 8, on_failure="error", **options)
        return jnp.sum(y.astype(jnp.float64) ** 2), (y, info)

    def exact(params, x):
        return jnp.sum(unrolled(symmetric_step, params, jnp.zeros((4, 8)), x, steps=300) ** 2)

    run = jax.jit(lambda params, wide: (jax.grad(loss, has_aux=True)(params), jax.grad(exact)(*wide)))
    (gradient, (y, info)), expected = run(params, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (params, x)))
    assert y.dtype == gradient[0].dtype == dtype
    assert info.residual.dtype == (dtype if dtype == jnp.float64 else jnp.float32)
    assert relative_error(gradient, expected) < max(1e-9, 100 * epsilon)


@pytest.mark.slow
def test_flat_states_of_32768_and_more_converge_in_float32():
    """A convolution around a ring, relu: its Jacobian is symmetric, and its derivative in the gain known."""
    size = 40_000
    filter_ = lambda z: 0.5 * z + 0.22 * (jnp.roll(z, 1, -1) + jnp.roll(z, -1, -1))  # noqa: E731
    step = lambda gain, z, x: filter_(jax.nn.relu(filter_(z) + gain * x))  # noqa: E731
    x = inputs(2, size, dtype=jnp.float32)

    def gradient(gain, probe, solver, adjoint):
        def loss(gain, probe):
            options = {"solver": solver, "adjoint": adjoint, "tol": 1e-6, "probe": probe}
            y, _ = solve(step, gain, x, size, on_failure="error", **options)
            return jnp.sum(y), jnp.sum(y)

        return jax.grad(loss, (0, 1), has_aux=True)(gain, probe)

    pairs = [("picard", "conjugate_gradient"), ("picard", "neumann_gcr"), ("anderson", "gmres")]
    gradients = jax.jit(lambda *given: [gradient(*given, *pair) for pair in pairs])(1.0, fixed_point.zero_probe(2))
    # f is positively homogeneous in (z, x): so the equilibrium is linear in gain > 0, and its derivative is itself.
    for pair, ((slope, probe), total) in zip(pairs, gradients, strict=True):
        assert abs(float(slope) / float(total) - 1.0) < 1e-4, pair
        assert np.all(probe.converged), pair


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_jaxopt_finds_the_same_gradient_where_it_works():
    import jaxopt

    x = inputs(8)
    peer = jaxopt.FixedPointIteration(lambda z, A: tanh_step(A, z, x), maxiter=1000, tol=1e-13, implicit_diff=True)

    @jax.jit
    def both(A):
        theirs = lambda A: jnp.sum(peer.run(jnp.zeros(8), A).params ** 2)  # noqa: E731
        ours = lambda A: jnp.sum(solve(tanh_step, A, x, 8, tol=1e-11)[0] ** 2)  # noqa: E731
        return jax.grad(ours)(A), jax.grad(theirs)(A)

    actual, expected = both(skew_weights())
    assert relative_error(actual, expected) < 1e-4  # as far as jaxopt's own adjoint goes, whose tolerance is 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_optimistix_finds_the_same_gradient():
    import optimistix

    x = inputs(8)

    @jax.jit
    def both(A):
        def peer(A):
            solver, step = optimistix.FixedPointIteration(1e-13, 1e-13), lambda z, A: tanh_step(A, z, x)
            return jnp.sum(optimistix.fixed_point(step, solver, jnp.zeros(8), A).value ** 2)

        return jax.grad(lambda A: jnp.sum(solve(tanh_step, A, x, 8, tol=1e-11)[0] ** 2))(A), jax.grad(peer)(A)

    assert relative_error(*both(skew_weights())) < 1e-8
