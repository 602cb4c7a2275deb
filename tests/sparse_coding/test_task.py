"""Losses, noise and floors of sparse coding, against NumPy."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.errors import one_line
from tests.models.test_lista import reference_codes
from tests.reference import compiled
from tests.sparse_coding.conftest import BLOBS, SPARSITY, small, task_of
from tests.tasks import perturbed
from unroll_jax.train.core.evaluate import read
from unroll_jax.train.core.task import Trial
from unroll_jax.train.tasks.sparse_coding.data import CodeBatch
from unroll_jax.train.tasks.sparse_coding.options import ListaConfig
from unroll_jax.train.tasks.sparse_coding.task import PENALTIES, linear_coder, noisy

pytestmark = pytest.mark.xdist_group("sparse-coding")
NOISE = small(steps=30, model=ListaConfig(num_layers=3, weights="noise"))


def losses_of(params, split, lost=0):
    whole = BLOBS.whole(split)
    codes = reference_codes(params, whole.images / 255.0, lost=lost)
    return 0.5 * np.sum((codes - whole.codes) ** 2, axis=-1).T


@pytest.fixture(scope="module")
def start():
    """The weights of ISTA, and others near them."""
    params = jax.jit(task_of(small()).init)(jax.random.key(0, impl="rbg"))
    return params, perturbed(params)


def test_losses_are_half_the_squared_errors_of_codes(start):
    """Noise on layers depends on the image only: batches may be parted."""
    _, params = start
    task, noisy_task, batch = (
        task_of(small()),
        task_of(small(layer_noise=0.3)),
        BLOBS.whole("validation"),
    )

    @compiled
    def run(params, batch):
        rows = task.corrupt(batch, task.trial, jax.random.key(1))
        return rows, task.losses(params, rows, task.trial)[0]

    @compiled
    def noisy_losses(params, rows, places):
        some = jax.tree.map(lambda leaf: leaf[places], rows)
        return noisy_task.losses(params, some, noisy_task.trial)[0]

    (rows, actual), places = run(params, batch), np.arange(len(batch.codes))
    whole, parted = (noisy_losses(params, rows, some) for some in (places, places % 6))
    expected = losses_of(params, "validation")
    assert_allclose(actual, expected, rtol=1e-4)
    assert_allclose(whole[places % 6], parted, rtol=1e-5)
    assert_allclose(whole[:, 0], expected[:, 0], rtol=1e-5)
    # Noise of every layer is in the last one's codes: at least 0.3^2 / 2 an atom.
    assert np.mean(whole[:, 1:] - expected[:, 1:]) > 0.5 * 0.3**2 * 20 * 0.7
    for lost in (0, 2):
        losses = read(task, params, "test", Trial(0.0, lost=lost))["losses"]
        assert_allclose(losses, losses_of(params, "test", lost), rtol=1e-4)


def test_what_is_drawn_has_the_strengths_of_training():
    task, batch = (
        task_of(small(train_gamma=0.5, model=ListaConfig(num_layers=3, start=0.2))),
        BLOBS.whole("train"),
    )
    many = CodeBatch(*(np.repeat(part, 20, axis=0) for part in batch))
    draw = compiled(lambda seed: task.corrupt(many, task.trial, jax.random.key(seed)))
    drawn, again = map(draw, (0, 1))
    noise = drawn.signals - np.repeat(batch.images, 20, axis=0) / 255.0
    assert np.std(noise) == pytest.approx(0.5 * BLOBS.pixel_std, rel=0.05)
    assert np.std(drawn.start) == pytest.approx(0.2, rel=0.05)
    assert_array_equal(drawn.codes, many.codes)
    assert len(np.unique(drawn.keys, axis=0)) == len(many.codes)
    assert not np.any(again.signals == drawn.signals)


def test_ista_stands_beside_the_network_whatever_its_weights_start_as(start):
    task, curvature = task_of(NOISE), np.linalg.norm(BLOBS.dictionary, 2) ** 2
    drawn = compiled(task.init)(jax.random.key(0, impl="rbg"))
    assert np.std(drawn["params"]["layers"].A) == pytest.approx(0.01, rel=0.1)
    for params in jax.device_get((task.inner(), start[0])):
        layers = params["params"]["layers"]
        assert_allclose(layers.B[1], BLOBS.dictionary / curvature, rtol=1e-5)
        assert_allclose(layers.theta, SPARSITY / curvature, rtol=1e-5)


def test_the_linear_map_is_least_squares_with_best_penalty():
    x, z = (np.float64(part) for part in noisy(BLOBS, "train", 0.3))
    centred, codes = x - x.mean(0), z - z.mean(0)
    held_out, expected = (np.float64(part) for part in noisy(BLOBS, "validation", 0.3))
    errors = {}
    for penalty in PENALTIES:
        weights = np.linalg.solve(
            centred.T @ centred + penalty * len(x) * np.eye(16), centred.T @ codes
        )
        predicted = (held_out - x.mean(0)) @ weights + z.mean(0)
        errors[np.sum((predicted - expected) ** 2)] = predicted
    assert_allclose(
        linear_coder(BLOBS, 0.3)(held_out), errors[min(errors)], rtol=1e-2, atol=1e-3
    )


def test_codes_of_images_come_with_what_they_stand_for(start):
    task, params = task_of(small()), start[0]
    images = BLOBS.whole("test").images[:3].reshape(3, 4, 4)
    predictions = task.predict(params, list(images))
    expected = reference_codes(params, images.reshape(3, -1) / 255.0)[-1]
    found = [one.code for one in predictions]
    assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    shown = np.clip(255.0 * expected @ BLOBS.dictionary, 0, 255).reshape(3, 4, 4)
    assert_allclose([one.image for one in predictions], shown, atol=1)
    noise = [
        task.predict(params, images[1], gamma=1.0, seed=seed).code for seed in (0, 0, 1)
    ]
    assert_array_equal(noise[0], noise[1])
    assert np.any(noise[0] != noise[2])
    broken = jax.device_put(
        jax.tree.map(lambda leaf: np.nan * np.asarray(leaf), params)
    )
    with one_line("images are not finite"):
        task.predict(broken, images[1])
