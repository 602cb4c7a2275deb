"""What every system of `DESCENTS` must do."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import unroll_jax as uj

BATCHES = [(), (3,), (2, 3)]  # ranks 0, 1 and 2
KEYS = 200

every_system = pytest.mark.parametrize("name", uj.DESCENTS)
every_batch = pytest.mark.parametrize("batch", BATCHES, ids=["rank0", "rank1", "rank2"])
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


@functools.cache
def many(name):
    """Parameters, tokens and anchors of a table row for 200 random keys, in float32 and at the largest batch."""

    def one(key):
        key_example, key_init = jax.random.split(key)
        descent, y, x = uj.DESCENTS[name].example(key_example, BATCHES[-1])
        return descent.init(key_init), y, x

    with jax.enable_x64(False):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1, impl="rbg"), KEYS)))


def draw(name, place, batch, dtype):
    """A system of the table, and parameters, tokens and anchor in the batch rank and dtype asked for."""
    descents = []
    jax.eval_shape(lambda key: descents.append(uj.DESCENTS[name].example(key, batch)[0]), jax.random.key(0))
    params, y, x = jax.tree.map(lambda leaf: leaf[place], many(name))
    lead = y.ndim - 2 - len(BATCHES[-1])
    corner = (slice(None),) * lead + {0: (0, 0), 1: (0,), 2: ()}[len(batch)]
    return descents[0], *jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype), (params, y[corner], x if x is None else x[corner])
    )


@every_system
@every_batch
def test_an_example_has_the_batch_asked_for(getkey, name, batch):
    shapes = {
        leaf.shape[:-2]
        for leaf in jax.tree.leaves(jax.eval_shape(lambda key: uj.DESCENTS[name].example(key, batch)[1:], getkey()))
    }
    assert shapes == {batch}


@every_system
@every_batch
@both_dtypes
def test_every_step_lowers_its_energy(name, batch, dtype):
    """200 random keys at once, which also shows that energy and step can be mapped over."""
    with jax.enable_x64(dtype == "float64"):
        descent, *arrays = draw(name, slice(None), batch, dtype)

        def example(params, y, x):
            stepped = descent.step(params, y, x)
            assert (stepped.shape, stepped.dtype) == (y.shape, y.dtype)
            before, after = descent.energy(params, y, x), descent.energy(params, stepped, x)
            assert (before.shape, before.dtype) == (batch, y.dtype)
            return before, after

        before, after = jax.jit(jax.vmap(example))(*arrays)
        assert jnp.all(jnp.isfinite(before))
        assert jnp.all(after <= before + 20 * jnp.finfo(dtype).eps * (1.0 + jnp.abs(before)))
        assert jnp.mean(after < before) > 0.9  # it does not only stand still


@every_system
def test_an_example_does_not_depend_on_its_batch(name):
    descent, *arrays = draw(name, 0, (2, 3), "float32")

    @jax.jit
    def both(params, y, x):
        whole = descent.energy(params, y, x), descent.step(params, y, x)
        apart = jax.vmap(jax.vmap(lambda y, x: (descent.energy(params, y, x), descent.step(params, y, x))))(y, x)
        return whole, apart

    whole, apart = both(*arrays)
    assert whole[0].shape == (2, 3)
    chex.assert_trees_all_close(whole, apart, rtol=2e-5, atol=1e-5)


@every_system
def test_jit_grad_and_scan_work(name):
    descent, params, y, x = draw(name, 0, (3,), "float32")
    eager = descent.step(params, y, x)
    chex.assert_trees_all_close(jax.jit(descent.step)(params, y, x), eager, rtol=1e-5, atol=1e-5)

    def loss(params, y, x):
        layer = lambda y, _: (descent.step(params, y, x), descent.energy(params, y, x))  # noqa: E731
        last, energies = jax.lax.scan(layer, y, length=4)
        return jnp.sum(last**2) + jnp.sum(energies)

    gradients = jax.jit(jax.grad(loss, (0, 1)))(params, y, x)
    assert all(jnp.all(jnp.isfinite(leaf)) and jnp.any(leaf != 0.0) for leaf in jax.tree.leaves(gradients))


@every_system
def test_an_anchor_left_out_is_zero(name):
    descent, *arrays, _ = draw(name, 0, (), "float32")

    @jax.jit
    def both(params, y):
        return [(descent.step(params, y, x), descent.energy(params, y, x)) for x in (None, jnp.zeros_like(y))]

    chex.assert_trees_all_close(*both(*arrays), rtol=1e-6, atol=1e-6)


def minimiser(name, place):
    """A stationary point, found by a quasi-Newton method that knows the energy alone."""
    descent, params, y, x = draw(name, place, (), "float64")
    objective = jax.jit(jax.value_and_grad(lambda flat: descent.energy(params, flat.reshape(y.shape), x)))
    found = minimize(objective, np.ravel(y), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 2000})
    return descent, params, jnp.asarray(found.x).reshape(y.shape), x


def consensus(name, place):
    """A point stationary for both halves of a transformer: equal tokens at the minimum of the feed-forward half."""
    descent, params, y, _ = draw(name, place, (), "float64")
    params = params._replace(W_f=params.W_f @ params.W_f.T)  # its inverse below has a nonnegative image of ones
    target = jnp.ones((1, y.shape[-1]))
    anchor = target @ (jnp.eye(y.shape[-1]) + params.W_f)
    return descent, params, jnp.broadcast_to(target, y.shape), anchor


STATIONARY = {
    "attention": minimiser,
    "softmax_attention": minimiser,
    "feedforward": minimiser,
    "transformer": consensus,
}


def test_every_system_has_a_stationary_point_to_test():
    assert STATIONARY.keys() == uj.DESCENTS.keys()


@pytest.mark.usefixtures("x64")
@every_system
def test_a_stationary_point_is_a_fixed_point(name):
    """Of what the energy sees, that is: attention with a low-rank W_a goes on averaging the rest."""
    for place in range(2):
        descent, params, y, x = STATIONARY[name](name, place)
        gradient = jax.jit(jax.grad(descent.energy, 1))(params, y, x)
        stepped = jax.jit(descent.step)(params, y, x)
        W_a = getattr(params, "W_a", None)
        seen = jnp.eye(y.shape[-1]) if W_a is None or W_a.shape[0] == W_a.shape[1] else W_a
        np.testing.assert_allclose(gradient, 0.0, atol=1e-7)
        np.testing.assert_allclose(stepped @ seen, y @ seen, atol=1e-6)


@every_system
def test_a_point_that_is_not_stationary_moves(name):
    descent, params, y, x = draw(name, 0, (), "float32")
    assert jnp.max(jnp.abs(jax.jit(jax.grad(descent.energy, 1))(params, y, x))) > 1e-4
    assert jnp.max(jnp.abs(jax.jit(descent.step)(params, y, x) - y)) > 1e-4


def test_every_row_of_the_table_names_a_public_factory():
    for name, entry in uj.DESCENTS.items():
        assert getattr(uj, entry.factory.__name__) is entry.factory, name
