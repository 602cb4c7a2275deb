"""Loops of one block: a Python loop in float64, their gradients, memory and program
size."""

import functools

import chex
import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.reference import compiled, gaussian, jax_array
from unroll_jax.looped import run_loops

WIDTH = 5


def block(params, h, x):
    return jnp.tanh(h @ params["weight"] + x)


def arguments(*batch):
    params = {"weight": jax_array(0.3 * gaussian(WIDTH, WIDTH))}
    h, x = (jax_array(gaussian(*batch, WIDTH, seed=seed)) for seed in (1, 2))
    return params, h, x


def python_loop(params, h, x, loops):
    weight = np.asarray(params["weight"])
    states = [np.asarray(h)]
    for _ in range(loops):
        states.append(np.tanh(states[-1] @ weight + np.asarray(x)))
    return np.stack(states)


@pytest.mark.parametrize(("batch", "remat"), [((), False), ((2, 3), True)])
def test_states_are_those_of_a_python_loop(batch, remat, x64):
    """Free loops come before the others. A traced number of loops stops there and
    repeats the last record."""
    params, h, x = arguments(*batch)
    states = python_loop(params, h, x, 9)
    loop = functools.partial(
        run_loops, block, params, h, x, record=lambda h: h, remat=remat
    )

    @compiled
    def run(free, count):
        return loop(loops=count, free=free, most=7)

    cases = ((0, 0), (0, 7), (2, 1), (2, 4), (np.uint8(2), np.int8(4)))
    for free, count in cases:
        state, records = run(free, count)
        free = int(free)
        count = int(count)
        chex.assert_trees_all_close(
            records, states[free + np.minimum(np.arange(8), count)], rtol=1e-12
        )
        chex.assert_trees_all_close(state, states[free + count], rtol=1e-12)
    narrow = [jax_array(4, dtype) for dtype in ("int8", "uint8", "int32", "uint32")]
    known = (0, np.int64(4), *narrow)
    ends = compiled(lambda: [loop(loops=5, free=free) for free in known])()
    for free, (state, records) in zip(known, ends, strict=True):
        place = int(free)
        chex.assert_trees_all_close(records, states[place : place + 6], rtol=1e-12)
        chex.assert_trees_all_equal(state, records[-1])
    assert run_loops(block, params, h, x, loops=5)[1] is None


def truncated_gradient(params, h, x, free, loops):
    """Of the sum of squares of the last state, by hand."""
    states = python_loop(params, h, x, free + loops)
    weight = np.asarray(params["weight"])
    of_state = 2.0 * states[-1]
    of_weight = 0.0 * weight
    of_x = 0.0 * states[0]
    for before, after in reversed(
        list(zip(states[free:-1], states[free + 1 :], strict=True))
    ):
        slope = of_state * (1.0 - after**2)
        of_state = slope @ weight.T
        of_weight = of_weight + before.T @ slope
        of_x = of_x + slope
    return {"weight": of_weight}, of_state * (free == 0), of_x


@pytest.mark.parametrize("traced", [False, True])
def test_gradients_are_those_through_the_last_loops(traced, x64):
    """Of traced numbers of loops with states computed again in the backward pass."""
    operands = arguments(2)

    def loss(operands, free, loops):
        return jnp.sum(
            run_loops(
                block,
                *operands,
                loops=loops,
                free=free,
                most=6 if traced else None,
                remat=traced,
            )[0]
            ** 2
        )

    known = () if traced else (1, 2)
    gradient = compiled(jax.grad(loss), static_argnums=known)
    for free, loops in ((0, 4), (3, 4), (3, 1)):
        expected = truncated_gradient(*operands, free, loops)
        chex.assert_trees_all_close(
            gradient(operands, free, loops), expected, rtol=1e-10, atol=1e-14
        )


@pytest.mark.parametrize("options", [{}, {"remat": True}, {"free": 50}])
def test_the_program_does_not_grow_with_loops(options):
    params, h, x = jax.tree.map(np.float32, arguments(8))

    def lines(loops):
        def loss(p):
            return jnp.sum(
                run_loops(block, p, h, x, loops=loops, record=jnp.mean, **options)[0]
            )

        return len(jax.jit(jax.grad(loss)).lower(params).as_text().splitlines())

    assert lines(4) == lines(64)


def test_blocks_of_other_libraries_loop():
    x = jax_array(np.ones((2, WIDTH)), np.float32)
    rng = np.random.default_rng(0)

    def draw(leaf):
        return (
            rng.normal(size=leaf.shape).astype(leaf.dtype)
            if hasattr(leaf, "shape")
            else leaf
        )

    module = equinox.filter_eval_shape(
        lambda: equinox.nn.MLP(WIDTH, WIDTH, 4, 1, key=jax.random.key(0))
    )
    graph, state = nnx.split(
        nnx.eval_shape(lambda: nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)))
    )
    module, state = jax.tree.map(draw, (module, state))
    blocks = [
        (lambda module, h, x: jnp.tanh(jax.vmap(module)(h) + x), module),
        (lambda state, h, x: jnp.tanh(nnx.merge(graph, state)(h) + x), state),
    ]
    for step, params in blocks:

        @equinox.filter_jit
        def run(params, step=step):
            expected = x
            for _ in range(3):
                expected = step(params, expected, x)
            return expected, run_loops(step, params, x, x, loops=2, free=1)[0]

        expected, state = run(params)
        chex.assert_trees_all_close(state, expected, rtol=1e-6)
