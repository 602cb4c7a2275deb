"""Depth: one step repeated inside a scan."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.errors import assert_names
from unroll_jax.energies import AttentionParams, TransformerParams
from unroll_jax.unrolling import UNROLLED

DIM, TOKENS = 3, 4


@pytest.fixture
def layer():
    return uj.transformer(DIM)


def weights(num_layers=None, dim=DIM):
    shape = (dim, dim) if num_layers is None else (num_layers, dim, dim)
    W_a, W_f = 0.4 * np.random.default_rng(0).normal(size=(2, *shape))
    return TransformerParams(jnp.asarray(W_a.astype(np.float32)), jnp.asarray(W_f.astype(np.float32)))


def tokens(*batch):
    y, x = np.random.default_rng(1).uniform(size=(2, *batch, TOKENS, DIM))
    return jnp.asarray(y.astype(np.float32)), jnp.asarray(x.astype(np.float32))


def python_loop(layer, params, y, x, *, num_layers, tied):
    params_of = lambda index: params if tied else jax.tree.map(lambda leaf: leaf[index], params)  # noqa: E731
    energies = []
    for index in range(num_layers):
        energies.append(layer.energy(params_of(index), y, x))
        y = layer.step(params_of(index), y, x)
    energies.append(layer.energy(params_of(num_layers - 1), y, x))
    return y, jnp.stack(energies)


@pytest.mark.parametrize(("tied", "batch"), [(True, (2, 3)), pytest.param(False, (), marks=pytest.mark.slow)])
def test_unroll_and_its_gradients_equal_those_of_a_python_loop(layer, tied, batch):
    options = {"num_layers": 3, "tied": tied}

    def scanned(params, y, x):
        last, trace = uj.unroll(layer, params, y, x, **options)
        return jnp.sum(last**2) + jnp.sum(trace.energy), (last, trace.energy)

    def looped(params, y, x):
        last, energies = python_loop(layer, params, y, x, **options)
        return jnp.sum(last**2) + jnp.sum(energies), (last, energies)

    both = jax.jit(lambda *a: [jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*a) for loss in (scanned, looped)])
    ours, theirs = both(weights(None if tied else 3), *tokens(*batch))
    assert ours[0][1][1].shape == (4, *batch)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_energies_are_recorded_through_what_step_and_energy_share(layer):
    """A descent without `step_and_energy`, or a custom record, calls step and energy separately."""
    (y, x), params, calls = tokens(), weights(), []

    def shared(*args):
        calls.append("shared")
        return layer.step_and_energy(*args)

    def apart(*args):
        calls.append("energy")
        return layer.energy(*args)

    counted, runs = layer._replace(energy=apart, step_and_energy=shared), []

    def unrolled(descent, **options):
        calls.clear()
        last, trace = jax.jit(lambda *a: uj.unroll(descent, *a, num_layers=3, **options))(params, y, x)
        runs.append((last, *jax.tree.leaves(trace)))
        return list(calls)

    assert unrolled(counted) == ["shared", "energy"]  # in the scan, and after the last layer
    assert unrolled(counted, record=counted.energy) == ["energy", "energy"]
    assert unrolled(counted._replace(step_and_energy=None)) == ["energy", "energy"]
    for other in runs[1:]:
        chex.assert_trees_all_close(other, runs[0], rtol=1e-5)
    assert unrolled(counted, record=None) == []  # and nothing is recorded
    assert len(runs[-1]) == 1
    chex.assert_trees_all_close(runs[-1][0], runs[0][0], rtol=1e-6)


def test_a_record_function_is_stacked_over_the_layers(layer):
    (y, _), params = tokens(), weights(3)

    def record(params, y, x):
        return {"state": y, "norms": (jnp.linalg.norm(params.W_a), jnp.sum(y))}

    unrolled = jax.jit(lambda params, y: uj.unroll(layer, params, y, num_layers=3, tied=False, record=record))
    last, trace = jax.tree.map(np.asarray, unrolled(params, y))
    assert trace["state"].shape == (4, TOKENS, DIM)
    np.testing.assert_array_equal(trace["state"][0], y)
    np.testing.assert_array_equal(trace["state"][-1], last)
    norms = np.linalg.norm(params.W_a, axis=(1, 2))
    np.testing.assert_allclose(trace["norms"][0], np.append(norms, norms[-1]), rtol=1e-6)
    np.testing.assert_allclose(trace["norms"][1], trace["state"].sum((1, 2)), rtol=1e-5)


def test_a_step_alone_and_a_tree_of_states_will_do():
    def step(rate, state, x):
        return {"position": state["position"] + rate * state["speed"], "speed": state["speed"] - x}

    start = {"position": np.zeros(2, np.float32), "speed": np.ones(2, np.float32)}
    record = lambda rate, state, x: state["speed"]  # noqa: E731
    last, trace = jax.jit(lambda y: uj.unroll(step, 0.5, y, 0.25, num_layers=2, record=record))(start)
    chex.assert_trees_all_close(last, {"position": np.full(2, 0.875), "speed": np.full(2, 0.5)})
    np.testing.assert_allclose(trace, [[1.0, 1.0], [0.75, 0.75], [0.5, 0.5]])


def test_layers_without_parameters_need_no_leading_axis():
    layer, params = uj.attention(), AttentionParams(None)
    last = lambda y, tied: uj.unroll(layer, params, y, num_layers=3, tied=tied, record=None)[0]  # noqa: E731
    chex.assert_trees_all_equal(*jax.jit(lambda y: (last(y, True), last(y, False)))(tokens()[0]))


def test_bfloat16_states_keep_their_dtype_and_energies_are_float32(layer):
    y = jax.ShapeDtypeStruct((TOKENS, DIM), jnp.bfloat16)
    last, trace = jax.eval_shape(lambda params, y: uj.unroll(layer, params, y, num_layers=3), weights(), y)
    assert last.dtype == jnp.bfloat16
    assert trace.energy.dtype == jnp.float32


@pytest.mark.parametrize("tied", [True, False])
def test_compile_work_does_not_grow_with_depth(layer, tied):
    """The step is traced equally often, and the program has equally many equations, at depth 2 and at depth 40."""
    (y, _), sizes = tokens(), []
    for num_layers in (2, 40):
        traces = 0

        def counted(params, y, x):
            nonlocal traces
            traces += 1
            return layer.step(params, y, x)

        params = weights(None if tied else num_layers)
        apart = layer._replace(step=counted, step_and_energy=None)
        loss = lambda params, y: jnp.sum(  # noqa: E731
            uj.unroll(apart, params, y, num_layers=num_layers, tied=tied)[1].energy  # noqa: B023
        )
        program = jax.make_jaxpr(jax.grad(loss))(params, y)
        sizes.append((traces, str(program).count(" = ")))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] <= 3


@pytest.mark.slow
def test_remat_keeps_the_gradients_and_saves_memory_as_far_as_its_policy_lets_it():
    layer, y = uj.transformer(32), jnp.asarray(np.random.default_rng(3).uniform(size=(64, 32)).astype(np.float32))
    # Deep enough for gradients to explode otherwise.
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf) / 4), weights(dim=32))
    gradients, memory = [], []
    for remat in (False, True, jax.checkpoint_policies.everything_saveable):
        loss = lambda params: jnp.sum(uj.unroll(layer, params, y, num_layers=32, remat=remat)[1].energy)  # noqa: E731, B023
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients.append(compiled(params))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    for other in gradients[1:]:
        chex.assert_trees_all_close(other, gradients[0], rtol=1e-4, atol=1e-5)
    assert memory[1] < 0.5 * min(memory[0], memory[2])


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
def test_layers_at_once_change_the_program_alone(layer, remat):
    (y, x), params = tokens(), weights(5)

    def loss(params, unroll):
        last, trace = uj.unroll(layer, params, y, x, num_layers=5, tied=False, remat=remat, unroll=unroll)
        return jnp.sum(last**2) + jnp.sum(trace.energy)

    chosen = (1, 2, None) if remat else (1, 2, 5, 9, None)
    one, *others = jax.jit(lambda params: [jax.value_and_grad(loss)(params, unroll) for unroll in chosen])(params)
    for other in others:
        chex.assert_trees_all_close(other, one, rtol=1e-4, atol=1e-5)


def test_layers_are_written_out_up_to_a_depth_and_without_remat(layer):
    (y, _), params = tokens(), weights()

    def loops(num_layers, **options):
        lowered = jax.jit(lambda y: uj.unroll(layer, params, y, num_layers=num_layers, **options)).lower(y)
        return "stablehlo.while" in lowered.as_text()

    assert not loops(UNROLLED)
    assert loops(UNROLLED + 1)
    assert loops(3, remat=True)
    assert loops(3, unroll=1)
    assert not loops(UNROLLED + 1, unroll=UNROLLED + 1)


BAD_CALLS = [
    (ValueError, {"remat": True, "unroll": 3}, ""),
    (ValueError, {"unroll": 0}, ""),
    (ValueError, {"num_layers": 0}, ""),
    (TypeError, {"num_layers": 2.5}, ""),
    (ValueError, {"record": "energies"}, ""),
    (ValueError, {"tied": False}, "params.W_a"),
    (ValueError, {"descent": lambda params, y, x: y}, "record"),
    *(
        (ValueError, {"record": None, "descent": step}, "step must keep")
        for step in (lambda p, y, x: y[:1], lambda p, y, x: y.astype("bfloat16"), lambda p, y, x: (y, y))
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("error", "options", "name"), BAD_CALLS)
def test_a_bad_argument_is_named(layer, error, options, name):
    def call(descent=layer, num_layers=3, **options):
        return uj.unroll(descent, weights(2), tokens()[0], num_layers=num_layers, **options)

    assert_names(error, call, options, name)
