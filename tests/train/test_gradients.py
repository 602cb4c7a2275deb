"""Batches in parts: the same step, in less memory, for any bounds on the samples."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.conftest import Clips
from unroll_jax.train.core.objective import loss_gradient
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step, state_like
from unroll_jax.train.sharding import POLICIES
from unroll_jax.train.tasks.video.task import make


def _assert_close(actual, expected, bound, case):
    for (path, one), (_, two) in zip(
        *map(jax.tree.leaves_with_path, (actual, expected)), strict=True
    ):
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        scale = np.max(np.abs(two), initial=0.0)
        np.testing.assert_allclose(
            one,
            two,
            rtol=0,
            atol=bound * scale,
            err_msg=f"{case}: {jax.tree_util.keystr(path)}",
        )


def test_the_gradient_in_parts_is_autodiffs():
    rng = np.random.default_rng(0)
    probe = lambda rows: jnp.zeros((rows, 4))
    weights, rows = (
        jnp.asarray(rng.normal(size=size).astype(np.float32))
        for size in ((3, 4), (12, 3))
    )

    def losses(weights, rows, shift):
        samples = jnp.tanh(rows @ weights) ** 2
        return samples + shift, {"largest": jnp.max(samples, axis=1)}

    def objective(samples, affine):
        means = jnp.mean(samples, axis=0)
        return means[-1] + 0.5 * means[0] if affine else jnp.max(samples[:, 0]) * means[
            -1
        ] ** 2, means

    @jax.jit
    def gradients(weights, rows):
        results = {}
        for parts, affine in itertools.product((1, 3, 12), (False, True)):
            bound = functools.partial(objective, affine=affine)
            options = {"parts": parts, "affine": affine}
            results[parts, affine] = loss_gradient(
                losses, bound, weights, rows, probe, **options
            )

        def undivided(weights, shift, affine):
            return objective(losses(weights, rows, shift)[0], affine)[0]

        expected = [
            jax.value_and_grad(undivided, (0, 1))(weights, probe(12), affine)
            for affine in (False, True)
        ]
        return results, expected, losses(weights, rows, probe(12))

    results, expected, (samples, figures) = jax.device_get(gradients(weights, rows))
    for (parts, affine), (
        (value, means, seen, others),
        (gradient, probed),
    ) in results.items():
        case = f"{parts} parts, affine={affine}"
        value_expected, (gradient_expected, probed_expected) = expected[affine]
        if parts > 1:  # part i has the rows i, i + parts, ...
            probed = np.swapaxes(probed, 0, 1).reshape(-1, probed.shape[-1])
        for one, other in ((gradient, gradient_expected), (probed, probed_expected)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=case)
        seen_expected = (
            value_expected,
            np.mean(samples, axis=0),
            samples,
            figures["largest"],
        )
        for one, other in zip(
            (value, means, seen, others["largest"]), seen_expected, strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=case)


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
    for name in POLICIES:
        task = make(
            changed(
                **{
                    "remat": name,
                    "batch_size": 64,
                    "model.num_layers": 8,
                    "model.rank": None,
                }
            ),
            data,
        )
        plan = make_plan(task)
        compiled = _compiled(task, plan, batch)
        state, metrics = compiled(init_state(task, plan, 0), batch)
        memory[name] = _memory(compiled)
        ends[name] = metrics, state.params
        _assert_close(ends[name], ends["none"], 1e-5, name)
    for name, share in (("everything", 0.65), ("dots_without_batch", 0.85)):
        assert memory[name] < share * memory["none"], name
