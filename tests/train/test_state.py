"""The training step is compiled once, and depends on its state and batch only."""

import chex
import jax
import pytest

from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step
from unroll_jax.train.tasks.video.task import make


@pytest.mark.xdist_group("video-runs")  # whose step this is
def test_a_step_is_traced_once_and_consumes_its_state(config, clips):
    task = make(config, clips)
    task = task._replace(losses=chex.assert_max_traces(task.losses, n=1))
    plan = make_plan(task)
    batches = [clips.splits["train"][start : start + 4] for start in (0, 4)]
    step = jit_step(task, plan)
    states = [init_state(task, plan, config.seed) for _ in range(4)]
    first, second = (step(state, batches[0]) for state in states[:2])
    chex.assert_trees_all_equal(first, second)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states[0].params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    for state, name in zip(states[2:], ("step", "key"), strict=True):
        other = state._replace(**{name: getattr(state, name) + 1})
        losses = step(other, batches[0])[1].layer_losses
        assert losses[0] != first[1].layer_losses[0], "step and seed draw the noise"
    assert step(first[0], batches[1])[0].step == 2
