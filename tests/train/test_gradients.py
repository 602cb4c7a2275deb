"""Batches in parts: the same gradient in less memory; layers that are recomputed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference import compiled
from tests.train.conftest import Clips
from unroll_jax.train.core.objective import loss_gradient
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step, state_like
from unroll_jax.train.sharding import POLICIES
from unroll_jax.train.tasks.video.task import make


@pytest.mark.parametrize("affine", [False, True])
def test_the_gradient_in_parts_is_autodiffs(affine):
    rng = np.random.default_rng(0)
    probe = lambda rows: jnp.zeros((rows, 4))
    weights, rows = (
        rng.normal(size=size).astype(np.float32) for size in ((3, 4), (12, 3))
    )

    def losses(weights, rows, shift):
        samples = jnp.tanh(rows @ weights) ** 2
        return samples + shift, {"largest": jnp.max(samples, axis=1)}

    def objective(samples):
        means = jnp.mean(samples, axis=0)
        if affine:
            return means[-1] + 0.5 * means[0], means
        return jnp.max(samples[:, 0]) * means[-1] ** 2, means

    def undivided(weights, shift):
        samples, figures = losses(weights, rows, shift)
        value, means = objective(samples)
        return value, (means, samples, figures["largest"])

    @compiled
    def gradients(weights):
        found = {}
        for parts in (1, 3, 12):
            options = {"parts": parts, "affine": affine}
            given = losses, objective, weights, rows, probe
            found[parts] = loss_gradient(*given, **options)
        slopes = jax.value_and_grad(undivided, (0, 1), has_aux=True)
        return found, slopes(weights, probe(12))

    found, ((value, seen), (gradient, probed)) = gradients(weights)
    for parts, ((*figures, others), (of_weights, of_probe)) in found.items():
        if parts > 1:  # part i has the rows i, i + parts, ...
            of_probe = np.swapaxes(of_probe, 0, 1).reshape(-1, 4)
        close = {"err_msg": f"{parts} parts"}
        assert_allclose(of_weights, gradient, rtol=1e-4, atol=1e-6, **close)
        assert_allclose(of_probe, probed, rtol=1e-4, atol=1e-6, **close)
        figures = zip((*figures, others["largest"]), (value, *seen), strict=True)
        for one, other in figures:
            assert_allclose(one, other, rtol=1e-5, **close)


def _compiled(task, plan, batch):
    return jit_step(task, plan).lower(state_like(task, plan), batch).compile()


def _memory(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.nightly
def test_parts_take_less_memory(changed, clips, monkeypatch):
    monkeypatch.setattr(clips, "num_examples", lambda split: 512)
    batch, memory = np.zeros((512, 4, 16), np.uint8), {}
    for form, parts in (("difference", 1), ("difference", 8), ("ratio", 8)):
        config = changed(
            **{
                "constraints.form": form,
                "batch_size": 512,
                "accumulate": parts,
                "model.num_layers": 8,
            }
        )
        task = make(config, clips)
        memory[form, parts] = _memory(_compiled(task, make_plan(task), batch))
    for form in ("difference", "ratio"):
        assert memory[form, 8] < 0.5 * memory["difference", 1], form


@pytest.mark.slow
def test_recomputing_changes_no_step_and_takes_less_memory(changed):
    # At the default width, 256, dots save a tenth.
    data, memory, ends = Clips(), {}, {}
    data.spec = data.spec._replace(token_dim=256)
    batch = np.random.default_rng(0).integers(0, 256, (64, 4, 256)).astype(np.uint8)
    sizes = {"batch_size": 64, "model.num_layers": 8, "model.rank": None}
    for name in POLICIES:
        task = make(changed(**sizes, remat=name), data)
        plan = make_plan(task)
        compiled = _compiled(task, plan, batch)
        state, metrics = compiled(init_state(task, plan, 0), batch)
        memory[name] = _memory(compiled)
        ends[name] = jax.tree.leaves((metrics, state.params))
        for one, other in zip(ends[name], ends["none"], strict=True):
            scale = np.max(np.abs(other), initial=0.0)
            assert_allclose(one, other, rtol=0, atol=1e-5 * scale)
    for name, share in (("everything", 0.7), ("dots_without_batch", 0.95)):
        assert memory[name] < share * memory["none"], name
