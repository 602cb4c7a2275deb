"""Steps on convex potentials against the published formula in float64 NumPy, and the
scaling that bounds their weights."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.energies import potential_reference as reference
from tests.energies.comparing import Case, assert_equal
from tests.energies.opteq_reference import conv_matrix
from tests.marks import in_float64
from tests.reference import compiled, jax_array
from unroll_jax.energies import (
    MONOTONES,
    ConvexPotentialParams,
    convex_potential,
    convex_potential_conv,
)
from unroll_jax.energies.convex_potential import potential_scaling

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
DIM = 4
WIDTH = 6
IMAGE = (5, 4)
# The factory, and the shapes of weights, states and hidden units.
KINDS = {
    "dense": (convex_potential, (WIDTH, DIM), (DIM,), WIDTH),
    "conv": (convex_potential_conv, (3, 3, 2, 5), (*IMAGE, 2), 5),
}
CASES = [("dense", name, 2.0, (2, 3)) for name in MONOTONES]
CASES += [
    ("conv", "relu", 2.0, (2,)),
    ("conv", "tanh", 0.7, ()),
    ("dense", "relu", 0.3, ()),
]


def drawn(kind, batch=(), **options):
    """A layer, its parameters and states."""
    make, shape, event, width = KINDS[kind]
    rng = np.random.default_rng(0)
    weights = (jax_array(rng.normal(size=each)) for each in (shape, width, width))
    z = jax_array(rng.normal(size=(*batch, *event)))
    return make(event[-1], width, **options), ConvexPotentialParams(*weights), z


def test_step_and_energy_equal_the_published_formula():
    cases = {}
    for case in CASES:
        kind, name, size, batch = case
        layer, params, z = drawn(kind, batch, activation=name, step_size=size)
        W, scaling = reference.matrix_and_scaling(params.W, params.log_q, IMAGE)
        rows = np.asarray(z).reshape(*batch, -1)
        given = rows, W, scaling, np.tile(params.b, len(W) // len(params.b))
        energy = reference.potential(*given, activation=name)
        step = rows - size * reference.gradient(*given, activation=name)
        cases[case] = Case(layer, params, z, None, energy, step.reshape(z.shape))
    assert_equal(cases, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scaling", ["gershgorin", "norm"])
@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_the_scaling_bounds_the_matrix_in_1000_draws(kind, scaling):
    """The largest eigenvalue of W^T T^-1 W is at most 1, of zero-padded convolutions as
    matrices. Random q over three orders of magnitude, W with nearly equal rows too."""
    rng = np.random.default_rng(1)
    draws = 1000 if scaling == "gershgorin" else 100
    shape, hidden = ((draws, 5, 4), 5) if kind == "dense" else ((draws, 3, 3, 2, 3), 3)
    W = rng.normal(size=shape) * rng.choice([0.0, 1.0], size=shape, p=[0.2, 0.8])
    W[: draws // 4] = np.abs(W[: draws // 4])
    log_q = rng.normal(size=(draws, hidden)) * rng.uniform(0.0, 3.0, (draws, 1))
    log_q = log_q if scaling == "gershgorin" else None

    def of_one(W, log_q):
        return potential_scaling(
            ConvexPotentialParams(W, jnp.zeros(hidden), log_q), IMAGE
        )

    T = compiled(jax.vmap(of_one))(W, log_q)
    shares = []
    for kernel, diagonal in zip(W, T, strict=True):
        matrix = kernel if kind == "dense" else conv_matrix(kernel, IMAGE)
        rows = np.tile(diagonal, len(matrix) // hidden)
        kept = rows > 0.0
        assert not np.any(matrix[~kept])
        shares.append(
            np.linalg.norm(matrix[kept] / np.sqrt(rows[kept])[:, None], 2) ** 2
        )
    assert np.max(shares) <= 1.0 + 1e-12
    assert np.max(shares) > (0.99 if scaling == "norm" and kind == "dense" else 0.7)


def test_the_float32_scaling_bounds_weights_of_every_size():
    """Products of weights near 1e-19 are subnormal, and e^-100 is 0 in float32."""
    rng = np.random.default_rng(7)
    sizes = 10.0 ** np.arange(-22.0, 9.0)
    W = np.concatenate(
        [
            sizes[:, None, None] * rng.normal(size=(31, 8, 8)),
            10.0 ** rng.uniform(-20.0, 3.0, (31, 8, 1)) * rng.normal(size=(31, 8, 8)),
        ]
    ).astype(np.float32)
    log_q = rng.uniform(0.0, 200.0, (62, 1)) * rng.uniform(size=(62, 8))
    params = ConvexPotentialParams(W, 0.0 * W[:, 0], log_q.astype(np.float32))
    T = np.asarray(compiled(jax.vmap(potential_scaling))(params), np.float64)
    assert np.all(np.isfinite(T))
    assert np.all(T[13:31] > 0.0)
    root = np.where(T > 0.0, np.maximum(T, 1e-300) ** -0.5, 0.0)
    gains = np.linalg.norm(root[:, :, None] * np.float64(W), 2, axis=(1, 2)) ** 2
    assert np.max(gains) <= 1.0 + 1e-6


def test_units_without_weights_have_no_effect_and_finite_gradients():
    layer, params, z = drawn("dense", (3,))
    small = convex_potential(DIM, 4)
    rest = np.array([0, 2, 3, 5])
    has_weights = np.isin(np.arange(WIDTH), rest)
    dead = params._replace(W=jax_array(np.asarray(params.W) * has_weights[:, None]))
    fewer = jax.tree.map(lambda leaf: jax_array(np.asarray(leaf)[rest]), dead)

    @compiled
    def run(dead, fewer, none):
        def value(params):
            stepped = layer.step(params, z)
            return jnp.sum(stepped**2), (stepped, layer.energy(params, z))

        of_small = small.step(fewer, z), small.energy(fewer, z)
        slope = jax.grad(value, has_aux=True)
        return slope(dead), of_small, slope(none)

    (of_dead, values), expected, (of_none, still) = run(
        dead, fewer, jax.tree.map(np.zeros_like, params)
    )
    chex.assert_trees_all_close(values, expected, rtol=1e-12)
    assert_array_equal(still[0], z)
    chex.assert_tree_all_finite((of_dead, of_none))


def test_weights_out_of_range_give_nan():
    """W W^T overflows beyond 1e19 in float32. Below 1e-19 a unit is as good as
    absent."""
    layer, params, z = drawn("dense", (2,))
    params, z = jax.tree.map(lambda leaf: jax_array(leaf, np.float32), (params, z))

    @compiled
    def step(scale):
        return layer.step(params._replace(W=scale * params.W), z)

    assert np.all(np.isnan(step(1e25)))
    assert_array_equal(step(1e-25), z)
    assert not np.array_equal(step(1e-10), z)
