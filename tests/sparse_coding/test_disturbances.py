"""Disturbed images of sparse coding against SciPy and counts, and the figures that an evaluation has of them."""

import jax
import numpy as np
import pytest
from scipy import ndimage

from tests.sparse_coding.conftest import BLOBS, SIDE, small, task_of
from unroll_jax.train.config.disturbances import Disturbance
from unroll_jax.train.data.codes import CodeBatch
from unroll_jax.train.tasks.common import Trial

pytestmark = pytest.mark.xdist_group("sparse-coding")
IMAGES = np.random.default_rng(0).integers(1, 255, (1500, SIDE**2)).astype(np.uint8)


def seen(name, size):
    """The signals that are coded under a disturbance, and those without it."""
    task = task_of(small())
    batch = CodeBatch(IMAGES, np.zeros((len(IMAGES), len(BLOBS.dictionary)), np.float32))
    drawn = jax.jit(lambda key: task._drawn(batch, 0.0, key, Disturbance(name, size)))(jax.random.key(0))
    return np.asarray(drawn.signals), IMAGES / 255.0


def test_a_blur_is_of_images_and_not_of_rows():
    actual, clean = seen("blur", 0.8)
    expected = ndimage.gaussian_filter(clean.reshape(-1, SIDE, SIDE), (0.0, 0.8, 0.8))
    np.testing.assert_allclose(actual, expected.reshape(clean.shape), atol=1e-6)


def test_an_evaluation_has_the_errors_of_the_network_and_of_ista():
    config = small(test_disturbances=("blur=1e-3", "dropped=0.5"), test_layer_noises=(), lose_layers=False)
    task = task_of(config)
    ista = task.ista()
    figures = task.scores(task.readings(ista, "test", task.trials()), task.trials())
    assert list(figures) == ["relative_error", "disturbed_relative_error"]
    clean = task.score_of(task.reading(ista, "test", Trial(0.0)), "test")
    assert figures["disturbed_relative_error"]["blur=0.001"] == pytest.approx(clean, rel=1e-5)  # which is none at all
    assert figures["disturbed_relative_error"]["dropped=0.5"] > 1.5 * clean
