"""What general libraries were measured to get wrong, one test a lesson."""

import os
import subprocess
import sys
from pathlib import Path

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

ROOT = Path(__file__).resolve().parents[2]


def solve(step, params, x, dim, **options):
    return uj.equilibrium(step, params, jnp.zeros((*x.shape[:-1], dim), x.dtype), x, batch_ndim=x.ndim - 1, **options)


def factored(dim, width, seed=0, skip=1.0):
    """An OptEq layer whose width says in which space it is small, and, for skip 1, the same layer as a step alone."""
    W, U = symmetric_weights(dim, width, square=0.9, seed=seed)
    layer = uj.energies.opteq(dim, width, 3, skip=skip)
    return layer, layer.init(jax.random.key(0))._replace(W=W, U=U, b=jnp.zeros(width)), (W, U)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dim", "width", "skip"), [(24, 6, 1.0), (6, 24, 1.0), (8, 8, 1.0), (8, 6, 0.4)])
def test_iterating_where_it_is_small_gives_the_same_point_and_gradient(dim, width, skip):
    layer, params, pair = factored(dim, width, skip=skip)
    x = inputs(4, 3)

    def loss(params, step, **options):
        return jnp.sum(solve(step, params, x, dim, tol=1e-11, on_failure="error", **options)[0] ** 3)

    small = jax.jit(jax.value_and_grad(lambda p: loss(p, layer)))(params)
    large = jax.jit(jax.value_and_grad(lambda p: loss(p, symmetric_step)))(pair)
    assert relative_error(small[0], large[0]) < 1e-9
    assert relative_error((small[1].W, small[1].U), large[1]) < 1e-8


@pytest.mark.usefixtures("x64")
def test_the_small_solve_starts_from_where_it_is_told():
    layer, params, _ = factored(24, 6)
    x = inputs(4, 3)
    z, cold = solve(layer, params, x, 24)
    _, warm = uj.equilibrium(layer, params, z, x)
    assert int(warm.steps.max()) == 1 < int(cold.steps.max())


@pytest.mark.parametrize("batch", [1, 1024])
def test_every_example_stops_by_itself_whatever_the_batch(batch):
    """The same example needs the same steps alone and among 1,024; a whole-batch norm would run on."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(1024, 8, dtype=jnp.float32)
    _, info = solve(tanh_step, A, x[:batch], 8, solver="picard", tol=1e-5, max_steps=100)
    _, one = solve(tanh_step, A, x[:1], 8, solver="picard", tol=1e-5, max_steps=100)
    assert info.converged.all()
    assert int(info.steps[0]) == int(one.steps[0])
    assert batch == 1 or int(info.steps.min()) < int(info.steps.max()) < 100


def test_a_converged_example_is_frozen():
    """An example that is at its fixed point comes back bit for bit, however long another one takes."""
    A = 0.5 * jnp.eye(2)
    x = jnp.array([[0.0, 0.0], [1.0, 2.0]])
    y, info = solve(lambda A, z, x: z @ A + x, A, x, 2, solver="picard", tol=1e-6)
    assert info.steps.tolist()[0] == 1 < info.steps.tolist()[1]
    assert not y[0].any()


@pytest.mark.parametrize("solver", ["picard", "anderson", "broyden", "damped"])
def test_stalled_at_round_off_is_an_outcome_of_its_own(solver):
    """A tolerance under float32's round-off ends long before the cap, and counts as converged."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(8, 8, dtype=jnp.float32)
    _, info = solve(tanh_step, A, x, 8, solver=solver, tol=1e-12, max_steps=5000, on_failure="error")
    assert set(np.unique(info.status).tolist()) <= {STATUS.index("converged"), STATUS.index("stalled at round-off")}
    assert solver == "picard" or STATUS.index("stalled at round-off") in info.status  # Picard may land on it exactly
    assert int(info.steps.max()) < 300
    assert float(info.residual.max()) < 16 * jnp.finfo(jnp.float32).eps


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("size", [1e-12, 1e-30])
@pytest.mark.parametrize("adjoint", ["gmres", "bicgstab", "conjugate_gradient", "anderson"])
def test_a_tiny_cotangent_keeps_its_accuracy(size, adjoint):
    params, x = symmetric_weights(dtype=jnp.float32), inputs(4, 3, dtype=jnp.float32)

    @jax.jit
    def both(x):
        y, pull = jax.vjp(lambda x: solve(symmetric_step, params, x, 8, tol=1e-6, adjoint=adjoint)[0], x)
        return pull(jnp.ones_like(y))[0], pull(jnp.full_like(y, size))[0]

    full, tiny = both(x)
    assert relative_error(np.asarray(tiny, np.float64) / size, full) < 1e-5


def test_andersons_ridge_means_the_same_at_every_scale():
    """Scaling the state by 1e-6 or 1e6 changes neither path nor steps, as an absolute ridge would."""
    A, x = skew_weights(norm=0.8, dtype=jnp.float32), inputs(4, 8, dtype=jnp.float32)
    linear = lambda A, z, x: z @ A + x  # noqa: E731
    steps = [
        solve(linear, A, scale * x, 8, solver=anderson(ridge=1e-6), tol=1e-5)[1].steps for scale in (1e-6, 1.0, 1e6)
    ]
    assert jnp.abs(steps[0] - steps[1]).max() <= 1
    assert jnp.abs(steps[2] - steps[1]).max() <= 1


def test_anderson_mixes_from_the_second_step_and_is_quicker_than_picard():
    W, U = symmetric_weights(32, 16, square=0.95, dtype=jnp.float32)
    x = inputs(16, 3, dtype=jnp.float32)
    steps = {s: int(solve(symmetric_step, (W, U), x, 32, solver=s)[1].steps.max()) for s in ("picard", "anderson")}
    assert steps["anderson"] < 0.6 * steps["picard"]
    # A linear map in one dimension is solved by the secant through the first two residuals: three evaluations.
    _, info = solve(lambda c, z, x: c * z + x, 0.9, jnp.ones((1, 1)), 1, solver=anderson(1, ridge=0.0), tol=1e-5)
    assert int(info.steps[0]) == 3


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


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.usefixtures("x64")
def test_every_dtype_reaches_its_own_round_off(dtype):
    params, x = symmetric_weights(dtype=dtype), inputs(4, 3, dtype=dtype)
    epsilon = float(jnp.finfo(dtype).eps)
    options = {"adjoint": "bicgstab", "tol": max(1e-12, 2 * epsilon)}

    def loss(params):
        y, info = solve(symmetric_step, params, x, 8, on_failure="error", **options)
        return jnp.sum(y.astype(jnp.float64) ** 2), (y, info)

    gradient, (y, info) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert y.dtype == gradient[0].dtype == dtype
    assert info.residual.dtype == (dtype if dtype == jnp.float64 else jnp.float32)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (params, x))
    exact = jax.grad(lambda p: jnp.sum(unrolled(symmetric_step, p, jnp.zeros((4, 8)), wide[1], steps=300) ** 2))(
        wide[0]
    )
    assert relative_error(gradient, exact) < max(1e-9, 100 * epsilon)


@pytest.mark.parametrize("adjoint", ["conjugate_gradient", "bicgstab", "gmres"])
def test_flat_states_of_32768_and_more_converge_in_float32(adjoint):
    """A convolution around a ring, relu: its Jacobian is symmetric, and its derivative in the gain known."""
    size = 40_000
    filter_ = lambda z: 0.5 * z + 0.22 * (jnp.roll(z, 1, -1) + jnp.roll(z, -1, -1))  # noqa: E731
    step = lambda gain, z, x: filter_(jax.nn.relu(filter_(z) + gain * x))  # noqa: E731
    x = inputs(2, size, dtype=jnp.float32)

    def loss(gain, probe):
        y, info = solve(step, gain, x, size, tol=1e-6, adjoint=adjoint, on_failure="error", probe=probe)
        return jnp.sum(y), (y, info)

    gradient, (y, _) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(jnp.float32(1.0), fixed_point.zero_probe(2))
    # f is positively homogeneous in (z, x): so the equilibrium is linear in gain > 0, and its derivative is itself.
    assert abs(float(gradient[0]) / float(jnp.sum(y)) - 1.0) < 1e-4
    assert gradient[1].converged.all()


@pytest.mark.usefixtures("x64")
def test_jaxopt_finds_the_same_gradient_where_it_works():
    fixed_point.jaxopt_fixed_point()  # imports jaxopt and leaves out its warning that it is no longer maintained
    import jaxopt

    A, x = skew_weights(), inputs(8)
    peer = jaxopt.FixedPointIteration(lambda z, A: tanh_step(A, z, x), maxiter=1000, tol=1e-13, implicit_diff=True)
    expected = jax.grad(lambda A: jnp.sum(peer.run(jnp.zeros(8), A).params ** 2))(A)
    found = jax.grad(lambda A: jnp.sum(solve(tanh_step, A, x, 8, tol=1e-11)[0] ** 2))(A)
    assert relative_error(found, expected) < 1e-4  # as far as jaxopt's own adjoint goes, whose tolerance is 1e-5


@pytest.mark.peers
@pytest.mark.usefixtures("x64")
def test_optimistix_finds_the_same_gradient():
    optimistix = pytest.importorskip("optimistix", reason="optimistix is an optional peer")
    A, x = skew_weights(), inputs(8)

    def peer(A):
        found = optimistix.fixed_point(
            lambda z, A: tanh_step(A, z, x), optimistix.FixedPointIteration(1e-13, 1e-13), jnp.zeros(8), A
        )
        return jnp.sum(found.value**2)

    found = jax.grad(lambda A: jnp.sum(solve(tanh_step, A, x, 8, tol=1e-11)[0] ** 2))(A)
    assert relative_error(found, jax.grad(peer)(A)) < 1e-8


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, unroll_jax as uj
step = lambda A, z, x: jnp.tanh(z @ A + x)
A, x = 0.3 * jnp.eye(8) + 0.02, jnp.arange(64.0).reshape(8, 8) / 64
def loss(A, x):
    y, info = uj.equilibrium(step, A, jnp.zeros_like(x), x, batch_ndim=1, tol=1e-6, on_failure="error")
    return jnp.sum(y ** 2), info
run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
"""


def in_a_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + code],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_gradients_are_the_same_under_the_next_custom_vjp():
    in_a_process(
        """
(g, _), _ = run(A, x)
h = jax.grad(lambda A: jnp.sum(jax.lax.scan(lambda z, _: (step(A, z, x), None), 0 * x, length=100)[0] ** 2))(A)
np.testing.assert_allclose(g, h, rtol=1e-4)
try:
    jax.jvp(jax.grad(lambda A: loss(A, x)[0]), (A,), (A,))
except TypeError as error:
    assert "forward_mode=True" in str(error), error
else:
    raise SystemExit("a second derivative came through")
""",
        JAX_CUSTOM_VJP3="1",
    )


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_a_batch_sharded_over_eight_devices_gives_the_same_gradient(axis_type):
    in_a_process(
        """
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.AXIS_TYPE,))
rows = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
weights = jax.device_put(A, NamedSharding(mesh, PartitionSpec()))
(g, h), info = run(weights, rows)
assert len(h.sharding.device_set) == 8 and info.converged.all()
for ours, theirs in zip((g, h), run(A, x)[0]):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
layer = uj.opteq(8, 24, 8)  # solved in a small space of its own
def layer_loss(params, x):
    return jnp.sum(uj.equilibrium(layer, params, jnp.zeros_like(x), x, tol=1e-6, on_failure="error")[0] ** 2)
params, run = layer.init(jax.random.key(0)), jax.jit(jax.grad(layer_loss, (0, 1)))
sharded = run(jax.device_put(params, NamedSharding(mesh, PartitionSpec())), rows)
for ours, theirs in zip(jax.tree.leaves(sharded), jax.tree.leaves(run(params, x))):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
""".replace("AXIS_TYPE", axis_type),
        XLA_FLAGS=os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8",
    )
