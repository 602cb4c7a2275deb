"""Loops of one block: a Python loop in float64, their gradients, memory and program size."""

import chex
import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.errors import assert_names
from unroll_jax.looped import run_loops

WIDTH = 5


def block(params, h, x):
    return jnp.tanh(h @ params["weight"] + x)


def arguments(*batch, scale=0.3, seed=0):
    rng = np.random.default_rng(seed)
    params = {"weight": jnp.asarray(scale * rng.normal(size=(WIDTH, WIDTH)))}
    h, x = (jnp.asarray(rng.normal(size=(*batch, WIDTH))) for _ in range(2))
    return params, h, x


def python_loop(params, h, x, loops):
    states = [np.asarray(h)]
    for _ in range(loops):
        states.append(np.tanh(states[-1] @ np.asarray(params["weight"]) + np.asarray(x)))
    return np.stack(states)


@pytest.mark.parametrize(("batch", "remat"), [((), False), ((2, 3), True)])
def test_states_are_those_of_a_python_loop(batch, remat, x64):
    params, h, x = arguments(*batch)
    run = jax.jit(lambda *a: run_loops(block, *a, loops=6, record=lambda h: h, remat=remat))
    state, records = run(params, h, x)
    chex.assert_trees_all_close(records, python_loop(params, h, x, 6), rtol=1e-12)
    chex.assert_trees_all_close(state, records[-1])


def test_free_loops_come_before_the_others(x64):
    params, h, x = arguments(3)
    states = python_loop(params, h, x, 9)
    for free in (4, np.int64(4), jnp.int32(4)):
        _, records = run_loops(block, params, h, x, loops=5, free=free, record=lambda h: h)
        chex.assert_trees_all_close(records, states[4:], rtol=1e-12)
    assert run_loops(block, params, h, x, loops=5)[1] is None


def test_a_traced_number_of_loops_stops_there_and_repeats_the_last_record(x64):
    params, h, x = arguments(2)
    run = jax.jit(lambda n: run_loops(block, params, h, x, loops=n, most=7, record=lambda h: h))
    states = python_loop(params, h, x, 7)
    for count in (0, 1, 4, 7):
        state, records = run(count)
        chex.assert_trees_all_close(records, states[np.minimum(np.arange(8), count)], rtol=1e-12)
        chex.assert_trees_all_close(state, states[count], rtol=1e-12)


def truncated_gradient(params, h, x, free, loops):
    def loss(params, h, x):
        detached = jax.lax.stop_gradient((params, h, x))
        far = h
        for _ in range(free):
            far = block(detached[0], detached[1] if far is h else far, detached[2])
        for _ in range(loops):
            far = block(params, far, x)
        return jnp.sum(far**2)

    return jax.grad(loss, argnums=(0, 1, 2))(params, h, x)


@pytest.mark.parametrize("traced", [False, True])
def test_gradients_are_those_through_the_last_loops(traced, x64):
    operands = arguments(2)

    def gradient(operands, free, loops):
        def loss(params, h, x):
            most = None if isinstance(loops, int) else 6
            return jnp.sum(run_loops(block, params, h, x, loops=loops, free=free, most=most)[0] ** 2)

        return jax.grad(loss, argnums=(0, 1, 2))(*operands)

    gradient = jax.jit(gradient) if traced else gradient
    for free, loops in ((0, 4), (3, 4), (3, 1)):
        expected = truncated_gradient(*operands, free, loops)
        chex.assert_trees_all_close(gradient(operands, free, loops), expected, rtol=1e-10, atol=1e-14)


def test_remat_changes_no_gradient_and_needs_less_memory():
    params, h, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arguments(64))

    def wide(params, h, x):
        return jnp.mean(jnp.sin(h[..., None] * jnp.arange(32.0)), axis=-1) @ params["weight"] + x

    gradients, memory = [], []
    for remat in (False, True):
        loss = lambda p, remat=remat: jnp.sum(run_loops(wide, p, h, x, loops=32, remat=remat)[0])  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
        gradients.append(compiled(params))
    chex.assert_trees_all_close(*gradients, rtol=1e-4)
    assert memory[1] < 0.5 * memory[0]


def gradient_program(loops, **options):
    params, h, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arguments(8))
    loss = lambda p: jnp.sum(run_loops(block, p, h, x, loops=loops, record=jnp.mean, **options)[0])  # noqa: E731
    return jax.jit(jax.grad(loss)).lower(params)


@pytest.mark.parametrize("options", [{}, {"remat": True}, {"free": 50}])
def test_a_program_of_64_loops_is_as_large_as_one_of_4(options):
    few, many = (len(gradient_program(loops, **options).as_text().splitlines()) for loops in (4, 64))
    assert few == many


def test_blocks_of_other_libraries_loop():
    x, key = jnp.ones((2, WIDTH)), jax.random.key(0)
    linen, module = nn.Dense(WIDTH), equinox.nn.MLP(WIDTH, WIDTH, 4, 1, key=key)
    graph, state = nnx.split(nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)))
    blocks = [
        (lambda params, h, x: jnp.tanh(linen.apply(params, h) + x), linen.init(key, x)),
        (lambda module, h, x: jnp.tanh(jax.vmap(module)(h) + x), module),
        (lambda state, h, x: jnp.tanh(nnx.merge(graph, state)(h) + x), state),
    ]
    for step, params in blocks:
        expected = x
        for _ in range(3):
            expected = step(params, expected, x)
        for free in (0, 1, jnp.int32(1)):
            state, _ = run_loops(step, params, x, x, loops=3 - int(free), free=free)
            chex.assert_trees_all_close(state, expected, rtol=1e-6)


def test_a_block_that_changes_the_shape_of_the_state_is_an_error():
    for free in (0, 1):
        with pytest.raises(ValueError, match="block must keep shape and dtype"):
            run_loops(lambda params, h, x: h[:1], None, jnp.ones(3), loops=2, free=free)


def test_bad_arguments_are_named():
    call = lambda loops=2, **options: run_loops(block, *arguments(2), loops=loops, **options)  # noqa: E731
    for options in ({"loops": 0}, {"free": -1}, {"most": 0}, {"loops": jnp.int32(2), "most": None}):
        assert_names(ValueError, call, options)
    for loops in (2.0, True):
        assert_names(TypeError, call, {"loops": loops})
