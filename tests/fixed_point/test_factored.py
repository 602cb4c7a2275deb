"""Layers that are solved in their small space: inputs that broadcast, examples that
go wrong, precision."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.fixed_point.problems import factored_layer, finish, inputs, relative_error
from tests.marks import in_float64, nightly
from tests.reference import compiled
from unroll_jax.energies import Monotone
from unroll_jax.fixed_point import ConvergenceWarning


@nightly
@in_float64
def test_an_input_may_broadcast_over_some_batch_axes():
    layer, params = factored_layer(8, 12, dtype=jnp.float64)
    rows = [inputs(*shape) for shape in ((3,), (5, 3), (1, 5, 3), (2, 1, 3))]

    @compiled
    def run(params, rows):
        results = []
        for x in rows:
            z, _ = uj.equilibrium(layer, params, jnp.zeros((2, 5, 8)), x, tol=1e-12)
            whole = jnp.broadcast_to(x, (2, 5, 3))
            results.append((z, layer.step(params, z, whole)))
        return results

    for x, (z, again) in zip(rows, run(params, rows), strict=True):
        assert_allclose(z, again, atol=1e-10, err_msg=str(x.shape))


@nightly
def test_a_slope_that_rounding_leaves_below_0_counts_as_0():
    wobbly = Monotone(
        lambda t: jnp.where(t > 0.0, t, -1e-12 * t), lambda t: 0.5 * jax.nn.relu(t) ** 2
    )
    (layer, params), (other, _) = (
        factored_layer(8, 12, activation=activation) for activation in ("relu", wobbly)
    )
    x = inputs(5, 3, dtype=jnp.float32)

    def solved(layer):
        start = jnp.zeros((5, 8))
        return uj.equilibrium(layer, params, start, x, on_failure="error")[0]

    both = compiled(lambda: (solved(other), solved(layer)))
    assert relative_error(*both()) < 1e-4


@in_float64
@pytest.mark.parametrize("rows", [1, 5])
def test_a_layer_without_an_equilibrium_says_so_at_little_cost(rows):
    """|W|^2 = 4, in weights that are traced: the systems are indefinite. Conjugate
    gradients that see it end there."""
    layer, params = factored_layer(30, 30, square=4.0, dtype=jnp.float64)

    @compiled
    def run(params, x):
        start = jnp.zeros((rows, 30))
        _, info = uj.equilibrium(layer, params, start, x, max_steps=50)
        return info.converged, info.steps

    with pytest.warns(
        ConvergenceWarning, match="reached max_steps.*certificates.spectral_normalise"
    ):
        converged, steps = finish(run(params, inputs(rows, 3)))
    assert not np.any(converged)
    assert np.max(steps) < 50 * 20


@nightly
def test_products_are_in_full_precision_unless_the_user_says_otherwise():
    """By default GPUs and TPUs keep three digits of float32 products, too few for
    the usual tolerances."""
    layer, params = factored_layer(8, 12)
    conv = uj.opteq_conv(2, 3)
    z = np.zeros((4, 8), np.float32)
    images = np.zeros((2, 5, 5, 2), np.float32)

    def counts(layer, params, z):
        loss = lambda params: jnp.sum(uj.equilibrium(layer, params, z)[0] ** 2)
        text = jax.jit(jax.grad(loss)).lower(params).as_text()
        products = r".*(?:dot_general|stablehlo\.convolution).*"
        lines = re.findall(products, text)
        return len(lines), sum("HIGHEST" in line for line in lines)

    for case in (
        (layer, params, z),
        (conv, jax.eval_shape(conv.init, jax.random.key(0)), images),
    ):
        count, highest = counts(*case)
        assert count == highest > 0
        with jax.default_matmul_precision("tensorfloat32"):
            assert counts(*case) == (count, 0)
