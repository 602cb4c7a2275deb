"""Where numbers were wrong without a word: no fixed point, slow progress in few digits, and the largest floats."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.fixed_point import STATUS, unrolled, zero_probe
from unroll_jax.fixed_point.flat_states import norm

pytestmark = pytest.mark.usefixtures("unchecked")

CONVERGED, STALLED, MAX_STEPS = (
    STATUS.index(name) for name in ("converged", "stalled at round-off", "reached max_steps")
)


def drifting(p, z, x):
    """Has no fixed point: f(z) - z is at least p."""
    return z + jax.nn.softplus(-z) + p


@pytest.mark.parametrize("solver", ["anderson", "picard", "damped"])
def test_a_map_without_a_fixed_point_does_not_converge(solver):
    options = {"batch_ndim": 1, "solver": solver, "on_failure": "accept"}
    solve = jax.jit(lambda drift, z: uj.equilibrium(drifting, drift, z, **options)[1])
    for drift, start in ((0.1, 0.0), (0.1, 3.0), (0.005, 0.0), (0.001, 0.0)):
        info = solve(drift, np.full((2, 3), start, np.float32))
        assert not np.any(info.converged), (solver, drift, start)
        assert np.all(info.residual > 1e-5)


@pytest.mark.slow
def test_an_unrolled_map_without_a_fixed_point_does_not_converge():
    options = {"batch_ndim": 1, "adjoint": unrolled(40), "solver": "anderson", "on_failure": "accept"}
    assert not np.any(uj.equilibrium(drifting, 0.1, np.zeros((2, 3), np.float32), **options)[1].converged)


@pytest.mark.slow
def test_a_layer_of_norm_one_that_drifts_does_not_converge():
    """relu(z + 0.1) in OptEq's own small space: nonexpansive, and without a fixed point."""
    layer = uj.opteq(1, 1, 1)
    params = layer.init(jax.random.key(0))._replace(
        W=np.ones((1, 1), np.float32), U=np.ones((1, 1), np.float32), b=np.zeros(1, np.float32)
    )
    x = np.full((2, 1), 0.1, np.float32)
    _, info = uj.equilibrium(layer, params, np.zeros((2, 1), np.float32), x, on_failure="accept")
    assert not np.any(info.converged)


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_states_may_grow_from_tiny_ones_and_shrink_from_large_ones(start):
    """tanh(2 z) leaves the unstable 0 for 0.957504, the root of z = tanh(2 z)."""
    z, info = uj.equilibrium(
        lambda p, z, x: jnp.tanh(2 * z), None, np.full((1, 3), start, np.float32), solver="picard", batch_ndim=1
    )
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 0.95750402, rtol=1e-4)


def test_a_warm_start_at_the_fixed_point_converges_at_once():
    step = lambda p, z, x: 0.5 * z + 1.0  # noqa: E731
    z, info = uj.equilibrium(step, None, np.full((1, 3), 2.0, np.float32), batch_ndim=1)
    assert np.all(info.status == CONVERGED)
    np.testing.assert_array_equal(z, 2.0)


def slow(p, z, x):
    """Contracts by p a step, towards 1 / (1 - p)."""
    return p * z + 1


@pytest.mark.parametrize("adjoint", ["gmres", "unrolled"])
def test_bfloat16_that_is_cut_off_on_its_way_has_not_stalled(adjoint):
    p, start = jnp.asarray(0.95, jnp.bfloat16), np.zeros((1, 3), jnp.bfloat16)
    way = unrolled(10) if adjoint == "unrolled" else adjoint
    options = {"batch_ndim": 1, "solver": "picard", "on_failure": "accept", "adjoint": way}
    z, info = uj.equilibrium(slow, p, start, max_steps=10, **options)
    assert np.all(np.asarray(z, np.float32) < 10.0)  # the fixed point is 20
    assert np.all(info.status == MAX_STEPS)
    assert not np.any(info.converged)


def test_bfloat16_that_has_nowhere_to_go_converges():
    p, start = jnp.asarray(0.95, jnp.bfloat16), np.zeros((1, 3), jnp.bfloat16)
    z, info = uj.equilibrium(slow, p, start, batch_ndim=1, solver="picard", max_steps=200)
    assert np.all(info.converged)
    np.testing.assert_allclose(np.asarray(z, np.float32), 20.0, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ["conjugate_gradient", "gmres"])
def test_an_adjoint_that_is_cut_off_has_not_stalled(adjoint):
    """In bfloat16, whose round-off would explain the residual, but is not what four steps ended at."""
    slopes = jnp.asarray(np.linspace(0.0, 0.9, 64), jnp.bfloat16)
    step = lambda slopes, z, x: slopes * z + jnp.asarray(1, jnp.bfloat16)  # noqa: E731
    probe = zero_probe(1)

    def loss(slopes, probe):
        z, _ = uj.equilibrium(
            step,
            slopes,
            np.zeros((1, 64), jnp.bfloat16),
            batch_ndim=1,
            solver="anderson",
            adjoint=adjoint,
            adjoint_max_steps=4,
            on_failure="accept",
            probe=probe,
        )
        return jnp.sum(z.astype(jnp.float32))

    backward = jax.grad(loss, 1)(slopes, probe)
    assert 1e-4 < backward.residual[0] < 16 * jnp.finfo(jnp.bfloat16).eps
    assert backward.converged[0] == 0.0


def test_the_largest_floats_have_a_norm():
    z = np.array([[3e38, 0.0], [-8.6e37, 0.0], [3e-38, 4e-38], [0.0, 0.0], [1e20, 1e20]], np.float32)
    expected = np.linalg.norm(z.astype(np.float64), axis=1)
    np.testing.assert_allclose(jax.jit(norm)(z), expected, rtol=1e-6)
    assert np.isnan(norm(np.array([[np.nan, 1.0]], np.float32)))
    assert np.isinf(norm(np.array([[np.inf, 1.0]], np.float32)))


def test_an_equilibrium_of_the_largest_floats_is_found():
    step = lambda p, z, x: -0.5 * z + 1.5e38  # noqa: E731
    z, info = uj.equilibrium(step, None, np.zeros((1, 3), np.float32), batch_ndim=1, solver="picard")
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 1e38, rtol=1e-4)


def slowly(p, z, x):
    """Rows at their own rates p, and far apart in size."""
    return p * z + (1.0 - p) * x


RATES, TARGETS = np.array([[0.1], [0.99]], np.float32), np.array([[1e6] * 3, [0.1] * 3], np.float32)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_forgotten_batch_ndim_is_told_where_rows_are_far_from_their_fixed_points(transform):
    solve = transform(lambda x: uj.equilibrium(slowly, RATES, jnp.zeros_like(x), x, solver="picard"))

    def wait():
        jax.block_until_ready(solve(TARGETS))
        jax.effects_barrier()

    with pytest.warns(uj.fixed_point.ConvergenceWarning, match="batch_ndim was not given.* 1 of its 2 rows"):
        wait()


@pytest.mark.parametrize(
    "options", [{"batch_ndim": 0}, {"batch_ndim": 1, "max_steps": 3000}, {"on_failure": "accept"}], ids=str
)
def test_a_batch_ndim_that_is_given_says_nothing(options):
    with warnings.catch_warnings(record=True) as told:
        uj.equilibrium(slowly, RATES, np.zeros_like(TARGETS), TARGETS, solver="picard", **options)
    assert not told
