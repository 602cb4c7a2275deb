"""Fast weights: the delta rule, its proximal form and mesa layers, against loops in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from unroll_jax import Anchor, delta_rule, equilibrium, fast_weights, mesa

N, K, V = 37, 5, 3


def draw(count=N, batch=(2,)):
    rng, dtype = np.random.default_rng(0), jnp.result_type(float)
    q, k, v = (rng.normal(size=(*batch, count, width)) for width in (K, K, V))
    return tuple(jnp.asarray(array, dtype) for array in (q, k, v, rng.uniform(size=(*batch, count)) / K))


def delta_reference(q, k, v, b, form, W):
    outputs = []
    for t in range(len(q)):
        rate = b[t] / (1 + b[t] * k[t] @ k[t]) if form == "proximal" else b[t]
        W = W - rate * np.outer(W @ k[t] - v[t], k[t])
        outputs.append(W @ q[t])
    return np.stack(outputs), W


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["gradient", "proximal"])
@pytest.mark.parametrize(("chunk_size", "batch"), [(1, ()), (8, (2,)), (64, (2, 1))])
def test_the_delta_rule_in_chunks_is_the_loop(form, chunk_size, batch):
    q, k, v, b = draw(batch=batch)
    W = np.random.default_rng(5).normal(size=(*batch, V, K))
    outputs, end = jax.jit(lambda *arrays, state: delta_rule(*arrays, form=form, chunk_size=chunk_size, state=state))(
        q, k, v, b, state=W
    )
    flat = [np.asarray(array).reshape(-1, *array.shape[len(batch) :]) for array in (q, k, v, b)]
    for row, (start, expected, last) in enumerate(
        zip(W.reshape(-1, V, K), outputs.reshape(-1, N, V), end.reshape(-1, V, K), strict=True)
    ):
        reference, W_end = delta_reference(*(array[row] for array in flat), form, np.asarray(start))
        np.testing.assert_allclose(expected, reference, atol=1e-11)
        np.testing.assert_allclose(last, W_end, atol=1e-11)


@pytest.mark.usefixtures("x64")
def test_one_pair_of_the_delta_rule_is_a_step_of_fast_weights():
    q, k, v, _ = draw(count=1)
    pair, W = np.concatenate([k, v], axis=-1), np.random.default_rng(5).normal(size=(2, V, K))

    @jax.jit
    def both(q, k, v, pair, W):
        results = []
        for form, step_size in (("gradient", 0.7), ("proximal", 2.0)):
            stepped = fast_weights(K, V, form=form, step_size=step_size).step(None, W, pair)
            rate = step_size / jnp.sum(k**2, axis=-1) if form == "gradient" else jnp.full((2, 1), step_size)
            results.append((stepped, delta_rule(q, k, v, rate, form=form, state=W)[1]))
        return results

    for stepped, end in both(q, k, v, pair, W):
        np.testing.assert_allclose(stepped, end, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["gradient", "proximal"])
def test_absent_pairs_do_not_count_whatever_they_hold(form):
    layer, W = fast_weights(K, V, form=form, ridge=0.1), np.random.default_rng(5).normal(size=(2, V, K))
    pairs = np.random.default_rng(6).normal(size=(2, 7, K + V))
    padded = np.where(np.arange(7)[:, None] < 4, pairs, np.nan)

    @jax.jit
    def run(W, x):
        loss = lambda W: jnp.sum(layer.energy(None, W, x)) + jnp.sum(layer.step(None, W, x) ** 2)  # noqa: E731
        return layer.energy(None, W, x), layer.step(None, W, x), jax.grad(loss)(W)

    present = np.broadcast_to(np.arange(7) < 4, (2, 7))
    for ours, expected in zip(run(W, Anchor(padded, present)), run(W, pairs[:, :4]), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("chunk_size", [8, 64])
def test_a_mesa_layer_is_ridge_regression_on_every_prefix(chunk_size):
    q, k, v, b = map(np.asarray, draw())
    outputs, state, residuals = jax.jit(lambda *a: mesa(*a, ridge=0.3, tol=1e-12, chunk_size=chunk_size))(q, k, v, b)
    for t in (0, 6, 20, N - 1):
        H, G = (np.einsum("rs,rsk,rsv->rkv", b[:, : t + 1], k[:, : t + 1], z[:, : t + 1]) for z in (k, v))
        solved = np.linalg.solve(H + 0.3 * np.eye(K), q[:, t, :, None])[..., 0]
        np.testing.assert_allclose(outputs[:, t], np.einsum("rk,rkv->rv", solved, G), atol=1e-10)
    np.testing.assert_allclose(state.G, G, atol=1e-12)
    assert residuals.shape == (2, N)
    assert np.all(residuals <= 1e-12)


@pytest.mark.usefixtures("x64")
def test_a_sequence_read_in_two_parts_is_the_sequence():
    @jax.jit
    def run(arrays):
        parts = [[array[:, :20] for array in arrays], [array[:, 20:] for array in arrays]]
        first = mesa(*parts[0], tol=1e-12)
        second = mesa(*parts[1], tol=1e-12, state=first[1])
        state = delta_rule(*parts[1], state=delta_rule(*parts[0])[1])[1]
        whole = mesa(*arrays, tol=1e-12)[0], delta_rule(*arrays)[1]
        return (jnp.concatenate([first[0], second[0]], axis=1), state), whole

    for got, expected in zip(*run(draw()), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_equilibrium_of_fast_weights_is_what_a_mesa_layer_ends_at():
    q, k, v, _ = draw()

    @jax.jit
    def run(q, k, v):
        pairs = jnp.concatenate([k, v], axis=-1)
        layers = [fast_weights(K, V, form=form, ridge=0.5) for form in ("gradient", "proximal")]
        equilibria = [
            equilibrium(each, None, jnp.zeros((2, V, K)), pairs, tol=1e-10, max_steps=5000) for each in layers
        ]
        return mesa(q, k, v, jnp.ones(k.shape[:-1]), ridge=0.5, tol=1e-12)[0], equilibria

    outputs, equilibria = run(q, k, v)
    for W, info in equilibria:
        assert np.all(info.converged)
        np.testing.assert_allclose(np.einsum("rvk,rk->rv", W, q[:, -1]), outputs[:, -1], atol=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("layer", [delta_rule, lambda *a, **kw: mesa(*a, tol=1e-13, ridge=0.3, **kw)])
def test_gradients_of_sequences(layer):
    outputs = jax.jit(lambda *arrays: layer(*map(jnp.asarray, arrays), chunk_size=4)[0])
    check_grads(outputs, draw(count=10), 1, modes=("rev",))


def test_a_system_that_is_not_solved_is_told_by_its_residual():
    *_, residuals = mesa(*draw(), ridge=1e-4, max_steps=1)
    assert np.max(residuals) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("layer", [delta_rule, mesa])
def test_memory_of_value_and_gradient_is_linear_in_the_sequence(layer):
    def temporaries(count):
        shapes = [jax.ShapeDtypeStruct((count, width), jnp.float32) for width in (16, 16, 16)]
        gradient = jax.grad(lambda *arrays: jnp.sum(layer(*arrays)[0] ** 2), (0, 1, 2, 3))
        compiled = jax.jit(gradient).lower(*shapes, jax.ShapeDtypeStruct((count,), jnp.float32)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(4096) < 4.5 * temporaries(1024)


def test_a_rate_too_high_raises_the_error_of_the_delta_rule_and_never_that_of_its_proximal_form():
    key, value = jnp.ones((1, K)), jnp.ones((1, V))
    for form, risen in (("gradient", True), ("proximal", False)):
        _, W = delta_rule(key, key, value, jnp.full(1, 2.5 / K * 10), form=form)
        assert (float(jnp.sum((W @ key[0] - value[0]) ** 2)) > float(jnp.sum(value**2))) == risen


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 5)])
@pytest.mark.parametrize("read", [delta_rule, mesa])
def test_an_empty_sequence_is_read_to_empty_outputs_and_the_state_it_started_from(read, shape):
    queries, values, rates = jnp.ones((*shape, 4)), jnp.ones((*shape, 3)), jnp.ones(shape)
    outputs, state, *residuals = read(queries, queries, values, rates)
    assert outputs.shape == values.shape
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(state))
    assert [residual.shape for residual in residuals] == [shape] * (read is mesa)
    assert jax.grad(lambda values: jnp.sum(read(queries, queries, values, rates)[0]))(values).shape == values.shape


def test_a_query_of_zero_has_a_finite_gradient_and_one_of_nan_no_number_as_output():
    ones = jnp.ones((5, 4))

    def total(queries):
        outputs, _, residuals = mesa(queries, ones, ones, jnp.ones(5), chunk_size=2)
        return jnp.sum(outputs) + jnp.sum(residuals), outputs

    (_, outputs), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(ones.at[1].set(0.0).at[3].set(jnp.nan))
    np.testing.assert_array_equal(np.isnan(outputs).all(axis=-1), np.arange(5) == 3)
    assert np.isfinite(gradient[:2]).all()


@pytest.mark.parametrize("size", [1e-10, 1e10])
def test_mesa_of_any_size_is_that_of_float64(size):
    queries, keys, values, towards = np.random.default_rng(0).normal(size=(4, 9, 4))
    queries, keys = size * queries, size * keys

    def run(dtype):
        arguments = [jnp.asarray(leaf, dtype) for leaf in (queries, keys, values)]
        read = lambda *leaves: mesa(*leaves, jnp.ones(9, dtype), ridge=size**2, tol=1e-7)[0]  # noqa: E731
        outputs, pull = jax.vjp(read, *arguments)
        of_queries, of_keys, of_values = pull(jnp.asarray(towards, dtype))
        return outputs, size * of_queries, size * of_keys, of_values

    with jax.enable_x64(True):
        expected, ours = (jax.jit(run, static_argnums=0)(dtype) for dtype in ("float64", "float32"))
    for theirs, leaf in zip(expected, ours, strict=True):
        np.testing.assert_allclose(leaf, theirs, rtol=1e-4, atol=1e-4)
