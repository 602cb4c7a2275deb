"""Batches in parts: the same step, in less memory, whatever is bound of the samples."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.conftest import Clips
from tests.train.ladder import batches, ladder, train
from train.constrained import init_state, make_step
from train.gradients import POLICIES, in_parts, loss_gradient, rematerialised, whole
from train.video.task import video_task

BINDS = {
    "mean": {"constraints.reference": None},
    "mean, scaled, started": {"constraints.scale": True, "dual.start": (0.3,)},
    "tail": {"constraints.bind": "tail", "constraints.scale": True},
    "positive, slacks": {
        "constraints.bind": "positive",
        "constraints.slacks": "explicit",
        "constraints.resilience": 2.0,
    },
    "plain": {"method": "erm"},
}
STEPS = 4


@pytest.fixture
def whole_and_parts(changed):
    """``whole_and_parts(names, dtype)``: state and metrics after some steps on whole batches, and on four parts."""

    def go(names, dtype):
        tight = {"constraints.alpha": (0.6,), "primal.learning_rate": 0.01, "dual.learning_rate": 0.1}
        usual = {"batch_size": 16, "steps": STEPS, "average": 0.7, **tight}
        configs = {
            (name, parts): changed(**usual, **BINDS[name], accumulate=parts) for name in names for parts in (1, 4)
        }
        data = batches(STEPS, 16, dtype)
        found = jax.jit(lambda: {key: train(config, data, dtype) for key, config in configs.items()})()
        return {name: tuple(jax.tree.leaves_with_path(found[name, parts]) for parts in (1, 4)) for name in names}

    return go


def _assert_close(found, expected, bound, case):
    for (path, one), (_, two) in zip(found, expected, strict=True):
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        scale = np.max(np.abs(two), initial=0.0)
        np.testing.assert_allclose(
            one, two, rtol=0, atol=bound * scale, err_msg=f"{case}: {jax.tree_util.keystr(path)}"
        )


@pytest.mark.usefixtures("x64")
def test_four_parts_take_the_step_of_one_in_float64(whole_and_parts):
    for name, (one, parts) in whole_and_parts(BINDS, "float64").items():
        _assert_close(parts, one, 1e-12, name)


def test_four_parts_take_the_step_of_one_up_to_rounding_in_float32(whole_and_parts):
    for name, (one, parts) in whole_and_parts(["mean", "tail"], "float32").items():
        _assert_close(parts, one, 2e-4, name)


def test_the_gradient_in_parts_is_autodiffs():
    rng = np.random.default_rng(0)
    weights, rows = (jnp.asarray(rng.normal(size=size).astype(np.float32)) for size in ((3, 4), (12, 3)))
    losses = lambda weights, rows: jnp.tanh(rows @ weights) ** 2  # noqa: E731

    def objective(samples, affine):
        means = jnp.mean(samples, axis=0)
        value = means[-1] + 0.5 * means[0] if affine else jnp.max(samples[:, 0]) * means[-1] ** 2
        return value, means

    @jax.jit
    def gradients(weights, rows):
        found = {}
        for parts, affine, traced in itertools.product((1, 3, 12), (False, True), (False, True)):
            known = jnp.array(affine) if traced else affine
            bound = functools.partial(objective, affine=affine)
            found[parts, affine, traced] = loss_gradient(losses, bound, weights, rows, parts=parts, affine=known)
        expected = [
            jax.value_and_grad(lambda weights, affine=affine: objective(losses(weights, rows), affine)[0])(weights)
            for affine in (False, True)
        ]
        return found, expected, jnp.mean(losses(weights, rows), axis=0)

    found, expected, mean = jax.device_get(gradients(weights, rows))
    for (parts, affine, traced), ((value, means), gradient) in found.items():
        case = f"{parts} parts, affine={affine}, traced={traced}"
        np.testing.assert_allclose(value, expected[affine][0], rtol=1e-5, err_msg=case)
        np.testing.assert_allclose(gradient, expected[affine][1], rtol=1e-4, atol=1e-6, err_msg=case)
        np.testing.assert_allclose(means, mean, rtol=1e-5, err_msg=case)


PASSES = {
    "plain": ({}, [1, 1, 1]),
    "scaled": ({"constraints.scale": True}, [1, 1, 1]),
    "scaled, started": ({"constraints.scale": True, "dual.start": (0.3,)}, [2, 1, 1]),
    "scaled, started, after a warm-up": (
        {"constraints.scale": True, "dual.start": (0.3,), "constraints.warmup_steps": 1},
        [1, 1, 1],
    ),
    "tail": ({"constraints.bind": "tail"}, [2, 2, 2]),
}


def test_parts_take_a_first_pass_only_in_steps_whose_weights_need_it(changed):
    calls, states, steps = [], {}, {}
    for name, (fields, _) in PASSES.items():
        config = changed(**{"batch_size": 16, "accumulate": 4, **fields})
        task = ladder(config)

        def counted(params, drawn, name=name, task=task):
            jax.debug.callback(lambda: calls.append(name))
            return task.sample_losses(params, drawn)

        states[name] = functools.partial(init_state, config, task)
        steps[name] = make_step(config, task._replace(sample_losses=counted))
    step = jax.jit(lambda states, batch: {name: steps[name](state, batch)[0] for name, state in states.items()})
    found, states = [], jax.jit(lambda: {name: init() for name, init in states.items()})()
    for batch in batches(3, 16):
        calls.clear()
        states = jax.block_until_ready(step(states, batch))
        jax.effects_barrier()
        found.append({name: calls.count(name) / 4 for name in PASSES})
    assert found == [{name: passes[number] for name, (_, passes) in PASSES.items()} for number in range(3)]


def test_parts_take_every_so_manyth_row_and_make_up_the_batch_again():
    batch = {"x": np.arange(12), "y": np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)}
    divided, again = jax.jit(lambda batch: (in_parts(batch, 3), whole(in_parts(batch, 3))))(batch)
    assert divided["x"].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(one, two)


def _compiled(config, task, batch):
    state = jax.eval_shape(functools.partial(init_state, config, task))
    return make_step(config, task).lower(state, batch).compile()


def _memory(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


def test_parts_take_less_memory(changed, clips):
    batch, found = np.zeros((512, 4, 16), np.uint8), {}
    for bind, parts in (("mean", 1), ("mean", 8), ("tail", 8)):
        config = changed(**{"constraints.bind": bind, "batch_size": 512, "accumulate": parts, "model.num_layers": 8})
        found[bind, parts] = _memory(_compiled(config, video_task(config, clips), batch))
    for bind in ("mean", "tail"):
        assert found[bind, 8] < 0.5 * found["mean", 1], bind


def test_recomputing_changes_no_step_and_takes_less_memory(changed):
    # At the default width, 256, dots save a tenth.
    data, memory, ends = Clips(), {}, {}
    data.token_dim = 256
    batch = np.random.default_rng(0).integers(0, 256, (64, 4, 256)).astype(np.uint8)
    for name in POLICIES:
        config = changed(**{"remat": name, "batch_size": 64, "model.num_layers": 8, "model.rank": None})
        task = video_task(config, data)
        compiled = _compiled(config, task, batch)
        state, metrics = compiled(init_state(config, task), batch)
        memory[name] = _memory(compiled)
        ends[name] = jax.tree.leaves_with_path((metrics, state.params, state.dual))
        _assert_close(ends[name], ends["none"], 1e-5, name)
    for name, share in (("everything", 0.65), ("dots_without_batch", 0.85)):
        assert memory[name] < share * memory["none"], name


def test_a_policy_names_what_is_kept_of_a_function():
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    function = lambda x: jnp.sum(jnp.sin(jnp.sin(x @ x)))  # noqa: E731
    kept = {name: _residuals(rematerialised(function, name), x) for name in POLICIES}
    assert kept["everything"] < kept["dots"] <= kept["dots_without_batch"] < kept["none"]


def _residuals(function, x):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(function, x)[1], x)))
