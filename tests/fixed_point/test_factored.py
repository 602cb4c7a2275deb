"""Layers that are solved in their small space: inputs that broadcast, sizes far from 1, examples that go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import finish, inputs, relative_error, symmetric_weights
from unroll_jax.energies import Monotone
from unroll_jax.fixed_point import ConvergenceWarning, zero_probe


def layer_of(dim, width, square=0.9, activation="relu", dtype=jnp.float32, **options):
    W, U = symmetric_weights(dim, width, square=square, dtype=dtype)
    b = jnp.asarray(np.zeros(width), dtype)
    return uj.opteq(dim, width, 3, activation=activation, **options), uj.OptEqParams(W, U, b)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_an_input_may_broadcast_over_some_batch_axes():
    layer, params = layer_of(8, 12, dtype=jnp.float64)
    rows = [inputs(*shape) for shape in ((3,), (5, 3), (1, 5, 3), (2, 1, 3))]

    @jax.jit
    def run(params, rows):
        states = [uj.equilibrium(layer, params, jnp.zeros((2, 5, 8)), x, tol=1e-12)[0] for x in rows]
        return states, [layer.step(params, z, x) for z, x in zip(states, rows, strict=True)]

    whole = jax.jit(lambda params, x: uj.equilibrium(layer, params, jnp.zeros((2, 5, 8)), x, tol=1e-12)[0])
    for x, z, again in zip(rows, *run(params, rows), strict=True):
        np.testing.assert_allclose(z, whole(params, np.broadcast_to(x, (2, 5, 3))), atol=1e-10, err_msg=str(x.shape))
        np.testing.assert_allclose(z, again, atol=1e-10, err_msg=str(x.shape))


def test_the_size_of_the_state_changes_neither_the_steps_nor_the_answer():
    """relu is positively homogeneous; squares of these sizes are outside float32's range."""
    layer, params = layer_of(8, 12)
    x = np.asarray(inputs(6, 3, dtype=jnp.float32))
    options = {"tol": 1e-6, "on_failure": "error"}
    run = jax.jit(lambda params, x: uj.equilibrium(layer, params, jnp.zeros((6, 8)), x, **options))
    z, info = run(params, x)
    for size in (1e-25, 1e25):
        far, its = run(params, x * np.float32(size))
        assert relative_error(np.asarray(far, np.float64) / size, z) < 1e-5
        assert np.abs(np.asarray(info.steps) - np.asarray(its.steps)).max() <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "width"), [(8, 12), (12, 48)])
def test_a_nan_in_one_example_reaches_no_other(dim, width):
    """With slow systems, so that the matrix which all examples share is at work; tanh has no slope at NaN."""
    layer, params = layer_of(dim, width, square=0.9999, activation="tanh")
    clean = 3.0 * np.asarray(inputs(16, 3, dtype=jnp.float32))
    dirty = clean.copy()
    dirty[1] = np.nan

    @jax.jit
    def gradient(params, x):
        find = lambda x: uj.equilibrium(layer, params, jnp.zeros((16, dim)), x, on_failure="accept")[0]  # noqa: E731
        return jax.grad(lambda x: jnp.sum(find(x) ** 3))(x)

    expected, actual = (np.asarray(gradient(params, x)) for x in (clean, dirty))
    assert np.isnan(actual[1]).any()
    assert relative_error(np.delete(actual, 1, 0), np.delete(expected, 1, 0)) < 1e-3


@pytest.mark.slow
def test_a_slope_that_rounding_leaves_below_0_counts_as_0():
    wobbly = Monotone(lambda t: jnp.where(t > 0.0, t, -1e-12 * t), lambda t: 0.5 * jax.nn.relu(t) ** 2)
    layers = [layer_of(8, 12, activation=activation)[0] for activation in (wobbly, "relu")]

    @jax.jit
    def both(params, x):
        return [uj.equilibrium(layer, params, jnp.zeros((5, 8)), x, on_failure="error")[0] for layer in layers]

    assert relative_error(*both(layer_of(8, 12)[1], inputs(5, 3, dtype=jnp.float32))) < 1e-4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rows", [1, 5])
def test_a_layer_without_an_equilibrium_says_so_at_little_cost(rows):
    """|W|^2 = 4: the systems are indefinite, and conjugate gradients that see it end there."""
    layer, params = layer_of(30, 30, square=4.0, dtype=jnp.float64, allow_expansive=True)

    run = jax.jit(lambda params, x: uj.equilibrium(layer, params, jnp.zeros((rows, 30)), x, max_steps=50)[1])
    with pytest.warns(
        ConvergenceWarning, match=r"reached max_steps.* keep \|W\| < 1 \(certificates.spectral_normalise\)"
    ):
        info = finish(run(params, inputs(rows, 3)))
    assert not np.any(info.converged)
    assert int(np.max(info.steps)) < 50 * 20


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dim", "width", "rows"), [(8, 12, 5), (12, 48, 5), (8, 12, 1)])
def test_the_cap_of_adjoint_steps_holds_and_an_adjoint_that_it_cuts_short_says_so(dim, width, rows):
    layer, params = layer_of(dim, width, square=0.99, activation="tanh", dtype=jnp.float64)

    def gradient(params, x, limit, on_failure):
        def loss(probe):
            options = {"adjoint_tol": 1e-9, "adjoint_max_steps": limit, "on_failure": on_failure, "probe": probe}
            return jnp.sum(uj.equilibrium(layer, params, jnp.zeros((rows, dim)), x, tol=1e-9, **options)[0])

        return jax.grad(loss)(zero_probe(rows))

    run = jax.jit(lambda params, x: [gradient(params, x, *how) for how in ((1, "warn"), (200, "error"))])
    message = f"adjoint of equilibrium: {rows} of {rows} examples failed .*reached max_steps.*raise adjoint_max_steps"
    with pytest.warns(ConvergenceWarning, match=message):
        cut, whole = jax.tree.map(np.asarray, finish(run(params, inputs(rows, 3))))
    assert (cut.steps <= 1).all()
    assert (cut.residual > 1e-9).all()
    assert not cut.converged.any()
    assert (whole.steps > 1).all()
    assert whole.converged.all()


@pytest.mark.slow
def test_products_are_in_full_precision_unless_the_user_says_otherwise():
    """What GPUs and TPUs do to float32 by default leaves three digits, and no usual tolerance could be met."""
    layer, params = layer_of(8, 12)
    conv = uj.opteq_conv(2, 3)
    z, images = np.zeros((4, 8), np.float32), np.zeros((2, 5, 5, 2), np.float32)

    def counts(layer, params, z):
        loss = lambda params: jnp.sum(uj.equilibrium(layer, params, z)[0] ** 2)  # noqa: E731
        text = jax.jit(jax.grad(loss)).lower(params).as_text()
        lines = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
        return len(lines), sum("HIGHEST" in line for line in lines)

    for case in ((layer, params, z), (conv, jax.eval_shape(conv.init, jax.random.key(0)), images)):
        count, highest = counts(*case)
        assert count == highest > 0
        with jax.default_matmul_precision("tensorfloat32"):
            assert counts(*case) == (count, 0)
