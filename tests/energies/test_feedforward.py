"""The quadratic energy of a token's features and the layer that lowers it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import spence

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import FeedForwardParams, clip_spectrum
from unroll_jax.energies.proximal.activations import ACTIVATIONS

PROXES = {
    "identity": lambda y, step_size: y,
    "relu": lambda y, step_size: np.maximum(y, 0.0),
    "soft_threshold": lambda y, step_size: np.sign(y) * np.maximum(np.abs(y) - step_size, 0.0),
    "nonnegative_soft_threshold": lambda y, step_size: np.maximum(y - step_size, 0.0),
    "elastic_net": lambda y, step_size: np.sign(y) * np.maximum(np.abs(y) - step_size, 0.0) / (1.0 + step_size),
    "box": lambda y, step_size: np.clip(y, 0.0, 1.0),
    "group_shrinkage": lambda y, step_size: (
        y * np.maximum(1.0 - step_size / np.linalg.norm(y, axis=1, keepdims=True), 0.0)
    ),
    # By name, a layer applies an activation as it is, whatever its step size.
    "tanh": lambda y, step_size: np.tanh(y),
    "sigmoid": lambda y, step_size: 1.0 / (1.0 + np.exp(-y)),
    "softplus": lambda y, step_size: np.logaddexp(0.0, y),
    "leaky_relu": lambda y, step_size: np.where(y > 0.0, y, 0.01 * y),
}
# phi at step size 1 of entries between 0 and 1; those left out are 0 there.
PENALTIES = {
    "soft_threshold": lambda y: y.sum(),
    "nonnegative_soft_threshold": lambda y: y.sum(),
    "elastic_net": lambda y: y.sum() + 0.5 * (y**2).sum(),
    "group_shrinkage": lambda y: np.linalg.norm(y, axis=1).sum(),
    "tanh": lambda y: np.sum(0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y) - y**2)),
    "sigmoid": lambda y: np.sum(y * np.log(y) + (1.0 - y) * np.log(1.0 - y) - 0.5 * y**2),
    "softplus": lambda y: np.sum(spence(1.0 - np.exp(-y)) - np.pi**2 / 6.0),
}


def weights(seed, dim, low, high):
    """An asymmetric matrix whose symmetric part has eigenvalues spread over [low, high]."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    skew = rng.normal(size=(dim, dim))
    return basis * np.linspace(low, high, dim) @ basis.T + skew - skew.T


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("anchored", [False, True])
def test_energy_and_step_equal_the_reference(anchored):
    rng = np.random.default_rng(0)
    y, x, W_f = rng.uniform(size=(5, 4)), rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    anchor, table = x if anchored else None, list(itertools.product(uj.PROXIMALS, (0.1, 0.5, 2.0)))
    layers = [uj.feedforward(4, step_size=step_size, phi=phi) for phi, step_size in table]
    all_of = jax.jit(lambda *args: [(layer.energy(*args), layer.step(*args)) for layer in layers])
    for (phi, step_size), (energy, stepped) in zip(table, all_of(FeedForwardParams(W_f), y, anchor), strict=True):
        penalty = PENALTIES.get(phi, lambda y: 0.0)(y) / (step_size if phi in ACTIVATIONS else 1.0)
        expected = reference.feedforward_energy(y, W_f, anchor) + penalty
        np.testing.assert_allclose(energy, expected, rtol=1e-12, err_msg=f"{phi}, {step_size}")
        expected = reference.feedforward_step(y, W_f, anchor, step_size=step_size, prox=PROXES[phi])
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-14, err_msg=f"{phi}, {step_size}")


@pytest.mark.usefixtures("x64")
def test_without_phi_the_step_is_a_gradient_step():
    layer, rng = uj.feedforward(4, step_size=0.3), np.random.default_rng(2)
    params, y, x = FeedForwardParams(rng.normal(size=(4, 4))), *rng.normal(size=(2, 3, 5, 4))

    @jax.jit
    def step_and_gradient(params, y, x):
        return layer.step(params, y, x), jax.grad(lambda y: jnp.sum(layer.energy(params, y, x)))(y)

    stepped, gradient = step_and_gradient(params, y, x)
    np.testing.assert_allclose(stepped, y - 0.3 * gradient, rtol=1e-12)


SPECTRA = [(-3.0, -0.5), (-1.0, 1.0), (0.2, 9.0)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("phi", uj.PROXIMALS)
def test_a_step_of_at_most_one_over_the_smoothness_never_raises_the_energy(phi, dtype):
    """Negative, indefinite and positive W_f; 200 points over six orders of magnitude of scale."""
    scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
    y, x = (scales * np.random.default_rng(2).normal(size=(2, 200, 5, 4))).astype(dtype)
    params = FeedForwardParams(np.stack([weights(3, 4, *spectrum) for spectrum in SPECTRA]).astype(dtype))
    shares = (1.0, 0.1)

    @jax.jit
    def descend(params, y, x):
        """Each of the spectra with its two step sizes, which are numbers of a layer."""
        pairs = []
        for place, share in itertools.product(range(len(SPECTRA)), shares):
            layer = uj.feedforward(4, step_size=share / (max(0.0, SPECTRA[place][1]) + 1.0), phi=phi)
            layer_params = FeedForwardParams(params.W_f[place])
            start = layer.step(layer_params, y, x)  # a point where phi is finite
            pairs.append((start, layer.energy(layer_params, jnp.stack([start, layer.step(layer_params, start, x)]), x)))
        return pairs

    with jax.enable_x64(dtype == "float64"):
        arrays = [np.asarray(array, np.float64) for pair in descend(params, y, x) for array in pair]
    for i, (spectrum, share) in enumerate(itertools.product(SPECTRA, shares)):
        start, (before, after) = arrays[2 * i : 2 * i + 2]
        size = np.sum(start**2 + np.float64(x) ** 2, axis=(-2, -1))
        rounding = 30.0 * jnp.finfo(dtype).eps * (1.0 + spectrum[1] ** 2) * (1.0 + size)
        assert np.all(np.isfinite(before)), (spectrum, share)
        assert np.all(after <= before + rounding), (spectrum, share)


@pytest.mark.usefixtures("x64")
def test_a_step_beyond_two_over_the_smoothness_raises_the_energy():
    """Along the top eigenvector the gap to the minimum is multiplied by (1 - a L)^2 a step."""
    W_f, smoothness = weights(4, 4, 0.2, 3.0), 4.0
    top = np.linalg.eigh((W_f + W_f.T) / 2)[1][:, -1][None, :]
    layers = [uj.feedforward(4, step_size=step_size) for step_size in (1.9 / smoothness, 2.1 / smoothness)]

    @jax.jit
    def ratios(params, top):
        steps = [layer.step(params, top) for layer in layers]
        return [layers[0].energy(params, stepped) / layers[0].energy(params, top) for stepped in steps]

    np.testing.assert_allclose(ratios(FeedForwardParams(W_f), top), (0.81, 1.21), rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spectrum", [(-0.5, 0.3), (0.0, 0.95), (2.0, 3.0)], ids=str)
def test_a_clipped_spectrum_is_the_nearest_symmetric_matrix_in_the_interval(spectrum):
    """Against a decomposition of its own; nearest: the rest lies in the normal cone, which holds for no other."""
    W_f = weights(7, 5, -1.0, 4.0)
    symmetric = (W_f + W_f.T) / 2
    clipped = np.asarray(clip_spectrum(jnp.asarray(W_f), *spectrum))
    values = np.linalg.eigvalsh(clipped)
    assert values[0] >= spectrum[0] - 1e-12
    assert values[-1] <= spectrum[1] + 1e-12
    np.testing.assert_allclose(values, np.clip(np.linalg.eigvalsh(symmetric), *spectrum), atol=1e-12)
    for seed in range(20):
        other = weights(seed, 5, *spectrum)
        inner = np.sum((symmetric - clipped) * ((other + other.T) / 2 - clipped))
        assert inner <= 1e-12
    np.testing.assert_allclose(clip_spectrum(jnp.asarray(W_f), -2.0, 5.0), symmetric, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_derivative_of_a_clipped_spectrum_equals_finite_differences():
    rng = np.random.default_rng(8)
    weight, W_f, direction = rng.normal(size=(5, 5)), weights(8, 5, -1.0, 2.0), rng.normal(size=(5, 5))

    def objective(W_f):
        values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
        return np.sum(weight * ((basis * np.clip(values, 0.0, 0.95)) @ basis.T))

    gradient = jax.jit(jax.grad(lambda W_f: jnp.sum(weight * clip_spectrum(W_f))))(jnp.asarray(W_f))
    expected = reference.directional_derivative(objective, W_f, direction)
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_the_derivative_of_a_clipped_spectrum_is_finite_where_eigenvalues_meet():
    """All eigenvalues equal: inside the interval the map is the identity, outside it is constant."""
    gradient = jax.jit(jax.grad(lambda W_f: jnp.sum(clip_spectrum(W_f) ** 2)))
    for level, slope in ((0.5, 1.0), (3.0, 0.0), (-1.0, 0.0)):
        expected = slope * 2.0 * level * np.eye(3)
        np.testing.assert_allclose(gradient(level * np.eye(3)), expected, atol=1e-12, err_msg=f"{level=}")


@pytest.mark.usefixtures("x64")
def test_with_a_spectrum_the_layer_is_the_layer_of_the_clipped_weights_and_always_guaranteed():
    y, x = np.random.default_rng(3).normal(size=(2, 3, 5, 4))
    W_f, layer, plain = weights(9, 4, -5.0, 8.0), uj.feedforward(4, spectrum=(0.0, 0.95)), uj.feedforward(4)

    @jax.jit
    def all_of(W_f, y, x):
        clipped = clip_spectrum(W_f, 0.0, 0.95)
        args, theirs = (FeedForwardParams(W_f), y, x), (FeedForwardParams(clipped), y, x)
        ours = layer.energy(*args), layer.step(*args)
        return ours, (plain.energy(*theirs), plain.step(*theirs))

    ours, theirs = all_of(W_f, y, x)
    for name, actual, expected in zip(("energy", "step"), ours, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, err_msg=name)


def test_the_step_of_the_authors_code_is_reported():
    """a = 1 with eigenvalues up to 0.95: beyond 1 / L = 0.513."""
    with pytest.warns(UserWarning, match=r"step_size=1.0 is beyond 1/L = 0.513 for eigenvalues up to 0.95"):
        uj.feedforward(3, step_size=1.0, spectrum=(0.0, 0.95))


def test_at_initialisation_the_default_step_qualifies():
    keys = jax.random.split(jax.random.key(20, impl="rbg"), 20)
    W_f = np.asarray(jax.jit(jax.vmap(uj.feedforward(6).init))(keys).W_f)
    assert W_f.shape == (20, 6, 6)
    assert len(np.unique(W_f[:, 0, 0])) == 20
    assert np.max(np.linalg.eigvalsh((W_f + W_f.transpose(0, 2, 1)) / 2)) <= 0.95 + 1e-5
