"""Hopfield energies and cross-attention."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies.hopfield import HopfieldParams, hopfield

N, M, DIM = 5, 7, 3
OWN = HopfieldParams(None)


def reference_energy(y, S, b, anchor=None, seen=None):
    """- log sum_j exp(b s_j . y) / b + |y - B|^2 / 2, token by token."""
    anchor = np.zeros_like(y) if anchor is None else anchor
    kept = [s for j, s in enumerate(S) if seen is None or seen[j]]
    total = 0.0
    for token, pull in zip(y, anchor, strict=True):
        total += 0.5 * np.sum((token - pull) ** 2)
        if kept:
            total -= logsumexp([b * s @ token for s in kept]) / b
    return total


def reference_step(y, S, b, anchor=None, seen=None, step_size=1.0):
    anchor = np.zeros_like(y) if anchor is None else anchor
    kept = np.array([s for j, s in enumerate(S) if seen is None or seen[j]]).reshape(-1, y.shape[1])
    lookup = lambda token: kept.T @ softmax(b * kept @ token) if len(kept) else np.zeros(y.shape[1])  # noqa: E731
    found = [lookup(token) + pull for token, pull in zip(y, anchor, strict=True)]
    return (1.0 - step_size) * y + step_size * np.array(found)


def compiled(dim=DIM, **options):
    """The factory's layer, compiled: quicker here than one operation at a time."""
    layer = hopfield(dim, **options)
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", [1.0, 0.3])
@pytest.mark.parametrize("b", [0.5, 1.0, 20.0])
def test_energy_and_step_equal_the_reference(b, step_size):
    y, S, x = draw(0, N, DIM), draw(1, M, DIM), draw(2, N, DIM)
    learned = hopfield(DIM, num_patterns=M, inverse_temperature=b, step_size=step_size)
    crossed = hopfield(DIM, inverse_temperature=b, step_size=step_size)
    seen = np.arange(M) % 3 != 1
    cases = [
        (learned, HopfieldParams(jnp.asarray(S)), None, {}),
        (learned, HopfieldParams(jnp.asarray(S)), jnp.asarray(x), {"anchor": x}),
        (crossed, OWN, jnp.asarray(S), {}),
        (crossed, OWN, Anchor(jnp.asarray(S), jnp.asarray(seen)), {"seen": seen}),
        (crossed, OWN, Anchor(jnp.asarray(S), jnp.zeros(M, bool)), {"seen": np.zeros(M, bool)}),
    ]
    for layer, params, given, options in cases:
        found = layer.energy(params, jnp.asarray(y), given)
        np.testing.assert_allclose(found, reference_energy(y, S, b, **options), rtol=1e-12)
        expected = reference_step(y, S, b, step_size=step_size, **options)
        np.testing.assert_allclose(layer.step(params, jnp.asarray(y), given), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_the_step_is_a_gradient_step():
    layer = hopfield(DIM, num_patterns=M, inverse_temperature=2.0, step_size=0.7)
    params, y, x = HopfieldParams(jnp.asarray(draw(0, M, DIM))), *jnp.asarray(draw(1, 2, 4, N, DIM))
    gradient = jax.grad(lambda y: jnp.sum(layer.energy(params, y, x)))(y)
    chex.assert_trees_all_close(layer.step(params, y, x), y - 0.7 * gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("learned", [True, False])
def test_gradients_equal_finite_differences_of_the_reference(learned):
    point, weight = [draw(0, N, DIM), draw(1, M, DIM)], draw(2, N, DIM)
    layer = hopfield(DIM, num_patterns=M if learned else None, inverse_temperature=1.5, step_size=0.8)

    def arguments(y, S):
        return (HopfieldParams(S), y, None) if learned else (OWN, y, S)

    of_energy = jax.grad(lambda y, S: layer.energy(*arguments(y, S)), (0, 1))(*map(jnp.asarray, point))
    of_step = jax.grad(lambda y, S: jnp.sum(weight * layer.step(*arguments(y, S))), (0, 1))(*map(jnp.asarray, point))
    energy = lambda y, S: reference_energy(y, S, 1.5)  # noqa: E731
    step = lambda y, S: np.sum(weight * reference_step(y, S, 1.5, step_size=0.8))  # noqa: E731
    for (function, gradients), place in itertools.product(((energy, of_energy), (step, of_step)), (0, 1)):
        direction = draw(3, *point[place].shape)

        def along(value, function=function, place=place):
            return function(*point[:place], value, *point[place + 1 :])

        expected = reference.directional_derivative(along, point[place], direction)
        np.testing.assert_allclose(np.sum(gradients[place] * direction), expected, rtol=1e-8)


def random_systems(b, dtype, count=1000):
    """Tokens, patterns and anchors, each with a scale of its own over six orders of magnitude."""
    rng = np.random.default_rng(4)
    scales = 10.0 ** rng.uniform(-3, 3, size=(3, count, 1, 1))
    shapes = (N, DIM), (M, DIM), (N, DIM)
    y, S, x = (scale * rng.normal(size=(count, *shape)) for scale, shape in zip(scales, shapes, strict=True))
    return (jnp.asarray(a, dtype) for a in (y, S, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step_size", [1.0, 0.3])
@pytest.mark.parametrize("b", [1e-3, 1.0, 1e3])
def test_no_step_raises_its_energy_and_it_falls_as_much_as_proven(b, step_size, dtype):
    with jax.enable_x64(dtype == "float64"):
        y, S, x = random_systems(b, dtype)
        layer = hopfield(DIM, num_patterns=M, inverse_temperature=b, step_size=step_size)
        full = hopfield(DIM, num_patterns=M, inverse_temperature=b)

        @jax.jit
        @jax.vmap
        def fall(y, S, x):
            params = HopfieldParams(S)
            before, after = layer.energy(params, y, x), layer.energy(params, layer.step(params, y, x), x)
            gap = jnp.sum((full.step(params, y, x) - y) ** 2)
            size = jnp.sum(y**2) + jnp.sum(x**2) + jnp.sum(S**2) + np.log(M) / b
            return before - after, step_size * (1.0 - step_size / 2.0) * gap, size

        fell, proven, size = fall(y, S, x)
        assert jnp.all(fell >= proven - 40.0 * jnp.finfo(dtype).eps * size)
        assert jnp.mean(fell > 0.0) > 0.6  # the rest moves by less than round-off


@pytest.mark.usefixtures("x64")
def test_as_printed_without_the_transpose_the_step_raises_the_energy():
    """S softmax(b S y), eq. 7 as printed, for square S."""
    rng, rose = np.random.default_rng(5), 0
    for _ in range(100):
        y, S = rng.normal(size=(1, DIM)), rng.normal(size=(DIM, DIM))
        printed = (S @ softmax(S @ y[0]))[None]
        rose += reference_energy(printed, S, 1.0) > reference_energy(y, S, 1.0) + 1e-6
    assert rose > 5


@pytest.mark.usefixtures("x64")
def test_cold_lookups_return_the_nearest_pattern():
    """For patterns of one length the limit of b to infinity is retrieval of the nearest of them, in one step."""
    S = draw(6, M, DIM)
    S /= np.linalg.norm(S, axis=1, keepdims=True)
    y = draw(7, 4, N, DIM)
    nearest = S[np.argmin(np.linalg.norm(y[..., None, :] - S, axis=-1), axis=-1)]
    found = hopfield(DIM, inverse_temperature=1e6).step(OWN, jnp.asarray(y), jnp.asarray(S))
    np.testing.assert_allclose(found, nearest, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_masked_keys_are_as_good_as_absent_whatever_they_hold(batch):
    layer, y, keys = compiled(DIM), jnp.asarray(draw(8, *batch, N, DIM)), draw(9, *batch, M, DIM)
    keys[..., 4:, :] = np.nan
    x = Anchor(jnp.asarray(keys), jnp.broadcast_to(jnp.arange(M) < 4, (*batch, M)))
    short = jnp.asarray(keys[..., :4, :])
    both = lambda x: (layer.energy(OWN, y, x), layer.step(OWN, y, x))  # noqa: E731
    assert both(x)[0].shape == batch
    chex.assert_trees_all_close(both(x), both(short), rtol=1e-6)
    gradient = jax.grad(lambda y, x: jnp.sum(layer.energy(OWN, y, x)), 0)(y, x)
    chex.assert_trees_all_close(gradient, jax.grad(lambda y: jnp.sum(layer.energy(OWN, y, short)))(y), atol=1e-5)


def test_without_any_key_tokens_sink_to_zero_and_gradients_are_finite():
    layer, y = compiled(DIM, step_size=0.5), jnp.asarray(draw(8, 2, N, DIM), jnp.float32)
    x = Anchor(jnp.ones((2, M, DIM)), jnp.stack([jnp.zeros(M, bool), jnp.ones(M, bool)]))
    chex.assert_trees_all_close(layer.step(OWN, y, x)[0], 0.5 * y[0], rtol=1e-6)
    gradient = jax.grad(lambda y: jnp.sum(layer.energy(OWN, y, x)))(y)
    chex.assert_trees_all_close(gradient[0], y[0], rtol=1e-6)
    assert jnp.all(jnp.isfinite(gradient))


def test_one_set_of_keys_serves_a_batch_of_queries():
    layer, y, keys = compiled(DIM), jnp.asarray(draw(0, 2, 4, N, DIM)), jnp.asarray(draw(1, M, DIM))
    for given in (keys, keys[None], keys[None, None]):
        chex.assert_trees_all_close(layer.step(OWN, y, given)[1, 2], layer.step(OWN, y[1, 2], keys), rtol=1e-6)
        chex.assert_trees_all_close(layer.energy(OWN, y, given)[1, 2], layer.energy(OWN, y[1, 2], keys), rtol=1e-6)


def test_absent_tokens_neither_count_nor_move(getkey):
    layer, y = compiled(DIM, num_patterns=M), jnp.asarray(draw(0, 2, N, DIM), jnp.float32).at[:, 3:].set(jnp.nan)
    params, x = layer.init(getkey()), Anchor(None, jnp.arange(N) < 3)
    chex.assert_trees_all_close(layer.energy(params, y, x), layer.energy(params, y[:, :3]), rtol=1e-5)
    stepped = layer.step(params, y, x)
    chex.assert_trees_all_close(stepped[:, :3], layer.step(params, y[:, :3]), rtol=1e-5, atol=1e-6)
    assert jnp.all(jnp.isnan(stepped[:, 3:]))


def test_bfloat16_is_computed_in_float32(getkey):
    layer, (y, x) = hopfield(DIM), jax.random.normal(getkey(), (2, 3, N, DIM), jnp.bfloat16)
    wide = [a.astype(jnp.float32) for a in (y, x)]
    chex.assert_trees_all_equal(layer.step(OWN, y, x), layer.step(OWN, *wide).astype(jnp.bfloat16))
    chex.assert_trees_all_equal(layer.energy(OWN, y, x), layer.energy(OWN, *wide))


def test_learned_patterns_have_about_unit_length(getkey):
    lengths = jnp.linalg.norm(hopfield(400, num_patterns=50).init(getkey()).S, axis=1)
    assert jnp.all(jnp.abs(lengths - 1.0) < 0.2)


BAD_OPTIONS = [
    ({"dim": 0}, "dim must be at least 1, got 0"),
    ({"num_patterns": 0}, "num_patterns must be at least 1.*, got 0"),
    ({"inverse_temperature": 0.0}, "inverse_temperature must be positive and finite, got 0.0"),
    ({"inverse_temperature": float("inf")}, "inverse_temperature must be positive and finite, got inf"),
    ({"step_size": 0.0}, r"step_size must be in \(0, 1\], got 0.0"),
    ({"step_size": 1.5}, r"step_size must be in \(0, 1\], got 1.5"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=str)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        hopfield(**{"dim": DIM, **options})


def ones(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


BAD_INPUTS = [
    (None, ValueError, r"x must hold keys, got None"),
    (ones(M, DIM, dtype=jnp.int32), TypeError, "x must have a floating dtype, got int32"),
    (ones(M, 4), ValueError, r"x must hold keys of shape \(2, 7, 3\).*got shape \(7, 4\)"),
    (ones(0, DIM), ValueError, r"x must hold keys of shape \(2, 1, 3\).*got shape \(0, 3\)"),
    (ones(DIM), ValueError, r"x must hold keys .*got shape \(3,\)"),
    (ones(4, M, DIM), ValueError, r"x must hold keys of shape \(2, 7, 3\).*got shape \(4, 7, 3\)"),
    (ones(M, DIM).at[2, 1].set(jnp.nan), ValueError, r"x must be finite, but x\[2, 1\] is not"),
    (Anchor(ones(M, DIM), ones(M)), TypeError, "x.present must be boolean, got float32"),
    (Anchor(ones(M, DIM), ones(N) > 0), ValueError, r"place for each key, \(7,\), got \(5,\)"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("x", "error", "message"), BAD_INPUTS, ids=[row[2] for row in BAD_INPUTS])
def test_keys_that_do_not_fit_are_named(x, error, message):
    for function in (hopfield(DIM).energy, hopfield(DIM).step):
        with pytest.raises(error, match=message):
            function(OWN, ones(2, N, DIM), x)


@pytest.mark.usefixtures("unchecked")
def test_tokens_that_do_not_fit_are_named(getkey):
    layer = hopfield(DIM, num_patterns=M)
    params = layer.init(getkey())
    with pytest.raises(ValueError, match=r"width dim=3, got shape \(5, 4\)"):
        layer.step(params, ones(N, 4))
    with pytest.raises(ValueError, match=r"x must broadcast to y's shape \(5, 3\), got shape \(7, 3\)"):
        layer.energy(params, ones(N, DIM), ones(M, DIM))
