"""Norms and radii by vector products, and their consequences for equilibria."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies import opteq_reference as reference
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax import certificates, spectral
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
IMAGE = (6, 5)


@compiled
def norm_slope_and_unit(v):
    """Of each row. The slope of a sum of norms is the unit vector."""
    norms = lambda v: spectral.norm(v, 1)
    return norms(v), jax.grad(lambda v: jnp.sum(norms(v)))(v), spectral.unit(v, 1)


def test_norms_and_their_gradients_hold_over_all_magnitudes():
    """Squares of entries leave the range of float32 beyond 1e19 and below 1e-23."""
    rng = np.random.default_rng(7)
    sizes = 10.0 ** np.array([-36.0, -24.0, -20.0, -10.0, 0.0, 10.0, 19.0, 25.0, 37.0])
    a = np.float32(sizes[:, None] * rng.uniform(0.5, 1.0, (9, 5)))
    b = np.float32(sizes[:, None, None] * rng.uniform(0.5, 1.0, (9, 2, 3)))
    whole = np.concatenate([a, b.reshape(9, 6)], axis=1).astype(float)
    exact = np.linalg.norm(whole, axis=1)
    norms, *directions = norm_slope_and_unit({"a": a, "b": b})
    assert_allclose(norms, exact, rtol=1e-6)
    for each in directions:
        joined = np.concatenate([each["a"], each["b"].reshape(9, 6)], axis=1)
        assert_allclose(joined, whole / exact[:, None], rtol=1e-5)
    special = np.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0]], np.float32)
    norms, slope, unit = norm_slope_and_unit(special)
    assert_array_equal(norms, [0.0, np.inf, np.nan])
    assert_array_equal(unit[0], [0.0, 0.0])
    assert_array_equal(slope[0], [0.0, 0.0])


WIDE = gaussian(3, 8, seed=4)


def norm_and_bound(W, num_steps=500):
    norm = certificates.weight_norm(W, num_steps=num_steps)
    return norm, certificates.weight_norm_bound(W)


@compiled
def numbers_and_slopes(W):
    """Both numbers, the slope of a norm of few steps, and both slopes."""
    early = jax.grad(lambda W: norm_and_bound(W, num_steps=2)[0])(W)
    return norm_and_bound(W), early, jax.jacrev(norm_and_bound)(W)


def test_the_norm_of_a_matrix_is_met_from_both_sides():
    others = [WIDE.T, np.array([[-3.0]])]
    bounds = compiled(lambda others: list(map(norm_and_bound, others)))(others)
    bounds.append(numbers_and_slopes(WIDE)[0])
    for W, (norm, bound) in zip([*others, WIDE], bounds, strict=True):
        true = np.linalg.norm(W, 2)
        assert 0.999 * true <= norm <= true * (1.0 + 1e-12)
        assert true * (1.0 - 1e-12) <= bound <= 1.001 * true
    assert_array_equal(numbers_and_slopes(np.zeros((3, 8)))[0], 0.0)


def test_the_norm_of_a_convolution_is_met_from_both_sides():
    """Also where images of its size lack frequencies: differences of neighbours, in
    rows of three pixels."""
    rng = np.random.default_rng(1)
    difference = np.zeros((3, 3, 2, 4))
    difference[1, 1:, 0, 0] = 1.0, -1.0

    @functools.partial(compiled, static_argnums=1)
    def measure(W, image):
        bounds = [certificates.weight_norm_bound(W, image) for image in (image, (9, 8))]
        return certificates.weight_norm(W, image, num_steps=500), *bounds

    cases = [
        (rng.normal(size=(5, 3, 3, 1)), IMAGE),
        (rng.normal(size=(3, 3, 2, 4)), (6, 3)),
        (difference, (6, 3)),
    ]
    for W, image in cases:
        true = np.linalg.norm(reference.conv_matrix(W, image), 2)
        norm, bound, of_larger = map(float, measure(W, image))
        assert 0.999 * true <= norm <= true * (1.0 + 1e-12)
        assert true <= bound <= 1.35 * true  # small images: most pixels are at the edge
        assert of_larger >= true
    assert true == pytest.approx(2.0 * np.cos(np.pi / 7.0))
    assert bound <= 2.0


def test_the_gradient_of_a_norm_is_of_singular_vectors():
    left, _, right = np.linalg.svd(WIDE)
    _, early, late = numbers_and_slopes(WIDE)
    for slope in late:
        assert_allclose(slope, np.outer(left[:, 0], right[0]), atol=2e-3)
    assert np.all(np.isfinite(numbers_and_slopes(np.zeros((3, 8)))[2]))
    # After few steps too it is u v^T of one pair, for it does not pass through the
    # steps.
    assert_allclose(np.linalg.svd(early)[1], [1.0, 0.0, 0.0], atol=1e-12)
    assert np.max(np.abs(early - np.outer(left[:, 0], right[0]))) > 0.01


def test_maps_of_pytrees_have_one_norm_and_radius_an_example():
    gains = np.array([[0.5, 0.8], [2.0, 0.3], [1.0, 0.0]])

    def swap(v):
        return (
            gains[:, 1, None] * v[1].sum(-1),
            gains[:, 0, None, None] * v[0][..., None],
        )

    @compiled
    def measure():
        zeros = jnp.zeros((3, 4)), jnp.zeros((3, 4, 1))
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), zeros
        )
        return (
            certificates.spectral_norm(swap, like, batch_ndim=1, num_steps=300),
            certificates.jacobian_radius(swap, zeros, batch_ndim=1),
        )

    norm, radius = measure()
    assert_allclose(norm, gains.max(axis=1), rtol=1e-6)
    assert_allclose(radius, np.sqrt(gains.prod(axis=1)), rtol=1e-12)


def test_radii_grow_by_norms_where_a_rayleigh_quotient_is_wrong():
    # the quotient of a unit vector is 0.45
    turn = 0.9 * np.array([[0.5, -np.sqrt(0.75)], [np.sqrt(0.75), 0.5]])
    shear = np.array([[0.5, 30.0], [0.0, 0.4]])  # far from normal: the norm is 30
    nilpotent = np.array([[0.0, 1.0], [0.0, 0.0]])
    measure = compiled(
        jax.vmap(
            lambda matrix: certificates.jacobian_radius(
                lambda v: matrix @ v, jnp.ones(2)
            )
        )
    )
    of_turn, of_shear, of_nilpotent = map(
        float, measure(np.stack([turn, shear, nilpotent]))
    )
    assert of_turn == pytest.approx(0.9, abs=1e-12)
    assert of_shear == pytest.approx(0.5, abs=1e-6)
    assert of_nilpotent == 0.0


def test_the_penalty_is_the_mean_square_of_jacobians():
    matrices = gaussian(2, 3, 4, 4, seed=5)

    @compiled
    def penalty():
        step = lambda z: jnp.einsum("...ij,...j->...i", matrices, z)
        key = jax.random.key(0, impl="rbg")
        return certificates.jacobian_penalty(
            step, jnp.ones((2, 3, 4)), key, num_probes=4000, batch_ndim=2
        )

    expected = np.sum(matrices**2, axis=(-2, -1)) / 4
    assert_allclose(penalty(), expected, rtol=0.1)


def test_the_penalty_is_differentiable_in_the_parameters():
    W = gaussian(4, 4, seed=6)

    @compiled
    def gradient_and_probe(W):
        key = jax.random.key(0)
        penalty = lambda W: certificates.jacobian_penalty(
            lambda z: W @ z, jnp.ones(4), key
        )
        return jax.grad(penalty)(W), jax.random.normal(key, (1, 4), jnp.float64)[0]

    gradient, v = gradient_and_probe(W)
    assert_allclose(gradient, 2.0 * np.outer(v, W.T @ v) / 4.0, rtol=1e-12)


def test_normalised_convolutions_keep_to_their_bound():
    W = gaussian(3, 3, 2, 4, seed=3)
    small = W * 1e-2

    @compiled
    def normalise(W):
        def scaled(W, certified):
            options = {"bound": 0.8, "image_shape": IMAGE, "num_steps": 200}
            params = certificates.spectral_normalise(
                OptEqParams(W, None, None), certified=certified, **options
            )
            return jnp.sum(params.W**3), params.W

        return [jax.grad(scaled, has_aux=True)(W, kind) for kind in (False, True)]

    kinds = {"estimated": 1e-3, "certified": 1e-12}
    results = zip(kinds.items(), normalise(W), normalise(small), strict=True)
    for (kind, rounding), (gradient, scaled), (_, kept) in results:
        norm = np.linalg.norm(reference.conv_matrix(scaled, IMAGE), 2)
        assert 0.6 <= norm <= 0.8 * (1.0 + rounding), kind
        assert_array_equal(kept, small, err_msg=kind)
        # scaling W changes nothing
        assert_allclose(np.sum(gradient * W), 0.0, atol=1e-3, err_msg=kind)
        assert np.all(np.isfinite(gradient)), kind


def test_what_is_not_a_number_has_no_number():
    """Above all no rate, no bound and no curvature that looks like one."""
    nan = np.nan
    params = OptEqParams(np.full((2, 2), np.nan, np.float32), None, None)

    @compiled
    def numbers(nan, params):
        f = lambda y: nan * jnp.sum(y**2)
        curvature = certificates.curvature(f, jnp.ones(3))
        return {
            "picard_steps": [
                certificates.picard_steps(*c, 1e-3) for c in ((nan, 1.0), (0.5, nan))
            ],
            "error_bound": [
                certificates.error_bound(*c)
                for c in ((nan, 1.0), (nan, 0.0), (0.5, nan), (1.5, nan))
            ],
            "contraction": (
                certificates.contraction_bound(params),
                certificates.equilibrium_lipschitz(params),
            ),
            "norms": (
                certificates.weight_norm(params.W),
                certificates.weight_norm_bound(params.W),
            ),
            "radius": certificates.jacobian_radius(lambda z: nan * z, jnp.ones(2)),
            "curvature": (curvature.smallest, curvature.largest),
            "ratio": certificates.gradient_ratio(
                lambda y: jnp.sum(y**2), f, jnp.zeros(3)
            ),
        }

    for name, values in numbers(nan, params).items():
        assert np.all(np.isnan(jax.tree.leaves(values))), name


def test_norms_of_weights_of_low_precision_are_those_of_float32():
    W = gaussian(30, 12, seed=7)
    narrow = [W.astype(dtype) for dtype in (jnp.bfloat16, np.float16)]
    norms = compiled(lambda every: [certificates.weight_norm(W) for W in every])(narrow)
    for W, norm in zip(narrow, norms, strict=True):
        name = str(W.dtype)
        assert norm.dtype == np.float32, name
        expected = np.linalg.norm(W.astype(float), 2)
        assert_allclose(norm, expected, rtol=1e-5, err_msg=name)
