"""Batches in parts: the same step, in less memory, whatever is bound of the samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.gradients import POLICIES, in_parts, loss_gradient, rematerialised, whole
from train.video.state import init_state, make_step
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
def ends(changed, clips):
    """``ends(fields)``: state and metrics after some steps."""

    def go(**fields):
        tight = {"constraints.alpha": (0.6,), "primal.learning_rate": 0.01, "dual.learning_rate": 0.1}
        config = changed(**{"batch_size": 16, "steps": STEPS, "average": 0.7, **tight, **fields})
        task = video_task(config, clips)
        state, step = init_state(config, task), make_step(config, task)
        for _, batch in zip(range(STEPS), clips.batches("train", batch_size=16, seed=0), strict=False):
            state, metrics = step(state, batch)
        return jax.tree.leaves_with_path((state, metrics))

    return go


def _assert_close(found, expected, bound):
    for (path, one), (_, two) in zip(found, expected, strict=True):
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        scale = np.max(np.abs(two), initial=0.0)
        np.testing.assert_allclose(one, two, rtol=0, atol=bound * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", BINDS)
@pytest.mark.usefixtures("x64")
def test_four_parts_take_the_step_of_one_in_float64(ends, name):
    fields = {**BINDS[name], "model.dtype": "float64"}
    _assert_close(ends(**fields, accumulate=4), ends(**fields), 1e-12)


@pytest.mark.parametrize("name", ["mean", "tail"])
def test_four_parts_take_the_step_of_one_up_to_rounding_in_float32(ends, name):
    _assert_close(ends(**BINDS[name], accumulate=4), ends(**BINDS[name]), 2e-4)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("affine", [True, False])
def test_the_gradient_in_parts_is_autodiffs(getkey, affine, traced):
    weights, rows = jax.random.normal(getkey(), (3, 4)), jax.random.normal(getkey(), (12, 3))
    losses = lambda weights, rows: jnp.tanh(rows @ weights) ** 2  # noqa: E731

    def objective(samples):
        means = jnp.mean(samples, axis=0)
        value = means[-1] + 0.5 * means[0] if affine else jnp.max(samples[:, 0]) * means[-1] ** 2
        return value, means

    expected = jax.value_and_grad(lambda weights: objective(losses(weights, rows))[0])(weights)
    for parts in (1, 3, 12):
        (value, means), gradient = jax.jit(
            lambda weights, rows, parts=parts: loss_gradient(
                losses, objective, weights, rows, parts=parts, affine=jnp.array(affine) if traced else affine
            )
        )(weights, rows)
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(means, np.mean(losses(weights, rows), axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({}, [1, 1, 1]),
        ({"constraints.scale": True}, [1, 1, 1]),
        ({"constraints.scale": True, "dual.start": (0.3,)}, [2, 1, 1]),
        ({"constraints.scale": True, "dual.start": (0.3,), "constraints.warmup_steps": 1}, [1, 1, 1]),
        ({"constraints.bind": "tail"}, [2, 2, 2]),
    ],
    ids=str,
)
def test_parts_take_a_first_pass_only_in_steps_whose_weights_need_it(changed, clips, fields, passes):
    config = changed(**{"batch_size": 16, "accumulate": 4, **fields})
    task, calls = video_task(config, clips), []

    def counted(params, drawn):
        jax.debug.callback(lambda: calls.append(1))
        return task.sample_losses(params, drawn)

    state, step, found = init_state(config, task), make_step(config, task._replace(sample_losses=counted)), []
    for _, batch in zip(passes, clips.batches("train", batch_size=16, seed=0), strict=False):
        calls.clear()
        state, _ = jax.block_until_ready(step(state, batch))
        jax.effects_barrier()
        found.append(len(calls) / 4)
    assert found == passes


def test_parts_take_every_so_manyth_row_and_make_up_the_batch_again(getkey):
    batch = {"x": jnp.arange(12), "y": jax.random.normal(getkey(), (12, 2))}
    divided = in_parts(batch, 3)
    assert divided["x"].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    for one, two in zip(jax.tree.leaves(whole(divided)), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(one, two)


def _memory(step, state, batch):
    return step.lower(state, batch).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("bind", ["mean", "tail"])
def test_parts_take_less_memory(changed, clips, bind):
    found = []
    for parts in (1, 8):
        config = changed(**{"constraints.bind": bind, "batch_size": 512, "accumulate": parts, "model.num_layers": 8})
        task = video_task(config, clips)
        batch = np.zeros((512, 4, 16), np.uint8)
        found.append(_memory(make_step(config, task), init_state(config, task), batch))
    assert found[1] < 0.5 * found[0]


@pytest.mark.parametrize("remat", [name for name in POLICIES if name != "none"])
def test_recomputing_changes_no_step(changed, clips, remat):
    found = []
    for name in ("none", remat):
        config = changed(**{"remat": name, "batch_size": 64, "model.num_layers": 8})
        task = video_task(config, clips)
        batch = next(clips.batches("train", batch_size=64, seed=0))
        state, metrics = make_step(config, task)(init_state(config, task), batch)
        found.append(jax.tree.leaves_with_path((metrics, state.params, state.dual)))
    _assert_close(*found, 1e-5)


# At the default width, 256, dots save a tenth.
@pytest.mark.parametrize(("remat", "share"), [("everything", 0.65), ("dots_without_batch", 0.85)])
def test_recomputing_takes_less_memory(changed, clips, remat, share):
    clips.token_dim, memory = 256, []
    for name in ("none", remat):
        config = changed(**{"remat": name, "batch_size": 64, "model.num_layers": 8, "model.rank": None})
        task = video_task(config, clips)
        state = jax.eval_shape(functools.partial(init_state, config, task))
        memory.append(_memory(make_step(config, task), state, np.zeros((64, 4, 256), np.uint8)))
    assert memory[1] < share * memory[0]


def test_a_policy_names_what_is_kept_of_a_function(getkey):
    x = jax.random.normal(getkey(), (8, 8))
    function = lambda x: jnp.sum(jnp.sin(jnp.sin(x @ x)))  # noqa: E731
    kept = {name: _residuals(rematerialised(function, name), x) for name in POLICIES}
    assert kept["everything"] < kept["dots"] <= kept["dots_without_batch"] < kept["none"]


def _residuals(function, x):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.vjp(function, x)[1]))
