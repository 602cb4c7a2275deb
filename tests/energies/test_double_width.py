"""Networks of asymmetric, layer-dependent weights inside one symmetric layer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests import reference
from tests.marks import in_float64, nightly
from unroll_jax.energies.double_width import AsymmetricLayer, symmetric_embedding

# arrays are float64 unless a test says otherwise
pytestmark = [nightly, in_float64]
N = 6
PHIS = {"relu": lambda y: np.maximum(y, 0.0), "identity": lambda y: y}


def network(rng, dims):
    """Layers that keep their outputs of order one, far from symmetric, each with its
    own widths and attention."""
    return [
        AsymmetricLayer(
            rng.normal(size=(d, rng.integers(1, 4))),
            rng.uniform(-0.5, 1.0, size=(d, e)) * 3.0 / d,
        )
        for d, e in itertools.pairwise(dims)
    ]


def reference_output(layers, y, *, phi="relu", form="softmax", graph=None):
    for W_a, W in layers:
        y = PHIS[phi](reference.pair_step(y, form=form, W_a=W_a, graph=graph) @ W)
    return y


def simulate(layers, y, contractions=(None,), **options):
    wides = [
        symmetric_embedding(layers, contraction=contraction, **options)
        for contraction in contractions
    ]

    @jax.jit  # the contraction affects only the parameters
    def run(params, y):
        start = wides[0].embed(y)
        _, states = jax.lax.scan(
            lambda y, _: [wides[0].descent.step(params, y)] * 2,
            start,
            length=len(layers),
        )
        return jnp.concatenate([start[None], states])

    states = [np.asarray(run(wide.params, y)) for wide in wides]
    return [
        (wide, trajectory, wide.readout(trajectory[-1]))
        for wide, trajectory in zip(wides, states, strict=True)
    ]


@pytest.mark.parametrize(("form", "phi"), [("softmax", "relu"), ("jacobi", "identity")])
def test_two_asymmetric_layers_are_two_steps_of_one_symmetric_layer(form, phi):
    rng = np.random.default_rng(0)
    graph = reference.random_graph(rng, N, 0.7)
    layers = network(rng, [3, 4, 3])
    y = 6.0 * rng.uniform(size=(N, 3))
    expected = reference_output(layers, y, phi=phi, form=form, graph=graph)
    # tokens differ still: attention has not made them one
    assert np.max(np.ptp(expected, axis=0)) > 0.1
    # with two layers nothing that flows back is seen in time
    contractions = (None, 0.5, 1e-2)
    for wide, _, actual in simulate(
        layers, y, contractions, phi=phi, form=form, mask=graph, dtype=jnp.float64
    ):
        assert_allclose(actual, expected, atol=1e-14, rtol=1e-12)
        assert_array_equal(wide.params.W_f, np.asarray(wide.params.W_f).T)


@pytest.mark.parametrize(
    ("depth", "dtype", "rtol", "atol"),
    [
        (1, np.float64, 1e-12, 1e-12),
        (10, np.float64, 1e-12, 1e-12),
        (5, np.float32, 1e-5, 2e-6),
    ],
)
def test_networks_of_any_depth_and_widths_are_simulated(depth, dtype, rtol, atol):
    rng = np.random.default_rng(depth)
    layers = network(rng, rng.integers(2, 5, size=depth + 1))
    y = (6.0 * rng.uniform(size=(N, layers[0].W.shape[0]))).astype(dtype)
    [(wide, states, actual)] = simulate(layers, y, dtype=jnp.dtype(dtype))
    expected = reference_output(layers, y)
    size = np.max(np.abs(expected))
    assert_allclose(actual, expected, rtol=rtol, atol=atol * size)
    assert states.dtype == dtype
    widths = [*(len(W) for _, W in layers), layers[-1].W.shape[1]]
    assert states[0].shape == (N, sum(widths))
    assert_array_equal(states[0][:, y.shape[1] :], 0.0)
    # Each half lowers its part: attention always, a linear map of step size 1/2 where
    # that is at most 2 / L.
    assert 2.0 / (max(np.linalg.eigvalsh(wide.params.W_f)[-1], 0.0) + 1.0) >= 0.5


def test_three_layers_echo_unless_the_blocks_shrink():
    rng = np.random.default_rng(1)
    layers = network(rng, [3, 3, 3, 3])
    y = 6.0 * rng.uniform(size=(N, 3))
    expected = reference_output(layers, y)
    outputs = [
        output for *_, output in simulate(layers, y, (0.5, 0.05), dtype=jnp.float64)
    ]
    errors = np.max(np.abs(np.array(outputs) - expected), axis=(1, 2))
    assert errors[0] > 1e-6
    # 10^-4 for a tenth of the ratio, but ratios are rounded to powers of 2
    assert errors[1] < 1e-2 * errors[0]
