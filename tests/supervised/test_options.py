"""Options of every run in supervised training: parts of a batch, averages of parameters, what is recomputed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn import metrics

from tests.supervised.conftest import Fields, traced
from tests.supervised.test_runs import small
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.tasks.images import ImageTask

pytestmark = pytest.mark.xdist_group("images")

STEPS = 3


def _leaves(config, batches=None):
    """State and metrics after some steps."""
    task, init, step = traced(config)
    state = init()
    for _, batch in zip(range(STEPS), batches or task.batches(0, None), strict=False):
        state, result = step(state, batch)
    return jax.tree.leaves_with_path((state, result))


def _assert_close(actual, expected, bound):
    for (path, one), (_, two) in zip(actual, expected, strict=True):
        if "residual" in jax.tree_util.keystr(path) or "iterations" in jax.tree_util.keystr(path):
            continue  # of a solver: mere rounding
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        bounds = {"rtol": 0, "atol": bound * np.max(np.abs(two), initial=0.0)}
        np.testing.assert_allclose(one, two, **bounds, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("name", "remat"), [pytest.param("image-opteq", "everything", marks=pytest.mark.slow), ("image-dnn", "dots")]
)
def test_four_parts_of_images_and_recomputed_layers_take_the_step_of_one_batch(name, remat):
    config = small(name)
    if name == "image-opteq":
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, tol=1e-5))
    configs = [dataclasses.replace(config, **one) for one in ({"accumulate": 4, "remat": remat}, {})]
    _assert_close(*map(_leaves, configs), 2e-3)


@pytest.mark.slow
def test_parts_count_by_their_labels_and_are_augmented_as_the_whole_is():
    # Parts take every other scene: those of one have hardly any labels that count.
    scenes = Fields().splits["train"]
    scenes.labels[::2, 1:] = NOT_COUNTED
    batches = [type(scenes)(*(part[8 * step : 8 * step + 8] for part in scenes)) for step in range(STEPS)]
    config = dataclasses.replace(small("segment-fcn"), augment=True)
    configs = [dataclasses.replace(config, accumulate=count) for count in (2, 1)]
    _assert_close(*(_leaves(config, batches) for config in configs), 2e-3)


def test_scenes_without_a_label_that_counts_cost_nothing_and_have_no_gradient():
    task, init, step = traced(dataclasses.replace(small("segment-fcn"), augment=True))
    scenes = next(task.batches(0, None))
    _, result = step(init(), scenes._replace(labels=np.full_like(scenes.labels, NOT_COUNTED)))
    assert result.value == result.layer_losses[-1] == result.grad_norm == 0.0


def test_the_loss_of_a_split_is_over_the_labels_that_count_however_they_fall_into_batches(monkeypatch):
    data, slope = Fields(), np.float32(3.0)
    scenes = data.splits["validation"]
    scenes.labels[:8, 1:] = NOT_COUNTED  # of the first batch of two
    scenes.labels[0, 1:] = 0
    task = ImageTask(small("segment-fcn"), data)
    assert task.config.batch_size == 8
    logits_of = lambda params, images, probe=None: (params * images[..., :2] / 255.0, None)  # noqa: E731
    monkeypatch.setattr(task, "_logits", logits_of)
    reading = task.split_scores(jnp.asarray(slope), "validation")
    there, logits = scenes.labels != NOT_COUNTED, slope * scenes.images[..., :2] / 255.0
    labels = scenes.labels[there].astype(int)
    logs = log_softmax(logits.astype(np.float64), axis=-1)[there]
    np.testing.assert_allclose(reading.loss, -np.mean(logs[np.arange(len(labels)), labels]), rtol=1e-6)
    np.testing.assert_array_equal(reading.matrix, metrics.confusion_matrix(labels, np.argmax(logs, axis=-1)))
