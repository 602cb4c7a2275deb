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
NEED_THEIR_INPUT = {"cross_attention", "lista", "dust"}  # its keys, or its signal

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
    lead = y.ndim - uj.DESCENTS[name].event_ndim - len(BATCHES[-1])
    corner = (slice(None),) * lead + {0: (0, 0), 1: (0,), 2: ()}[len(batch)]
    return descents[0], *jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype), (params, y[corner], x if x is None else x[corner])
    )


@every_system
@every_batch
def test_an_example_has_the_batch_asked_for(getkey, name, batch):
    shapes = {
        leaf.shape[: -uj.DESCENTS[name].event_ndim]
        for leaf in jax.tree.leaves(jax.eval_shape(lambda key: uj.DESCENTS[name].example(key, batch)[1:], getkey()))
    }
    assert shapes == {batch}


def roundoff(energy, params, y, stepped, x, event_ndim=2):
    """What the energies of y and of the step may miss by, made of round-off alone.

    Each energy is computed as if its tokens and anchors were off by some units of round-off, and the step is rounded
    likewise, relative to the largest token or anchor. So: that relative error times the sum of |dE/dz| max|z| over all
    entries z of both points, plus the same share of the energy itself; 32 units, as sums have up to 20 terms.
    """
    event = tuple(range(-event_ndim, 0))
    largest = [jnp.max(jnp.abs(array), axis=event) for array in (y, stepped, x) if array is not None]
    size = functools.reduce(jnp.maximum, largest)

    def sensitivity(y):
        gradients = jax.grad(lambda *tokens: jnp.sum(energy(params, *tokens)), (0,) if x is None else (0, 1))(y, x)
        return sum(jnp.sum(jnp.abs(gradient), axis=event) for gradient in gradients) * size + jnp.abs(
            energy(params, y, x)
        )

    return 32.0 * jnp.finfo(y.dtype).eps * (sensitivity(y) + sensitivity(stepped))


@every_system
@every_batch
@both_dtypes
def test_every_step_lowers_its_energy_where_its_condition_holds(name, batch, dtype):
    """200 random keys at once, tokens and anchors scaled over six orders of magnitude; also shows that both map."""
    condition = uj.DESCENTS[name].condition
    with jax.enable_x64(dtype == "float64"):
        descent, *arrays = draw(name, slice(None), batch, dtype)
        scales = jnp.asarray(np.random.default_rng(2).permutation(np.logspace(-3.0, 3.0, KEYS)), dtype)

        def example(params, y, x, scale):
            y, x = jax.tree.map(lambda tokens: scale * tokens, (y, x))
            stepped = descent.step(params, y, x)
            assert (stepped.shape, stepped.dtype) == (y.shape, y.dtype)
            before, after = descent.energy(params, y, x), descent.energy(params, stepped, x)
            assert (before.shape, before.dtype) == (batch, y.dtype)
            held = jnp.ones(batch, bool) if condition is None else condition(params, y, x)
            assert (held.shape, held.dtype) == (batch, bool)
            return before, after, held, roundoff(descent.energy, params, y, stepped, x, uj.DESCENTS[name].event_ndim)

        before, after, held, tolerance = jax.jit(jax.vmap(example))(*arrays, scales)
        assert jnp.mean(held) >= (1.0 if condition is None else 0.3)  # a condition is no excuse
        assert jnp.all(jnp.where(held, jnp.isfinite(before) & jnp.isfinite(tolerance), True))
        assert jnp.all(jnp.where(held, after <= before + tolerance, True))
        lowered = held & (after < before - tolerance)
        assert jnp.sum(lowered) > 0.4 * jnp.sum(held)  # by more than round-off: it does not only stand still


@pytest.mark.usefixtures("x64")
def test_the_same_check_finds_the_step_that_raises_the_papers_energy():
    """Theorem 3.1 of Yang et al. (2022) as printed, R = |Y|^2 / 2: a hub and six leaves."""
    leaves = np.concatenate([np.full((6, 1), 999.5), 2.0 * np.eye(6)], axis=1)
    y = jnp.asarray(np.concatenate([1000.0 * np.eye(1, 7), leaves]))
    exact = uj.attention(ridge=1.0)
    params = exact.init(jax.random.key(0))
    for step, rises in ((uj.attention(form="softmax").step, True), (exact.step, False)):
        stepped = step(params, y)
        tolerance = roundoff(exact.energy, params, y, stepped, None)
        assert (exact.energy(params, stepped) > exact.energy(params, y) + tolerance) == rises


@pytest.mark.usefixtures("x64")
@every_system
def test_step_and_energy_at_once_are_step_and_energy(name):
    descent, *arrays = draw(name, 0, (2, 3), "float64")
    if descent.step_and_energy is None:
        pytest.skip(f"{name} has nothing to share")

    @jax.jit
    def both(*args):
        return descent.step_and_energy(*args), (descent.step(*args), descent.energy(*args))

    chex.assert_trees_all_close(*both(*arrays), rtol=1e-12, atol=1e-14)


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
def test_an_input_left_out_is_zero_or_missed(name):
    descent, *arrays, x = draw(name, 0, (), "float32")
    if name in NEED_THEIR_INPUT:
        for function in (descent.energy, descent.step):
            with pytest.raises(ValueError, match=r"x must hold .*, got None"):
                function(*arrays, None)
        return

    @jax.jit
    def both(params, y):
        stand_in = y if name == "causal_attention" else jnp.zeros_like(y if x is None else x)  # its own context
        return [(descent.step(params, y, x), descent.energy(params, y, x)) for x in (None, stand_in)]

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


def anchored_consensus(name, place):
    """The same with anchors: the attention half's is the consensus, and the learnable row takes up the penalty too."""
    descent, params, y, _ = draw(name, place, (), "float64")
    target = 0.5 * jnp.ones((1, y.shape[-1]))
    pull = (jnp.arctanh(target) - target) / 0.02  # phi' where phi belongs to tanh at step size 0.02
    row = target + target @ (params.W_f + params.W_f.T) / 2 + pull
    return descent, params._replace(row=row), jnp.broadcast_to(target, y.shape), jnp.broadcast_to(target, y.shape)


def sparse_consensus(name, place):
    """Equal codes that are the sparse ones of their signal: (x - H D) D^T = lambda sign(H), where D e_0 = 1."""
    descent, params, y, x = draw(name, place, (), "float64")
    codes = jnp.broadcast_to(1.0 + jnp.abs(y[0]), y.shape)
    params = params._replace(D=params.D.at[:, 0].set(1.0))
    return descent, params, codes, codes @ params.D + 0.1 * jnp.eye(x.shape[-1])[0]  # 0.1 is the sparsity


# Where a stationary point comes from, if not from `minimiser`.
STATIONARY = {
    "transformer": consensus,
    "residual_transformer": anchored_consensus,
    "lista": sparse_consensus,
    "dust": sparse_consensus,
}


def test_every_stationary_point_is_of_a_system():
    assert STATIONARY.keys() <= uj.DESCENTS.keys()


@pytest.mark.usefixtures("x64")
@every_system
def test_a_stationary_point_is_a_fixed_point(name):
    """Of what the energy sees, that is: attention with a low-rank W_a goes on averaging the rest."""
    for place in range(2):
        descent, params, y, x = STATIONARY.get(name, minimiser)(name, place)
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
