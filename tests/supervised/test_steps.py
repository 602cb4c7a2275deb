"""Steps of supervised training in parts and recomputed, and their rows: equilibria
and gradients."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn import metrics

from tests.supervised.conftest import Fields, small, traced
from unroll_jax.train.config.options import with_value
from unroll_jax.train.core.evaluate import read, validate
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import describe_step
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.tasks.images import task as images
from unroll_jax.train.tasks.images.task import make

pytestmark = pytest.mark.xdist_group("images")


@pytest.mark.slow
def test_parts_of_a_batch_count_by_their_labels():
    """And are augmented and recomputed as the whole is."""
    # Parts take every other scene: one part has almost no labels that count.
    scenes, ends = Fields().splits["train"], []
    scenes.labels[::2, 1:] = NOT_COUNTED
    for options in ({"accumulate": 2, "remat": "dots"}, {}):
        _, _, init, step = traced(small("segment-fcn", augment=True, **options))
        state = init()
        for start in range(0, 24, 8):
            batch = (part[start : start + 8] for part in scenes)
            state, result = step(state, type(scenes)(*batch))
        ends.append(jax.tree.leaves((state, result)))
    for one, two in zip(*ends, strict=True):
        atol = 2e-3 * np.max(np.abs(two), initial=0.0)
        assert_allclose(np.float64(one), two, rtol=0, atol=atol)


def test_scenes_without_a_label_that_counts_cost_nothing():
    task, _, init, step = traced(small("segment-fcn", augment=True))
    scenes = next(task.batches(0, 0, None))
    labels = np.full_like(scenes.labels, NOT_COUNTED)
    result = jax.device_get(step(init(), scenes._replace(labels=labels))[1])
    assert result.value == result.layer_losses[-1] == result.grad_norm == 0.0


def test_the_loss_of_a_split_is_over_labels_that_count(monkeypatch):
    """However they fall into batches."""
    data = Fields()
    scenes = data.splits["validation"]
    scenes.labels[:8, 1:] = NOT_COUNTED  # of the first batch of two
    scenes.labels[0, 1:] = 0
    options = small("segment-fcn")
    assert options.batch_size == 8
    scale, shift = np.float32(data.spec.std), np.float32(data.spec.mean)

    def logits_of(params, seen):
        return params * (seen * scale + shift)[..., :2], None

    fake = SimpleNamespace(apply=logits_of, init=lambda key, seen: jnp.zeros(()))
    monkeypatch.setattr(images, "build", lambda network, num_classes: fake)
    task = make(options, data)
    reading = read(task, jnp.float32(3.0), "validation", task.trial)
    there = scenes.labels != NOT_COUNTED
    labels = scenes.labels[there].astype(int)
    logits = 3.0 * scenes.images[..., :2][there] / 255.0
    losses = -log_softmax(logits, axis=-1)[np.arange(len(labels)), labels]
    assert_allclose(reading["losses"].mean(), losses.mean(), rtol=1e-6)
    expected = metrics.confusion_matrix(labels, np.argmax(logits, axis=-1))
    assert_array_equal(reading["confusion"], expected)
    # The same answers, the second ones of less loss.
    plan = make_plan(task)
    (one, first), (other, second) = (
        validate(task, plan, jnp.float32(slope), None, 1) for slope in (3.0, 0.3)
    )
    assert one[options.best_by] == other[options.best_by]
    assert second > first
    assert other["loss"] < one["loss"]


@pytest.mark.slow
def test_rows_hold_the_residuals_and_iterations_of_both_solves():
    config = small("image-opteq")
    task, plan, init, step = traced(with_value(config, "network.tol", 1e-5))
    _, figures = step(init(), next(task.batches(0, 0, None)))
    row, *_ = describe_step(task, plan, 1, jax.device_get(figures))
    for residual, iterations, converged in (
        ("residual", "iterations", "converged"),
        ("adjoint_residual", "adjoint_iterations", "adjoint_converged"),
    ):
        assert 0.0 < row[residual] <= 1e-5, residual
        assert row[iterations] >= 1.0, iterations
        assert row[converged] == 1.0, converged
