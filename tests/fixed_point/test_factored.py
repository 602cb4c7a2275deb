"""Layers that are solved in their small space: inputs that broadcast, sizes far from 1, examples that go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, relative_error, symmetric_weights
from unroll_jax.energies import Monotone
from unroll_jax.fixed_point import ConvergenceError, zero_probe


def layer_of(dim, width, square=0.9, activation="relu", dtype=jnp.float32, **options):
    W, U = symmetric_weights(dim, width, square=square, dtype=dtype)
    return uj.opteq(dim, width, 3, activation=activation, **options), uj.OptEqParams(W, U, jnp.zeros(width, dtype))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(3,), (5, 3), (1, 5, 3), (2, 1, 3)])
def test_an_input_may_broadcast_over_some_batch_axes(shape):
    layer, params = layer_of(8, 12, dtype=jnp.float64)
    x, start = inputs(*shape), jnp.zeros((2, 5, 8))
    z, _ = uj.equilibrium(layer, params, start, x, tol=1e-12)
    whole, _ = uj.equilibrium(layer, params, start, jnp.broadcast_to(x, (2, 5, 3)), tol=1e-12)
    np.testing.assert_allclose(z, whole, atol=1e-10)
    np.testing.assert_allclose(z, layer.step(params, z, x), atol=1e-10)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_size_of_the_state_changes_neither_the_steps_nor_the_answer(size):
    """relu is positively homogeneous; squares of these sizes are outside float32's range."""
    layer, params = layer_of(8, 12)
    x = inputs(6, 3, dtype=jnp.float32)
    run = jax.jit(lambda x: uj.equilibrium(layer, params, jnp.zeros((6, 8)), x, tol=1e-6, on_failure="error"))
    (z, info), (far, its) = run(x), run(x * size)
    assert relative_error(np.asarray(far, np.float64) / size, z) < 1e-5
    assert jnp.abs(info.steps - its.steps).max() <= 2


@pytest.mark.parametrize(("dim", "width"), [(8, 12), (12, 48)])
def test_a_nan_in_one_example_reaches_no_other(dim, width):
    """With slow systems, so that the matrix which all examples share is at work; tanh has no slope at NaN."""
    layer, params = layer_of(dim, width, square=0.9999, activation="tanh")
    clean = 3.0 * inputs(16, 3, dtype=jnp.float32)

    @jax.jit
    def gradient(x):
        return jax.grad(
            lambda x: jnp.sum(uj.equilibrium(layer, params, jnp.zeros((16, dim)), x, on_failure="accept")[0] ** 3)
        )(x)

    others = np.delete(np.arange(16), 1)
    expected, found = gradient(clean), gradient(clean.at[1].set(jnp.nan))
    assert jnp.isnan(found[1]).any()
    assert relative_error(found[others], expected[others]) < 1e-3


def test_a_slope_that_rounding_leaves_below_0_counts_as_0():
    wobbly = Monotone(lambda t: jnp.where(t > 0.0, t, -1e-12 * t), lambda t: 0.5 * jax.nn.relu(t) ** 2)
    layer, params = layer_of(8, 12, activation=wobbly)
    z, _ = uj.equilibrium(layer, params, jnp.zeros((5, 8)), inputs(5, 3, dtype=jnp.float32), on_failure="error")
    relu, _ = layer_of(8, 12)
    exact, _ = uj.equilibrium(relu, params, jnp.zeros((5, 8)), inputs(5, 3, dtype=jnp.float32), on_failure="error")
    assert relative_error(z, exact) < 1e-4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rows", [1, 5])
def test_a_layer_without_an_equilibrium_says_so_at_little_cost(rows):
    """|W|^2 = 4: the systems are indefinite, and conjugate gradients that see it end there."""
    layer, params = layer_of(30, 30, square=4.0, dtype=jnp.float64, allow_expansive=True)
    x = inputs(rows, 3)
    _, info = uj.equilibrium(layer, params, jnp.zeros((rows, 30)), x, max_steps=50, on_failure="accept")
    assert not info.converged.any()
    assert int(info.steps.max()) < 50 * 20
    with pytest.raises(
        ConvergenceError, match=r"reached max_steps.* keep \|W\| < 1 \(certificates.spectral_normalise\)"
    ):
        uj.equilibrium(layer, params, jnp.zeros((rows, 30)), x, max_steps=50, on_failure="error")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dim", "width", "rows"), [(8, 12, 5), (12, 48, 5), (8, 12, 1)])
def test_the_cap_of_adjoint_steps_holds_and_an_adjoint_that_it_cuts_short_says_so(dim, width, rows):
    layer, params = layer_of(dim, width, square=0.99, activation="tanh", dtype=jnp.float64)
    x = inputs(rows, 3)

    def gradient(limit, on_failure="accept"):
        def loss(probe):
            options = {"adjoint_tol": 1e-9, "adjoint_max_steps": limit, "on_failure": on_failure, "probe": probe}
            return jnp.sum(uj.equilibrium(layer, params, jnp.zeros((rows, dim)), x, tol=1e-9, **options)[0])

        return jax.block_until_ready(jax.jit(jax.grad(loss))(zero_probe(rows)))

    cut, whole = gradient(1), gradient(200)
    assert (cut.steps <= 1).all()
    assert (cut.residual > 1e-9).all()
    assert not cut.converged.any()
    assert (whole.steps > 1).all()
    assert whole.converged.all()
    message = f"adjoint of equilibrium: {rows} of {rows} examples failed .*reached max_steps.*raise adjoint_max_steps"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        gradient(1, "error")


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("size", [1e-12, 1e-30])
def test_a_tiny_cotangent_keeps_its_accuracy(size):
    layer, params = layer_of(8, 12, square=0.99)
    x = inputs(4, 3, dtype=jnp.float32)

    @jax.jit
    def both(x):
        z, pull = jax.vjp(lambda x: uj.equilibrium(layer, params, jnp.zeros((4, 8)), x, tol=1e-6)[0], x)
        return pull(jnp.ones_like(z))[0], pull(jnp.full_like(z, size))[0]

    full, tiny = both(x)
    assert relative_error(np.asarray(tiny, np.float64) / size, full) < 1e-5


def test_products_are_in_full_precision_unless_the_user_says_otherwise():
    """What GPUs and TPUs do to float32 by default leaves three digits, and no usual tolerance could be met."""
    layer, params = layer_of(8, 12)
    conv = uj.opteq_conv(2, 3)
    z, images = jnp.zeros((4, 8)), jnp.zeros((2, 5, 5, 2))

    def program(layer, params, z):
        loss = lambda params: jnp.sum(uj.equilibrium(layer, params, z)[0] ** 2)  # noqa: E731
        return jax.jit(jax.grad(loss)).lower(params).as_text()

    def counts(text):
        lines = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
        return len(lines), sum("HIGHEST" in line for line in lines)

    for case in ((layer, params, z), (conv, conv.init(jax.random.key(0)), images)):
        found, highest = counts(program(*case))
        assert found == highest > 0
        with jax.default_matmul_precision("tensorfloat32"):
            assert counts(program(*case)) == (found, 0)
