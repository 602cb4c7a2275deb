"""The quadratic energy of a token's features and the layer that lowers it."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import spence

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import FeedForwardParams, clip_spectrum, feedforward_smoothness, step_is_guaranteed
from unroll_jax.energies.activations import ACTIVATIONS

PROXES = {
    "identity": lambda y, step_size: y,
    "relu": lambda y, step_size: np.maximum(y, 0.0),
    "soft_threshold": lambda y, step_size: np.sign(y) * np.maximum(np.abs(y) - step_size, 0.0),
    "nonnegative_soft_threshold": lambda y, step_size: np.maximum(y - step_size, 0.0),
    "box": lambda y, step_size: np.clip(y, 0.0, 1.0),
    "group_shrinkage": lambda y, step_size: (
        y * np.maximum(1.0 - step_size / np.linalg.norm(y, axis=1, keepdims=True), 0.0)
    ),
    # By name, a layer applies an activation as it is, whatever its step size.
    "tanh": lambda y, step_size: np.tanh(y),
    "sigmoid": lambda y, step_size: 1.0 / (1.0 + np.exp(-y)),
    "softplus": lambda y, step_size: np.logaddexp(0.0, y),
    "softsign": lambda y, step_size: y / (1.0 + np.abs(y)),
    "leaky_relu": lambda y, step_size: np.where(y > 0.0, y, 0.01 * y),
    "elu": lambda y, step_size: np.where(y > 0.0, y, np.expm1(np.minimum(y, 0.0))),
}
# phi at step size 1 of entries between 0 and 1; those left out are 0 there.
PENALTIES = {
    "soft_threshold": lambda y: y.sum(),
    "nonnegative_soft_threshold": lambda y: y.sum(),
    "group_shrinkage": lambda y: np.linalg.norm(y, axis=1).sum(),
    "tanh": lambda y: np.sum(0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y) - y**2)),
    "sigmoid": lambda y: np.sum(y * np.log(y) + (1.0 - y) * np.log(1.0 - y) - 0.5 * y**2),
    "softplus": lambda y: np.sum(spence(1.0 - np.exp(-y)) - np.pi**2 / 6.0),
    "softsign": lambda y: np.sum(-y - np.log(1.0 - y) - 0.5 * y**2),
}


def weights(seed, dim, low, high):
    """An asymmetric matrix whose symmetric part has eigenvalues spread over [low, high]."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    skew = rng.normal(size=(dim, dim))
    return basis * np.linspace(low, high, dim) @ basis.T + skew - skew.T


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("phi", uj.PROXIMALS)
def test_energy_and_step_equal_the_reference(phi):
    rng = np.random.default_rng(0)
    y, x, W_f = rng.uniform(size=(5, 4)), rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    penalty = PENALTIES.get(phi, lambda y: 0.0)(y)
    params = FeedForwardParams(jnp.asarray(W_f))
    for step_size, anchor in itertools.product((0.1, 0.5, 2.0), (None, x)):
        layer, given = uj.feedforward(4, step_size=step_size, phi=phi), None if anchor is None else jnp.asarray(anchor)
        energy = reference.feedforward_energy(y, W_f, anchor) + penalty / (step_size if phi in ACTIVATIONS else 1.0)
        np.testing.assert_allclose(layer.energy(params, jnp.asarray(y), given), energy, rtol=1e-12)
        step = reference.feedforward_step(y, W_f, anchor, step_size=step_size, prox=PROXES[phi])
        np.testing.assert_allclose(layer.step(params, jnp.asarray(y), given), step, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    rng = np.random.default_rng(1)
    y, x, W_f, weight = (
        rng.normal(size=(5, 4)),
        rng.normal(size=(5, 4)),
        rng.normal(size=(4, 4)),
        rng.normal(size=(5, 4)),
    )
    layer, args = uj.feedforward(4), (FeedForwardParams(jnp.asarray(W_f)), jnp.asarray(y), jnp.asarray(x))
    of_energy = jax.grad(layer.energy, (0, 1, 2))(*args)
    of_step = jax.grad(lambda *a: jnp.sum(weight * layer.step(*a)), (0, 1, 2))(*args)

    def energy(y, x, W_f):
        return reference.feedforward_energy(y, W_f, x)

    def step(y, x, W_f):
        return np.sum(weight * reference.feedforward_step(y, W_f, x, step_size=0.5))

    for function, gradients in ((energy, of_energy), (step, of_step)):
        for point, gradient, along in (
            (W_f, gradients[0].W_f, lambda W_f, function=function: function(y, x, W_f)),
            (y, gradients[1], lambda y, function=function: function(y, x, W_f)),
            (x, gradients[2], lambda x, function=function: function(y, x, W_f)),
        ):
            direction = rng.normal(size=point.shape)
            expected = reference.directional_derivative(along, point, direction)
            np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_without_phi_the_step_is_a_gradient_step(getkey):
    layer, y, x = uj.feedforward(4, step_size=0.3), *jax.random.normal(getkey(), (2, 3, 5, 4), jnp.float64)
    params = FeedForwardParams(jax.random.normal(getkey(), (4, 4), jnp.float64))
    gradient = jax.grad(lambda y: jnp.sum(layer.energy(params, y, x)))(y)
    chex.assert_trees_all_close(layer.step(params, y, x), y - 0.3 * gradient, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("phi", uj.PROXIMALS)
def test_a_step_of_at_most_one_over_the_smoothness_never_raises_the_energy(phi, dtype):
    """Negative, indefinite and positive W_f; 200 points over six orders of magnitude of scale."""
    rng = np.random.default_rng(2)
    scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
    tokens = scales * rng.normal(size=(2, 200, 5, 4))
    spectra = [(-3.0, -0.5), (-1.0, 1.0), (0.2, 9.0)]
    with jax.enable_x64(dtype == "float64"):
        y, x = jnp.asarray(tokens, dtype)

        def descend(params, step_size):
            layer = uj.feedforward(4, step_size=step_size, phi=phi)
            start = layer.step(params, y, x)  # a point where phi is finite
            return start, layer.energy(params, start, x), layer.energy(params, layer.step(params, start, x), x)

        for spectrum in spectra:
            params = FeedForwardParams(jnp.asarray(weights(3, 4, *spectrum), dtype))
            for share in (1.0, 0.1):
                step_size = share / (max(0.0, spectrum[1]) + 1.0)
                start, before, after = jax.jit(descend, static_argnums=1)(params, step_size)
                size = jnp.sum(start**2 + x**2, axis=(-2, -1))
                assert jnp.all(jnp.isfinite(before))
                assert jnp.all(after <= before + 30.0 * jnp.finfo(dtype).eps * (1.0 + spectrum[1] ** 2) * (1.0 + size))


@pytest.mark.usefixtures("x64")
def test_a_step_beyond_two_over_the_smoothness_raises_the_energy():
    """Along the top eigenvector the gap to the minimum is multiplied by (1 - a L)^2 a step."""
    W_f = weights(4, 4, 0.2, 3.0)
    top = jnp.asarray(np.linalg.eigh((W_f + W_f.T) / 2)[1][:, -1])[None, :]
    params, smoothness = FeedForwardParams(jnp.asarray(W_f)), 4.0
    for step_size, factor in ((1.9 / smoothness, 0.81), (2.1 / smoothness, 1.21)):
        layer = uj.feedforward(4, step_size=step_size)
        ratio = layer.energy(params, layer.step(params, top)) / layer.energy(params, top)
        assert ratio == pytest.approx(factor, rel=1e-6)


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
@pytest.mark.parametrize(("level", "slope"), [(0.5, 1.0), (3.0, 0.0), (-1.0, 0.0)])
def test_the_derivative_of_a_clipped_spectrum_is_finite_where_eigenvalues_meet(level, slope):
    """All eigenvalues equal: inside the interval the map is the identity, outside it is constant."""
    gradient = jax.grad(lambda W_f: jnp.sum(clip_spectrum(W_f) ** 2))(level * jnp.eye(3))
    np.testing.assert_allclose(gradient, slope * 2.0 * level * np.eye(3), atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_with_a_spectrum_the_layer_is_the_layer_of_the_clipped_weights_and_always_guaranteed(getkey):
    y, x = jax.random.normal(getkey(), (2, 3, 5, 4), jnp.float64)
    W_f = jnp.asarray(weights(9, 4, -5.0, 8.0))
    assert not step_is_guaranteed(W_f, 0.5)
    clipped = clip_spectrum(W_f, 0.0, 0.95)
    assert step_is_guaranteed(clipped, 0.5)
    layer, plain = uj.feedforward(4, spectrum=(0.0, 0.95)), uj.feedforward(4)
    for name in ("energy", "step"):
        found = getattr(layer, name)(FeedForwardParams(W_f), y, x)
        np.testing.assert_allclose(found, getattr(plain, name)(FeedForwardParams(clipped), y, x), rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spectrum", [(-3.0, -0.5), (-1.0, 1.0), (0.2, 9.0)], ids=str)
def test_the_smoothness_is_what_autodiff_finds_and_bounds_the_guaranteed_steps(spectrum):
    W_f = weights(10, 4, *spectrum)
    curvature = np.linalg.eigvalsh(
        np.asarray(
            jax.hessian(uj.feedforward(4).energy, 1)(FeedForwardParams(jnp.asarray(W_f)), jnp.zeros((1, 4)))
        ).reshape(4, 4)
    )
    smoothness = float(feedforward_smoothness(jnp.asarray(W_f)))
    assert smoothness == pytest.approx(max(1.0, curvature[-1]), rel=1e-12)
    assert step_is_guaranteed(jnp.asarray(W_f), 0.999 / smoothness)
    assert not step_is_guaranteed(jnp.asarray(W_f), 1.001 / smoothness)


def test_the_step_of_the_authors_code_is_reported():
    """a = 1 with eigenvalues up to 0.95: beyond 1 / L = 0.513."""
    assert not step_is_guaranteed(0.95 * jnp.eye(3), 1.0)
    with pytest.warns(UserWarning, match=r"step_size=1.0 is beyond 1/L = 0.513 for eigenvalues up to 0.95"):
        uj.feedforward(3, step_size=1.0, spectrum=(0.0, 0.95))


def test_at_initialisation_the_default_step_qualifies(getkey):
    for _ in range(20):
        W_f = uj.feedforward(6).init(getkey()).W_f
        assert W_f.shape == (6, 6)
        assert jnp.linalg.eigvalsh((W_f + W_f.T) / 2)[-1] <= 0.95 + 1e-5


def test_bfloat16_tokens_are_computed_in_float32(getkey):
    layer = uj.feedforward(4)
    params, y, x = layer.init(getkey()), *jax.random.normal(getkey(), (2, 3, 5, 4), jnp.bfloat16)
    wide = [a.astype(jnp.float32) for a in (y, x)]
    chex.assert_trees_all_equal(layer.step(params, y, x), layer.step(params, *wide).astype(jnp.bfloat16))
    assert layer.energy(params, y, x).dtype == jnp.float32
    chex.assert_trees_all_close(layer.energy(params, y, x), layer.energy(params, *wide), rtol=1e-6)


BAD_OPTIONS = [
    ((0,), {}, "dim must be at least 1, got 0"),
    ((3,), {"step_size": 0.0}, "step_size must be positive.*, got 0.0"),
    ((3,), {"step_size": float("nan")}, "step_size must be positive.*, got nan"),
    ((3,), {"step_size": float("inf")}, "step_size must be positive.*, got inf"),
    ((3,), {"spectrum": (1.0, 0.0)}, "spectrum must be finite with lower < upper, got lower=1.0, upper=0.0"),
    ((3,), {"spectrum": (0.0, float("inf"))}, "spectrum must be finite .* upper=inf"),
    ((3,), {"phi": "gelu"}, "phi must be one of .* got 'gelu'"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("args", "options", "message"), BAD_OPTIONS, ids=[row[2] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(args, options, message):
    with pytest.raises(ValueError, match=message):
        uj.feedforward(*args, **options)


@pytest.mark.usefixtures("unchecked")
def test_a_bad_input_is_named(getkey):
    layer = uj.feedforward(3)
    params = layer.init(getkey())
    for function in (layer.energy, layer.step):
        with pytest.raises(ValueError, match=r"width dim=3, got shape \(5, 4\)"):
            function(params, jnp.ones((5, 4)), None)
        with pytest.raises(ValueError, match=r"x must broadcast to y's shape \(5, 3\), got shape \(4, 3\)"):
            function(params, jnp.ones((5, 3)), jnp.ones((4, 3)))
        with pytest.raises(TypeError, match="y must have a floating dtype, got int32"):
            function(params, jnp.ones((5, 3), jnp.int32), None)
