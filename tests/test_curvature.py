"""Extreme curvatures and norms against dense decompositions, and the smoothness that
certificates rest on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian, jax_array
from unroll_jax import certificates as certified
from unroll_jax.certificates.curvature import FAILURE_PROBABILITY, hessian_product
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, FeedForwardParams
from unroll_jax.energies.attention.heads import HeadsParams

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


def symmetric(rng, *shape):
    A = rng.normal(size=(*shape, shape[-1]))
    return A + A.mT


@pytest.mark.parametrize(
    ("batch", "d", "dtype"),
    [((), 1, "float64"), ((3,), 40, "float64"), ((2, 3), 5, "bfloat16")],
)
def test_the_curvature_of_a_quadratic_is_the_spectrum_s_ends(batch, d, dtype):
    A = symmetric(np.random.default_rng(0), *batch, d)

    @compiled
    def measure(matrix, y):
        energy = lambda y: 0.5 * jnp.einsum("...i,...ij,...j->...", y, matrix, y)
        return certified.curvature(energy, y)

    with jax.enable_x64(dtype == "float64"):
        wide = "float32" if dtype == "bfloat16" else "float64"
        extremes = measure(A.astype(wide), np.ones((*batch, d), jnp.dtype(dtype)))
        assert (extremes.largest.shape, extremes.largest.dtype) == (batch, wide)
    values = np.linalg.eigvalsh(A)
    tolerance = {"rtol": 0.0, "atol": (1e-12 if dtype == "float64" else 2e-5) * d}
    assert_allclose(extremes.smallest, values[..., 0], **tolerance)
    assert_allclose(extremes.largest, values[..., -1], **tolerance)
    # of rounding only
    assert float(extremes.error) < tolerance["atol"] * 10.0


def test_repeated_eigenvalues_a_flat_energy_and_a_pytree_of_states():
    """The iteration ends early without false zeros."""
    spectra = np.array([[2.0, 2.0, 2.0, 5.0, 5.0, 7.0], [0.0] * 6])

    def tree_energy(y):
        return (
            y["a"] ** 2
            + jnp.sum(jax_array([1.5, 4.0]) * y["b"] ** 2, -1)
            + y["a"] * y["b"][..., 0]
        )

    @compiled
    def measure(y, tree):
        extremes = certified.curvature(
            lambda y: jnp.sum(0.5 * spectra * y**2 + y, -1), y
        )
        return extremes, certified.curvature(tree_energy, tree)

    extremes, of_tree = measure(
        np.ones((2, 6)), {"a": np.zeros(3), "b": np.zeros((3, 2))}
    )
    assert_allclose([extremes.smallest[0], extremes.largest[0]], [2.0, 7.0], rtol=1e-12)
    assert_array_equal([extremes.smallest[1], extremes.largest[1]], [0.0, 0.0])
    ends = np.linalg.eigvalsh([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 8.0]])[
        [0, -1]
    ]
    assert_allclose(
        [of_tree.smallest, of_tree.largest], np.outer(ends, np.ones(3)), rtol=1e-12
    )


def test_the_true_ends_lie_within_the_error():
    """On the spectra hardest for Lanczos, Chebyshev nodes and evenly spaced values,
    and on a random one."""
    d, steps = 300, 50
    rng = np.random.default_rng(1)
    spectra = np.stack(
        [
            np.cos(np.pi * (np.arange(d) + 0.5) / d),
            np.linspace(0, 1, d),
            rng.normal(size=d),
        ]
    )
    # A share e of the width is missed with this probability. The width seen is the true
    # one less e at either end.
    share = (np.log(1.648 * np.sqrt(d) / FAILURE_PROBABILITY) / (2 * steps - 1)) ** 2

    @compiled
    def run(spectrum, seed):
        key = jax.random.key(seed)
        energy = lambda y: 0.5 * jnp.sum(spectrum * y**2, -1)
        few = certified.curvature(energy, jnp.zeros((3, d)), num_steps=5, key=key)
        return (
            certified.curvature(energy, jnp.zeros((3, d)), num_steps=steps, key=key),
            few.error,
        )

    for seed in range(3):
        extremes, of_few = run(spectra, seed)
        assert 0.0 < extremes.error < 0.2
        seen = np.max(extremes.largest - extremes.smallest)
        assert_allclose(extremes.error, share * seen / (1.0 - 2.0 * share), rtol=1e-12)
        assert np.all(extremes.largest <= spectra.max(-1) + 1e-12)
        assert np.all(extremes.smallest >= spectra.min(-1) - 1e-12)
        assert np.all(extremes.largest + extremes.error >= spectra.max(-1))
        assert np.all(extremes.smallest - extremes.error <= spectra.min(-1))
        assert of_few == np.inf


def test_curvature_is_that_of_the_dense_hessian():
    """Of attention, whose Hessian is indefinite, and of a custom gradient rule."""
    layer = uj.attention(form="softmax")

    @jax.custom_vjp
    def energy(y):
        return layer.energy(AttentionParams(None), y, None)

    energy.defvjp(lambda y: (energy(y), y), lambda y, g: (g * slope(y),))
    slope = jax.grad(lambda y: layer.energy(AttentionParams(None), y, None))
    y, v = 1.5 * gaussian(2, 4, 3, seed=2)

    @compiled
    def measure(y, v):
        dense = jax.jacobian(slope)(y).reshape(12, 12)
        return certified.curvature(energy, y), hessian_product(energy, y, v), dense

    extremes, product, dense = measure(y, v)
    ends = np.linalg.eigvalsh(dense)[[0, -1]]
    assert ends[0] < 0.0 < ends[1]
    assert_allclose([extremes.smallest, extremes.largest], ends, atol=1e-10)
    assert_allclose(product.ravel(), dense @ v.ravel(), atol=1e-12)


def test_the_feedforward_smoothness_is_the_largest_eigenvalue():
    rng = np.random.default_rng(3)
    y = np.ones((2, 5, 4))

    @compiled
    def smoothness(params, y):
        return certified.quadratic_smoothness(uj.feedforward(4).energy)(params, y, None)

    for W_f in (rng.normal(size=(4, 4)), -3.0 * np.eye(4)):
        expected = np.abs(np.linalg.eigvalsh(0.5 * (W_f + W_f.T) + np.eye(4))).max()
        assert_allclose(
            smoothness(FeedForwardParams(W_f), y), [expected] * 2, rtol=1e-10
        )


GRAPH = np.abs(np.arange(6)[:, None] - np.arange(6)) == 1


def test_the_pairwise_smoothness_of_graphs_heads_and_absent_tokens():
    smoothness = certified.pairwise_smoothness()
    of_graph = certified.pairwise_smoothness(mask=GRAPH)
    rng = np.random.default_rng(6)
    W_a = rng.normal(size=(2, 3, 2)).astype(np.float32)
    y = rng.normal(size=(4, 6, 3)).astype(np.float32)
    padded = np.where(np.arange(6)[:, None] < 4, y, np.nan)

    @compiled
    def measure(W_a, y, padded):
        one = AttentionParams(W_a[0])
        each = jax.vmap(lambda W: smoothness(AttentionParams(W), y, None))(W_a)
        with_padding = smoothness(
            one, padded, Anchor(None, jnp.asarray(np.arange(6) < 4))
        )
        present = smoothness(one, y[:, :4], None)
        return (
            of_graph(one, y, None),
            each,
            smoothness(HeadsParams(W_a), y, None),
            with_padding,
            present,
        )

    actual, each, together, with_padding, present = measure(W_a, y, padded)
    z = y @ W_a[0]
    gamma = GRAPH * np.exp(-0.5 * np.sum((z[:, :, None] - z[:, None]) ** 2, axis=-1))
    expected = np.linalg.norm(W_a[0], 2) ** 2 * np.minimum(
        2.0 * gamma.sum(-1).max(-1), 6.0
    )
    # the norm of W_a is bounded from above
    assert_allclose(actual, expected, rtol=0.03)
    assert np.all(actual < each[0])
    assert_allclose(together, np.sum(each, axis=0), rtol=1e-5)
    assert_allclose(with_padding, present, rtol=1e-5)


@nightly
def test_the_pairwise_smoothness_bounds_attention_energies_from_any_point():
    """f(Y') is at most f(Y) + grad f(Y) (Y' - Y) + L(Y) |Y' - Y|^2 / 2, near and
    far."""
    rng = np.random.default_rng(4)
    W_a = rng.normal(size=(3, 2))
    start = rng.normal(size=(300, 6, 3)) * 10.0 ** rng.uniform(-1.5, 1.0, (300, 1, 1))
    step = rng.normal(size=(300, 6, 3)) * 10.0 ** rng.uniform(-2, 1.5, (300, 1, 1))
    cases = {
        "plain": ("softmax", {}),
        **{rho: (rho, {"mask": GRAPH, "ridge": 0.7}) for rho in uj.RHOS},
    }

    def check(rho, options, params, start, step):
        layer = uj.attention(rho=rho, dim=3, rank=2, **options)
        energy = lambda y: layer.energy(params, y, None)
        L = certified.pairwise_smoothness(rho=rho, **options)(params, start, None)
        before, pull = jax.vjp(energy, start)
        slope = jnp.sum(pull(jnp.ones_like(before))[0] * step, (-2, -1))
        return (
            energy(start + step) - before,
            slope + 0.5 * L * jnp.sum(step**2, (-2, -1)),
            L,
        )

    @compiled
    def every(*arrays):
        return {name: check(*case, *arrays) for name, case in cases.items()}

    results = every(AttentionParams(W_a), start, step)
    for name, (change, bound, L) in results.items():
        assert L.shape == (300,), name
        assert np.all(change <= bound + 1e-9 * (1.0 + np.abs(bound))), name
    # Near for tokens that meet, far below the bound that holds everywhere for tokens
    # far apart.
    L = results["plain"][2]
    everywhere = 6 * np.linalg.norm(W_a, 2) ** 2
    assert np.all(everywhere * 1.001 >= L)
    assert np.min(L) < 1e-3 * everywhere < 0.5 * everywhere < np.max(L)


def test_curvatures_of_any_size_lie_within_the_error():
    """Small ones with a large one, and squares out of the range of float32."""
    spectra = np.array([[1e6, 1.0, -10.0], [1e6, 1e3, -1e3], [1.0, 0.01, -0.1]])
    sizes = np.array([1e-30, 1e-20, 1.0, 1e20, 1e30])

    @compiled
    def measure(d):
        energy = lambda y: 0.5 * jnp.sum(d * y**2)
        return certified.curvature(energy, jnp.zeros_like(d), num_steps=3)

    for dtype in (np.float32, np.float64):
        for spectrum in (*spectra, *np.outer(sizes, spectra[-1])):
            ours = measure(spectrum.astype(dtype))
            error = ours.error.astype(float)
            assert abs(ours.smallest - spectrum.min()) <= error, spectrum
            assert abs(ours.largest - spectrum.max()) <= error, spectrum
            assert error <= 30 * np.finfo(dtype).eps * spectrum.max(), spectrum
