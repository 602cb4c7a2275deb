"""Loops of one block: a Python loop in float64, their gradients, memory and program size."""

import chex
import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import unroll_jax as uj
from unroll_jax.certificates import Outcome, pairwise_smoothness
from unroll_jax.energies import transformer_parts
from unroll_jax.looped import Loops, run_loops

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


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("remat", [False, True])
def test_states_are_those_of_a_python_loop(batch, remat, x64):
    params, h, x = arguments(*batch)
    result = run_loops(block, params, h, x, loops=6, record=lambda h: h, remat=remat)
    chex.assert_trees_all_close(result.records, python_loop(params, h, x, 6), rtol=1e-12)
    chex.assert_trees_all_close(result.state, result.records[-1])


def test_free_loops_come_before_the_others(x64):
    params, h, x = arguments(3)
    states = python_loop(params, h, x, 9)
    for free in (4, np.int64(4), jnp.int32(4)):
        result = run_loops(block, params, h, x, loops=5, free=free, record=lambda h: h)
        chex.assert_trees_all_close(result.records, states[4:], rtol=1e-12)
    assert run_loops(block, params, h, x, loops=5).records is None


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_a_traced_number_of_loops_stops_there_and_repeats_the_last_record(count, x64):
    params, h, x = arguments(2)
    run = jax.jit(lambda n: run_loops(block, params, h, x, loops=n, most=7, record=lambda h: h))
    states = python_loop(params, h, x, 7)
    result = run(count)
    chex.assert_trees_all_close(result.records, states[np.minimum(np.arange(8), count)], rtol=1e-12)
    chex.assert_trees_all_close(result.state, states[count], rtol=1e-12)


def truncated_gradient(params, h, x, free, loops):
    """By autodiff of a Python loop whose state is detached before the last loops."""

    def loss(params, h, x):
        detached = jax.lax.stop_gradient((params, h, x))
        far = h
        for _ in range(free):
            far = block(detached[0], detached[1] if far is h else far, detached[2])
        for _ in range(loops):
            far = block(params, far, x)
        return jnp.sum(far**2)

    return jax.grad(loss, argnums=(0, 1, 2))(params, h, x)


@pytest.mark.parametrize(("free", "loops"), [(0, 4), (3, 4), (3, 1)])
@pytest.mark.parametrize("traced", [False, True])
def test_gradients_are_those_through_the_last_loops(free, loops, traced, x64):
    operands = arguments(2)

    def gradient(operands, free, loops):
        def loss(params, h, x):
            most = None if isinstance(loops, int) else 6
            return jnp.sum(run_loops(block, params, h, x, loops=loops, free=free, most=most).state ** 2)

        return jax.grad(loss, argnums=(0, 1, 2))(*operands)

    actual = jax.jit(gradient)(operands, free, loops) if traced else gradient(operands, free, loops)
    chex.assert_trees_all_close(actual, truncated_gradient(*operands, free, loops), rtol=1e-10, atol=1e-14)


def test_remat_changes_no_gradient_and_needs_less_memory():
    params, h, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arguments(64))

    def wide(params, h, x):
        return jnp.mean(jnp.sin(h[..., None] * jnp.arange(32.0)), axis=-1) @ params["weight"] + x

    gradients, memory = [], []
    for remat in (False, True):
        loss = lambda p, remat=remat: jnp.sum(run_loops(wide, p, h, x, loops=32, remat=remat).state)  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
        gradients.append(compiled(params))
    chex.assert_trees_all_close(*gradients, rtol=1e-4)
    assert memory[1] < 0.5 * memory[0]


def gradient_program(loops, **options):
    params, h, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arguments(8))
    loss = lambda p: jnp.sum(run_loops(block, p, h, x, loops=loops, record=jnp.mean, **options).state)  # noqa: E731
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
            result = run_loops(step, params, x, x, loops=3 - int(free), free=free)
            chex.assert_trees_all_close(result.state, expected, rtol=1e-6)


def test_loops_of_a_certified_hopfield_layer_never_raise_its_energy(getkey):
    """The concave part adds no curvature: smoothness 1, that of the quadratic part, proves descent."""
    descent, y, x = uj.DESCENTS["hopfield"].example(getkey(), (2,))
    params = descent.init(getkey())
    certificate = uj.certify(descent, params, y, x, smoothness=1.0, num_layers=10)
    energies = run_loops(descent, params, y, x, loops=10, record=lambda y: descent.energy(params, y, x)).records
    assert (np.asarray(certificate.outcome) == Outcome.GUARANTEED).all()
    chex.assert_trees_all_close(energies, certificate.energy, rtol=1e-5)
    assert (np.diff(energies, axis=0) <= 1e-6 * np.abs(energies[:-1])).all()


def test_loops_of_a_certified_transformer_never_raise_its_energy(getkey):
    parts, descent = transformer_parts(4, step_size=0.05), uj.transformer(4, step_size=0.05)
    params, y = descent.init(getkey()), 5.0 * jax.random.uniform(getkey(), (8, 6, 4))
    smoothness = {"smoothness_f": pairwise_smoothness(), "smoothness_g": 1.95}
    options = {"f_step": parts.attention.step, "phi": parts.phi, "g_step_size": parts.step_size}
    energies = (parts.attention.energy, parts.feedforward.energy)
    certificate = uj.certify(*energies, params, y, num_layers=10, **smoothness, **options)
    records = run_loops(descent, params, y, loops=10, record=lambda y: descent.energy(params, y, None)).records
    chex.assert_trees_all_close(records, certificate.energy, rtol=1e-4)
    guaranteed = np.asarray(certificate.outcome) == Outcome.GUARANTEED
    assert guaranteed.mean() > 0.5
    assert (np.diff(records, axis=0)[guaranteed] <= 1e-5 * np.abs(records[:-1])[guaranteed]).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"loops": 0}, ValueError, "loops must be at least 1, got 0"),
        ({"loops": 2.0}, TypeError, "loops must be an integer, got 2.0"),
        ({"loops": True}, TypeError, "loops must be an integer, got True"),
        ({"loops": 2, "free": -1}, ValueError, "free must be at least 0, got -1"),
        ({"loops": jnp.int32(2)}, ValueError, "most must be the largest number of loops where loops is traced"),
        ({"loops": 2, "most": 0}, ValueError, "most must be at least 1, or None, got 0"),
    ],
)
def test_bad_arguments_are_named(options, error, message):
    params, h, x = arguments(2)
    with pytest.raises(error) as caught:
        run_loops(block, params, h, x, **options)
    assert message in str(caught.value)


def test_a_block_that_changes_the_shape_of_the_state_is_an_error():
    for free in (0, 1):
        with pytest.raises(ValueError, match="block must keep shape and dtype"):
            run_loops(lambda params, h, x: h[:1], None, jnp.ones(3), loops=2, free=free)
    assert isinstance(run_loops(lambda params, h, x: h, None, jnp.ones(3), loops=2), Loops)
