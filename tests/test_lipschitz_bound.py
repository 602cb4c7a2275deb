"""Lipschitz constants and rounding errors of chains, against float64 and against
attacks."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.marks import nightly
from tests.reference import compiled, gaussian
from unroll_jax import certificates
from unroll_jax.certificates import lipschitz
from unroll_jax.energies import (
    Monotone,
    convex_equilibrium,
    convex_potential,
    convex_potential_conv,
)

# The function has the module's name.
convex_potential_module = importlib.import_module(
    "unroll_jax.energies.convex_potential"
)
DEPTH = 4
DIM = 6
IMAGE = (6, 4)
CHANNELS = 3


def stacked(layer, seed=0):
    """Parameters of all layers with biases, drawn by NumPy, q over a wide range."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0)))
    draw = lambda leaf: rng.normal(size=(DEPTH, *leaf.shape)).astype(np.float32)
    return jax.tree.map(draw, shapes)


def dense(**options):
    """A chain of steps on padded vectors with an orthonormal map and a head."""
    layer = convex_potential(DIM, 9, **options)
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
    head = rng.normal(size=(DIM, 3)).astype(np.float32)
    params = stacked(layer)

    def network(params, turn, head, x):
        z = certificates.pad_channels(x, DIM)
        z, _ = uj.unroll(layer, params, z, num_layers=DEPTH, tied=False, record=None)
        return z @ turn @ head

    weights = params, turn, head
    bound = functools.partial(
        lipschitz,
        compiled(lambda x: certificates.pad_channels(x, DIM)),
        *weights,
        activation=options.get("activation", "relu"),
    )
    return network, weights, bound, (DIM - 2,), 3


def conv(**options):
    """Space to depth, steps on images, pooling."""
    layer = convex_potential_conv(4 * CHANNELS, 5, **options)
    params = stacked(layer)

    @compiled
    def pooled(z):
        return certificates.pool(z[..., :2, :, :], 2)

    def network(params, x):
        z = certificates.space_to_depth(x, 2)
        z, _ = uj.unroll(layer, params, z, num_layers=DEPTH, tied=False, record=None)
        return pooled(z).reshape(len(x), 4 * CHANNELS)

    bound = functools.partial(
        lipschitz,
        compiled(lambda x: certificates.space_to_depth(x, 2)),
        params,
        pooled,
        activation=options.get("activation", "relu"),
    )
    return network, (params,), bound, (*IMAGE, CHANNELS), 4 * CHANNELS


def equilibria():
    layer = convex_equilibrium(DIM, 9)
    params = stacked(layer)

    def reflected(x, of_layer):
        z, _ = uj.equilibrium(
            layer,
            of_layer,
            jnp.zeros_like(x),
            x,
            on_failure="accept",
            tol=1e-6 if x.dtype == jnp.float32 else 1e-12,
        )
        return x - 2.0 * z, None

    def network(params, x):
        return jax.lax.scan(reflected, x, params)[0]

    return (
        network,
        (params,),
        functools.partial(lipschitz, params, strength=0.5, tol=1e-6),
        (DIM,),
        DIM,
    )


NETWORKS = {
    "dense": dense,
    "dense, sigmoid": functools.partial(dense, activation="sigmoid"),
    "dense, norm": functools.partial(dense, scaling="norm"),
    "convolutional": conv,
    "convolutional, norm, tanh": functools.partial(
        conv, scaling="norm", activation="tanh"
    ),
    "equilibria": equilibria,
}
QUICK = ("dense", "convolutional", "equilibria")
made = functools.cache(lambda name: NETWORKS[name]())
every_network = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else nightly) for name in NETWORKS],
)


def inputs(shape):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(64, *shape)) * rng.choice(
        [0.0, 0.01, 1.0, 3.0], (64, *(1,) * len(shape))
    )
    return x.astype(np.float32)


def norms(x):
    return np.linalg.norm(x.reshape(len(x), -1).astype(np.float64), axis=1)


@pytest.fixture
def scaling_of_float32(monkeypatch):
    """In float64 too, T is the one of float32."""
    inverse_scaling = convex_potential_module._inverse_scaling

    def of_float32(params, z):
        narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
        return inverse_scaling(narrow, z.astype(jnp.float32)).astype(z.dtype)

    monkeypatch.setattr(convex_potential_module, "_inverse_scaling", of_float32)


@functools.cache
def exact(name):
    """``(points, towards) -> (outputs, slopes)`` of a network in float64, 128 rows."""
    network, weights, *_ = made(name)

    @compiled
    def run(weights, points, towards):
        outputs, pull = jax.vjp(lambda z: network(*weights, z), points)
        return outputs, pull(towards)[0]

    def in_float64(*arrays):
        with jax.enable_x64(True):
            return run(*jax.tree.map(np.float64, (weights, *arrays)))

    return in_float64


@every_network
@pytest.mark.usefixtures("scaling_of_float32")
def test_rounding_errors_and_sizes_stay_within_their_bounds(name):
    """Float32 against float64 with the T of float32, example by example, at examples and
    around them."""
    network, weights, bound_of, shape, width = made(name)
    x = inputs(shape)
    moved = gaussian(*x.shape, seed=8)
    lengths = norms(moved).reshape(-1, *(1,) * len(shape))
    moved = (x + 0.19 * moved / lengths).astype(np.float32)
    bound = bound_of(x=x, radius=0.2)
    run = compiled(network)
    outputs, _ = exact(name)(np.concatenate([x, moved]), np.zeros((128, width)))
    for points, of_float64 in zip((x, moved), np.split(outputs, 2), strict=True):
        computed = run(*weights, points)
        assert np.all(norms(computed - of_float64) <= bound.error)
        assert np.all(norms(computed) <= bound.size)
    assert bound.error.shape == (len(x),)
    assert np.all(bound.error <= bound_of(x=x, radius=0.3).error)
    assert np.max(bound.error) < 1e-2 * np.max(norms(x))


def apart(pairs):
    """Row i minus row i + 64, and the other way round."""
    flat = pairs.reshape(128, -1)
    return flat - np.roll(flat, 64, axis=0)


@every_network
@pytest.mark.usefixtures("scaling_of_float32")
def test_no_pair_is_moved_further_apart_than_the_constant(name):
    """Sampled Jacobians, and pairs that gradient ascent moved apart, in float64 but for
    the T of float32."""
    _, _, bound_of, shape, width = made(name)
    run = exact(name)
    x = inputs(shape)
    bound = bound_of(x=x, radius=1.0)
    pairs = np.concatenate([x, x[::-1] + np.float32(0.1)]).astype(float)
    rows = [run(pairs, np.tile(row, (128, 1)))[1] for row in np.eye(width)]
    jacobians = np.stack(rows, axis=1).reshape(128, width, -1)
    assert np.max(np.linalg.norm(jacobians, 2, axis=(1, 2))) <= bound.constant + 1e-6
    towards = np.zeros((128, width))
    for _ in range(11):
        moved, gap = apart(run(pairs, towards)[0]), apart(pairs)
        size, of_gap = norms(moved)[:, None], norms(gap)[:, None]
        ratio = size / of_gap
        assert np.max(ratio) <= bound.constant + 1e-6
        towards = moved / size**2
        slopes = run(pairs, towards)[1].reshape(gap.shape) - gap / of_gap**2
        pairs += 0.2 * (ratio * slopes).reshape(pairs.shape)
    assert np.max(ratio) > 0.1 * bound.constant


def test_chains_are_products_of_norms():
    rng = np.random.default_rng(3)
    layer = convex_potential(DIM, 9)
    params = stacked(layer, 5)
    M = rng.normal(size=(DIM, 4)).astype(np.float32)
    given = {"x": inputs((DIM,)), "radius": np.linspace(0.0, 1.0, 64)}
    whole = lipschitz(params, M, jax.nn.relu, 0.5 * M.T, **given)
    first = lipschitz(params, **given)
    assert 1.0 <= first.constant < 1.001
    expected = 0.5 * np.linalg.norm(np.float64(M), 2) ** 2 * first.constant
    assert_allclose(whole.constant, expected, rtol=1e-12)
    single = [jax.tree.map(lambda leaf: leaf[place], params) for place in range(DEPTH)]  # noqa: B023
    separate = lipschitz(*single, **given)
    jax.tree.map(assert_array_equal, separate, first)
    none = lipschitz(**given)
    assert_array_equal(none.error, 0.0)
    assert np.all(none.size >= norms(given["x"]) + given["radius"])
    of_float64 = lipschitz(params, dtype="float64", **given).error
    assert np.all(of_float64 < 1e-8 * first.error)
    empty = lipschitz(params, x=np.zeros((0, DIM), np.float32), radius=1.0)
    assert empty.error.shape == (0,)


def test_the_constant_covers_the_rounding_of_scalings():
    """The computed T may be smaller than T by its rounding error: by much where the
    products of W W^T cancel, but not below the squares on the diagonal."""
    rng = np.random.default_rng(4)
    W = np.linalg.qr(rng.normal(size=(64, 64)))[0].astype(np.float32)
    W[:32] += 0.01 * W[32:]
    params = uj.energies.ConvexPotentialParams(W, *np.zeros((2, 64), np.float32))
    wide = np.float64(W)
    sizes = np.abs(wide)
    unit = 2.0**-24
    scaling = np.abs(wide @ wide.T).sum(1)
    lost = 64 * unit * (sizes @ sizes.T).sum(1)
    rounded = np.maximum(scaling - lost, (1.0 - 64 * unit) * np.sum(wide**2, axis=1))
    gain = np.linalg.norm(wide / np.sqrt(rounded)[:, None], 2) ** 2
    assert gain > 1.0 + 1e-6
    bound = lipschitz(params, x=np.zeros((1, 64), np.float32), radius=1.0)
    assert 2.0 * gain - 1.0 <= bound.constant < 1.001


def test_weights_out_of_range_are_never_certified():
    """NaN where a layer overflows. Zeros make no error."""
    layer = convex_potential(DIM, 9)
    params = stacked(layer, 6)
    given = {"x": inputs((DIM,)), "radius": 1.0}
    zeros = params._replace(W=np.zeros_like(params.W))
    assert np.all(lipschitz(zeros, **given).error < 1e-4)
    for bad in (
        params._replace(W=np.nan * params.W),
        params._replace(b=params.b + np.inf),
    ):
        bound = lipschitz(bad, **given)
        assert not np.any(np.isfinite(bound.error) & np.isfinite(bound.constant))
        logits = np.tile(np.float32([0.0, 1.0]), (64, 1))
        radius = compiled(certificates.certified_radius)(logits, bound=bound)
        assert not np.any(radius > 0.0)


def test_an_activation_that_changes_is_read_again():
    """NumPy's functions serve, too. The radius is a copy."""
    params = stacked(convex_potential(DIM, 9), 6)
    slope = np.ones(())
    radius = np.full(64, 0.5)
    sigma = Monotone(lambda t: slope * np.tanh(t), lambda t: slope * np.log(np.cosh(t)))
    given = {"x": inputs((DIM,)), "radius": radius}
    named = lipschitz(params, activation="tanh", **given)
    before = lipschitz(params, activation=sigma, **given)
    assert_allclose(before.error, named.error, rtol=1e-9)
    slope[...] = 0.25
    after = lipschitz(params, activation=sigma, **given)
    assert np.all(after.error < before.error)
    radius[:] = 9.0
    assert np.all(after.radius == 0.5)
