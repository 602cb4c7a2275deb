"""Lipschitz constants and rounding errors of chains, against float64 and against
attacks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax import certificates
from unroll_jax.certificates import lipschitz
from unroll_jax.energies import (
    convex_equilibrium,
    convex_potential,
    convex_potential_conv,
)

DEPTH, DIM, IMAGE, CHANNELS = 4, 6, (6, 4), 3


def stacked(layer, seed, spread=1.0):
    """Parameters of all layers with biases, drawn by NumPy; q over a wide range."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(layer.init, jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: rng.normal(size=(DEPTH, *leaf.shape)).astype(np.float32), shapes
    )
    if params.log_q is None:
        return params
    return params._replace(log_q=spread * params.log_q)


def dense(seed=0, **options):
    """A chain of steps on padded vectors with an orthonormal map and a head."""
    layer, rng = convex_potential(DIM, 9, **options), np.random.default_rng(seed + 1)
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
    head = rng.normal(size=(DIM, 3)).astype(np.float32)
    params = stacked(layer, seed)

    def network(params, turn, head, x):
        z = certificates.pad_channels(x, DIM)
        z, _ = uj.unroll(layer, params, z, num_layers=DEPTH, tied=False, record=None)
        return z @ turn @ head

    parts = (1, params, turn, head)
    bound = functools.partial(
        lipschitz, *parts, activation=options.get("activation", "relu")
    )
    return network, parts[1:], bound, (DIM - 2,)


def conv(seed=0, **options):
    """Space to depth, steps on images, pooling."""
    layer = convex_potential_conv(4 * CHANNELS, 5, **options)
    params = stacked(layer, seed)
    inner = IMAGE[0] // 2, IMAGE[1] // 2

    def network(params, x):
        z = certificates.space_to_depth(x, 2)
        z, _ = uj.unroll(layer, params, z, num_layers=DEPTH, tied=False, record=None)
        return certificates.pool(z[..., :2, :, :], 2)

    bound = functools.partial(
        lipschitz,
        1.0,
        params,
        1.0,
        image_shape=inner,
        activation=options.get("activation", "relu"),
    )
    return network, (params,), bound, (*IMAGE, CHANNELS)


def equilibria(seed=0, **options):
    layer = convex_equilibrium(DIM, 9, **options)
    params = stacked(layer, seed)

    def network(params, x):
        for place in range(DEPTH):
            of_layer = jax.tree.map(lambda leaf: leaf[place], params)  # noqa: B023
            z, _ = uj.equilibrium(
                layer,
                of_layer,
                jnp.zeros_like(x),
                x,
                on_failure="accept",
                tol=1e-6 if x.dtype == jnp.float32 else 1e-12,
            )
            x = x - 2.0 * z
        return x

    return (
        network,
        (params,),
        functools.partial(lipschitz, params, strength=0.5, tol=1e-6),
        (DIM,),
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
every_network = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in NETWORKS
    ],
)


def inputs(shape, count=64):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(count, *shape)) * rng.choice(
        [0.0, 0.01, 1.0, 3.0], (count, *(1,) * len(shape))
    )
    return x.astype(np.float32)


def norms(x):
    return np.linalg.norm(x.reshape(len(x), -1).astype(np.float64), axis=1)


@every_network
def test_rounding_errors_and_sizes_stay_within_their_bounds(name):
    """Float32 against float64, example by example; the bound is of use."""
    network, weights, bound_of, shape = NETWORKS[name]()
    x = inputs(shape)
    sizes = norms(x)
    bound = bound_of(size=sizes)
    computed = np.asarray(jax.jit(network)(*weights, x))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (*weights, x))
        exact = np.asarray(jax.jit(network)(*wide))
    assert bound.error.shape == (len(x),)
    assert np.all(norms(computed - exact) <= bound.error)
    assert np.all(norms(computed) <= bound.size)
    assert np.max(bound.error) <= bound_of(size=np.max(sizes)).error
    assert np.max(bound.error) < 1e-2 * np.max(sizes)


@every_network
def test_no_pair_is_moved_further_apart_than_the_constant(name):
    """Sampled Jacobians, and pairs that gradient ascent moved apart; in float64."""
    network, weights, bound_of, shape = NETWORKS[name]()
    bound, x = bound_of(size=1.0), inputs(shape, 8)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), weights)
        start = jnp.asarray(x, jnp.float64)

        def flat(x):
            return jnp.ravel(network(*wide, x.reshape(1, *shape)))

        def ratio(pair):
            u, v = jax.vmap(flat)(pair[0]), jax.vmap(flat)(pair[1])
            apart = pair[0] - pair[1]
            lengths = jnp.sqrt(jnp.sum(apart.reshape(len(apart), -1) ** 2, -1))
            return jnp.sqrt(jnp.sum((u - v) ** 2, -1)) / lengths

        def ascend(pair, _):
            slopes = jax.grad(lambda pair: jnp.sum(ratio(pair)))(pair)
            return jax.tree.map(
                lambda leaf, slope: leaf + 0.2 * slope, pair, slopes
            ), None

        @jax.jit
        def measured(start):
            jacobians = jax.lax.map(jax.jacrev(flat), start)
            pair, _ = jax.lax.scan(ascend, (start, start[::-1] + 0.1), length=10)
            return jacobians, ratio(pair)

        jacobians, ratios = map(np.asarray, measured(start))
    matrices = jacobians.reshape(*jacobians.shape[:2], -1)
    assert np.max(np.linalg.norm(matrices, 2, axis=(1, 2))) <= bound.constant + 1e-9
    assert np.max(ratios) <= bound.constant + 1e-9
    assert np.max(ratios) > 0.1 * bound.constant


def test_chains_are_products_and_continue_where_another_ended():
    rng = np.random.default_rng(3)
    layer = convex_potential(DIM, 9)
    params, M = stacked(layer, 5), rng.normal(size=(DIM, 4))
    whole = lipschitz(1.0, params, M, 0.5, size=2.0)
    first = lipschitz(1.0, params, size=2.0)
    assert first.constant == 1.0
    np.testing.assert_allclose(whole.constant, 0.5 * np.linalg.norm(M, 2), rtol=1e-12)
    assert whole == lipschitz(M, 0.5, size=first)
    single = [jax.tree.map(lambda leaf: leaf[place], params) for place in range(DEPTH)]  # noqa: B023
    assert whole == lipschitz(1.0, *single, M, 0.5, size=2.0)
    assert lipschitz(size=2.0) == (1.0, 0.0, 2.0)
    halved = lipschitz(params, size=2.0, dtype="float64").error / first.error
    assert halved < 1e-8
    assert lipschitz(params, size=2.0, dtype="bfloat16").error > 100.0 * first.error


def test_weights_without_a_bound_have_infinite_errors_and_zeros_none():
    layer = convex_potential(DIM, 9)
    params = stacked(layer, 6)
    zeros = params._replace(W=np.zeros_like(params.W))
    assert lipschitz(zeros, size=1.0).error < 1e-4
    wide = params._replace(log_q=1e6 * params.log_q)
    assert not np.isfinite(lipschitz(wide, size=1.0).error)
