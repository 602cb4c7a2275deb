"""Fast weights: the delta rule, its proximal form and mesa layers, against loops in
float64 NumPy."""

import functools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies.comparing import assert_derivative
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian, jax_array
from unroll_jax import delta_rule, equilibrium, fast_weights, mesa
from unroll_jax.energies.mesa import MesaState

N, K, V = 38, 5, 3


every_read = pytest.mark.parametrize("read", [delta_rule, mesa])


def draw(count=N, batch=(2,)):
    rng = np.random.default_rng(0)
    dtype = jnp.result_type(float)
    q, k, v = (rng.normal(size=(*batch, count, width)) for width in (K, K, V))
    return tuple(
        np.asarray(array, dtype)
        for array in (q, k, v, rng.uniform(size=(*batch, count)) / K)
    )


def delta_reference(q, k, v, b, form, W):
    outputs = []
    for query, key, value, rate in zip(
        *(np.moveaxis(z, 1, 0) for z in (q, k, v, b)), strict=True
    ):
        if form == "proximal":
            rate = rate / (1.0 + rate * np.sum(key**2, axis=-1))
        error = np.einsum("rvk,rk->rv", W, key) - value
        W = W - np.einsum("r,rv,rk->rvk", rate, error, key)
        outputs.append(np.einsum("rvk,rk->rv", W, query))
    return np.stack(outputs, axis=1), W


def mesa_reference(q, k, v, b, ridge):
    """Ridge regression on every prefix, and the sums of all pairs."""
    H, G = (np.cumsum(np.einsum("rs,rsk,rsv->rskv", b, k, z), axis=1) for z in (k, v))
    solved = np.linalg.solve(H + ridge * np.eye(K), q[..., None])[..., 0]
    return np.einsum("rsk,rskv->rsv", solved, G), MesaState(H[:, -1], G[:, -1])


def in_halves(read, arrays, state):
    """Reads the second half of a sequence from the state after the first."""
    parts = []
    for half in zip(*(jnp.split(array, 2, axis=1) for array in arrays), strict=True):
        outputs, state, *residuals = read(*half, state=state)
        parts.append((outputs, *residuals))
    joined = [jnp.concatenate(each, axis=1) for each in zip(*parts, strict=True)]
    return joined[0], state, *joined[1:]


@in_float64
def test_the_delta_rule_in_chunks_is_the_loop():
    """The proximal form only has other rates."""
    arrays = draw()
    W = gaussian(2, V, K, seed=5)

    @compiled
    def run(W, *arrays):
        results = {
            form: [in_halves(partial(delta_rule, form=form, chunk_size=8), arrays, W)]
            for form in ("gradient", "proximal")
        }
        whole = [delta_rule(*arrays, chunk_size=size, state=W) for size in (1, 64)]
        results["gradient"] += whole
        alone = delta_rule(*(array[1] for array in arrays), chunk_size=8, state=W[1])
        return results, alone

    results, alone = run(W, *arrays)
    close = partial(chex.assert_trees_all_close, rtol=0.0, atol=1e-11)
    for form, of_form in results.items():
        expected = delta_reference(*arrays, form, W)
        for result in of_form:
            close(result, expected)
        if form == "gradient":
            close(alone, (expected[0][1], expected[1][1]))


@in_float64
def test_a_delta_rule_pair_is_a_fast_weight_step():
    q, k, v, _ = draw(count=1)
    pair = np.concatenate([k, v], axis=-1)
    W = gaussian(2, V, K, seed=5)
    rates = {"gradient": 0.7 / np.sum(k**2, axis=-1), "proximal": np.full((2, 1), 2.0)}
    sizes = {"gradient": 0.7, "proximal": 2.0}

    @compiled
    def run(W, pair, rates, *arrays):
        return {
            form: [
                fast_weights(K, V, form=form, step_size=size).step(None, W, pair),
                delta_rule(*arrays, rates[form], form=form, state=W)[1],
            ]
            for form, size in sizes.items()
        }

    for form, states in run(W, pair, rates, q, k, v).items():
        expected = delta_reference(q, k, v, rates[form], form, W)[1]
        chex.assert_trees_all_close(states, [expected] * 2, rtol=1e-7, atol=1e-12)
    # learns W k = v. The square of a key of 1e20 is not in float32
    full = compiled(fast_weights(4, 3).step)
    for size, learned in ((1e10, 0.25), (5e18, 0.25), (1e20, np.nan)):
        pair = np.float32([[size] * 4 + [1.0] * 3])
        W = np.full((3, 4), 1.0 / size, np.float32)
        assert_allclose(size * full(None, W, pair), learned, rtol=1e-5)


@in_float64
def test_a_mesa_layer_is_ridge_regression_on_every_prefix():
    arrays = draw()
    read = partial(mesa, ridge=0.3, tol=1e-12)

    @compiled
    def run(*arrays):
        start = MesaState(jnp.zeros((2, K, K)), jnp.zeros((2, K, V)))
        parts = in_halves(partial(read, chunk_size=8), arrays, start)
        return parts, read(*arrays, chunk_size=64)

    expected, sums = mesa_reference(*arrays, ridge=0.3)
    for outputs, state, residuals in run(*arrays):
        assert_allclose(outputs, expected, atol=1e-10)
        chex.assert_trees_all_close(state, sums, rtol=1e-7, atol=1e-12)
        assert residuals.shape == (2, N)
        assert np.all(residuals <= 1e-12)


@nightly
@in_float64
def test_the_equilibrium_of_fast_weights_is_a_mesa_layer():
    q, k, v, _ = draw()

    @jax.jit
    def run(q, k, v):
        pairs = jnp.concatenate([k, v], axis=-1)
        options = {"tol": 1e-10, "max_steps": 5000}
        equilibria = []
        for form in ("gradient", "proximal"):
            layer = fast_weights(K, V, form=form, ridge=0.5)
            W = jnp.zeros((2, V, K))
            equilibria.append(equilibrium(layer, None, W, pairs, **options))
        return (
            mesa(q, k, v, jnp.ones(k.shape[:-1]), ridge=0.5, tol=1e-12)[0],
            equilibria,
        )

    outputs, equilibria = run(q, k, v)
    for W, info in equilibria:
        assert np.all(info.converged)
        assert_allclose(np.einsum("rvk,rk->rv", W, q[:, -1]), outputs[:, -1], atol=1e-7)


@in_float64
@pytest.mark.parametrize("read", [delta_rule, partial(mesa, tol=1e-13, ridge=0.3)])
def test_gradients_of_sequences(read):
    arrays = draw(count=10)
    weight = gaussian(2, 10, V, seed=7)
    assert_derivative(
        lambda arrays: jnp.sum(weight * read(*arrays, chunk_size=4)[0]),
        arrays,
        rtol=1e-6,
    )


@nightly
@pytest.mark.parametrize("layer", [delta_rule, mesa])
def test_memory_of_value_and_gradient_is_linear_in_the_sequence(layer):
    def temporaries(count):
        wide, rates = (
            jax.ShapeDtypeStruct((count, *width), jnp.float32) for width in ((16,), ())
        )
        total = lambda arrays: jnp.sum(layer(*arrays)[0] ** 2)
        program = jax.jit(jax.grad(total)).lower((wide, wide, wide, rates))
        return program.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4096) < 4.5 * temporaries(1024)


@every_read
def test_an_empty_sequence_leaves_the_state(read):
    def total(values, queries, rates):
        outputs, *others = read(queries, queries, values, rates)
        return jnp.sum(outputs), (outputs, *others)

    @compiled
    def run():
        return {
            shape: jax.grad(total, has_aux=True)(
                jnp.ones((*shape, 3)), jnp.ones((*shape, 4)), jnp.ones(shape)
            )
            for shape in ((2, 0), (0, 5))
        }

    for shape, (gradient, (outputs, state, *residuals)) in run().items():
        assert gradient.shape == outputs.shape == (*shape, 3)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(state)), shape
        assert [residual.shape for residual in residuals] == [shape] * (read is mesa)


def test_mesa_queries_of_zero_and_nan_and_unsolved_systems():
    ones = np.ones((5, 4), np.float32)

    def total(queries):
        outputs, _, residuals = mesa(
            queries, *map(jnp.asarray, (ones, ones, ones[:, 0])), chunk_size=2
        )
        return jnp.sum(outputs) + jnp.sum(residuals), outputs

    queries = np.float32([1.0, 0.0, 1.0, np.nan, 1.0])[:, None] * ones
    gradient, outputs = compiled(jax.grad(total, has_aux=True))(queries)
    *_, unsolved = compiled(partial(mesa, ridge=1e-4, max_steps=1))(*draw(count=9))
    assert np.max(unsolved) > 1e-2
    assert_array_equal(np.isnan(outputs).all(axis=-1), np.arange(5) == 3)
    assert np.isfinite(gradient[:2]).all()


@pytest.mark.parametrize("read", [delta_rule, partial(mesa, ridge=0.3)])
def test_sequences_of_bfloat16_are_computed_in_float32(read):
    arrays = [jax_array(array, jnp.bfloat16) for array in draw(count=9)]

    @compiled
    def run(*arrays):
        wide = [array.astype(jnp.float32) for array in arrays]
        return read(*arrays), read(*wide)

    (outputs, state, *_), (expected, ends, *_) = run(*arrays)
    assert outputs.dtype == jnp.bfloat16
    assert_array_equal(outputs, expected.astype(jnp.bfloat16))
    chex.assert_trees_all_equal(state, ends)


@in_float64
def test_mesa_of_any_size_is_that_of_float64():
    """Of size 1: keys and queries of another one, with a ridge of its square, have
    the same outputs."""
    queries, keys, values, towards = gaussian(4, 9, 4)

    @partial(compiled, static_argnums=(0, 1))
    def run(size, dtype):
        arguments = [
            jnp.asarray(leaf, dtype) for leaf in (size * queries, size * keys, values)
        ]

        def read(*leaves):
            return mesa(*leaves, jnp.ones(9, dtype), ridge=size**2, tol=1e-7)[0]

        outputs, pull = jax.vjp(read, *arguments)
        of_queries, of_keys, of_values = pull(jnp.asarray(towards, dtype))
        return outputs, size * of_queries, size * of_keys, of_values

    expected = run(1.0, "float64")
    for size in (1e-10, 1e10):
        for theirs, leaf in zip(expected, run(size, "float32"), strict=True):
            assert_allclose(leaf, theirs, rtol=1e-4, atol=1e-4, err_msg=str(size))


PAIRS_OF_KEYS = {
    "one": np.eye(1, 5) + 1.0,
    "few": gaussian(3, 5, seed=1),
    "equal": np.tile(gaussian(1, 5, seed=2), (3, 1)),
    "one of zero": gaussian(3, 5, seed=3) * [[1.0], [0.0], [1.0]],
    "many": gaussian(9, 5, seed=4),
    "many in a plane": np.round(gaussian(9, 2, seed=5))
    @ np.array([[1.0, 2.0, 0.0, 1.0, -1.0], [0.0, 1.0, 1.0, -2.0, 1.0]]),
}


SIZES = (1e-3, 1.0, 1e4, 1e8, 1e30)


@partial(compiled, static_argnums=0)
def proximal_steps(ridge, W, pairs):
    """The energy before, and gradients, states and energies of a step of each size."""

    def step(pairs, layer):
        stepped = layer.step(None, W, pairs)
        return jnp.sum(stepped**2), (stepped, layer.energy(None, stepped, pairs))

    layers = [
        fast_weights(K, V, step_size=size, form="proximal", ridge=ridge)
        for size in SIZES
    ]
    before = layers[0].energy(None, W, pairs)
    return before, [jax.grad(step, has_aux=True)(pairs, layer) for layer in layers]


@pytest.mark.parametrize("kind", PAIRS_OF_KEYS)
def test_proximal_steps_of_any_length_are_right_in_float32(kind):
    """Against singular values in float64, whose null directions are kept exactly."""
    keys = np.float32(PAIRS_OF_KEYS[kind]).astype(float)
    values = np.float32(gaussian(len(keys), V, seed=6)).astype(float)
    if kind == "equal":
        values[:] = values[0]
    W = np.float32(100.0 * gaussian(V, K, seed=7)).astype(float)
    left, singular, right = np.linalg.svd(keys, full_matrices=False)
    pairs = np.float32(np.concatenate([keys, values], axis=1))
    residual = np.max(np.abs(values - keys @ W.T))
    for ridge in (0.0, 0.1):
        before, results = proximal_steps(ridge, np.float32(W), pairs)
        for size, (gradient, (stepped, after)) in zip(SIZES, results, strict=True):
            start = W / (1.0 + size * ridge)
            found = singular > 1e-12 * singular[0]
            inverse = np.where(
                found, singular / (1.0 / size + ridge + singular**2), 0.0
            )
            change = (values - keys @ start.T).T @ (left * inverse) @ right
            # keys in a plane contradict each other
            near = 2e-3 if kind == "many in a plane" else 3e-6
            error = np.max(np.abs(stepped - start - change))
            assert error <= near * residual, f"{kind}, {size}, {ridge}"
            assert after <= before
            assert np.isfinite(gradient).all()


@functools.cache
def in_chunks(read):
    return compiled(partial(read, chunk_size=4))


@every_read
def test_pairs_of_rate_zero_are_left_out_whatever_they_hold(read):
    queries, keys, values, rates = draw(count=8)
    rates[:, [1, 6]] = 0.0
    expected = in_chunks(read)(queries, keys, values, rates)
    for held in (np.nan, np.inf, -np.inf, 1e30):
        for place in (1, 2):
            arrays = [queries, keys.copy(), values.copy(), rates]
            arrays[place][:, [1, 6], 0] = held
            chex.assert_trees_all_equal(in_chunks(read)(*arrays), expected)


@every_read
def test_broken_pairs_and_negative_rates_give_nan_from_there_on(read):
    """Outputs do not depend on later pairs. The rates are traced: known ones below 0
    are an error, in test_errors.py."""
    arrays = draw(count=8)
    expected, _, *_ = in_chunks(read)(*arrays)
    for place, wrong in ((1, np.nan), (2, np.nan), (3, np.nan), (3, -0.5)):
        broken = [array.copy() for array in arrays]
        broken[place][0, 5] = wrong
        outputs, state, *_ = in_chunks(read)(*broken)
        words = f"{place}, {wrong}"
        assert_array_equal(outputs[1], expected[1], err_msg=words)
        assert_array_equal(outputs[0, :5], expected[0, :5], err_msg=words)
        assert np.isnan(outputs[0, 5:]).all(), words
        assert all(np.isnan(leaf[0]).all() for leaf in jax.tree.leaves(state)), words


@in_float64
@pytest.mark.parametrize("read", [delta_rule, partial(mesa, tol=1e-13)])
def test_a_rate_of_zero_differentiates_like_a_small_one(read):
    queries, keys, values, rates = draw(count=4, batch=())
    rates[2] = 0.0
    direction = np.eye(4)[2]

    @compiled
    def run(queries, keys, values, rates):
        def total(rate):
            return jnp.sum(read(queries, keys, values, rates + rate * direction)[0])

        value, slope = jax.jvp(total, (0.0,), (1.0,))
        return slope, (total(1e-6) - value) / 1e-6

    slope, difference = run(queries, keys, values, rates)
    assert_allclose(slope, difference, rtol=1e-4)
    assert abs(slope) > 1e-2
